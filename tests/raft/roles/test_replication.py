"""One term of a leader, without brokers: what it sends, what each ack changes, when the group may rest."""

from __future__ import annotations

import pytest
import structlog

from tests.raft.values import ListLog, chain, incarnation, membership
from tinymq.base.config import Limits, Timing
from tinymq.raft.roles.replication import PROBE_RETRY_S, Replication
from tinymq.raft.rules.configs import Config, Configs
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.messages import Append, AppendAck, CommitNotice, Message
from tinymq.raft.rules.progress import Mode

TERM = 3
CONFIGS = Configs(Config(1, 0, membership()))
ME = Replica(1, incarnation(1))


class FakeLink:
    """Followers 2 and 3, as a leader reaches them."""

    def __init__(self) -> None:
        self.time = 100.0
        self.up = {2, 3}
        self.incarnations = {2: incarnation(2), 3: incarnation(3)}
        self.sent: list[tuple[int, Message]] = []
        self.reopened: list[int] = []
        self.cold: list[tuple[int, int]] = []
        self.snapshot_reads: list[int] = []  # the followers for which a snapshot was read

    def now(self) -> float:
        return self.time

    def alive(self, peer: int) -> bool:
        return peer in self.up

    connected = alive

    def incarnation(self, peer: int) -> bytes | None:
        return self.incarnations.get(peer)

    def send(self, peer: int, message: Message) -> bool:
        self.sent.append((peer, message))
        return peer in self.up

    def reopen(self, peer: int) -> None:
        self.reopened.append(peer)

    def read_cold(self, peer: int, index: int) -> None:
        self.cold.append((peer, index))

    def read_snapshot(self, peer: int) -> None:
        self.snapshot_reads.append(peer)

    def take(self, peer: int) -> list[Message]:
        """Return the messages to `peer` since the last call."""
        taken = [m for p, m in self.sent if p == peer]
        self.sent = [(p, m) for p, m in self.sent if p != peer]
        return taken


def leading(entries: int = 5, durable: int | None = None) -> tuple[Replication, FakeLink, ListLog]:
    """A leader of term 3 whose NOOP is the last entry."""
    log, link = ListLog(chain([*[1] * (entries - 1), TERM]), durable=durable), FakeLink()
    return (
        Replication(
            term=TERM, first_of_term=entries, peers=[2, 3], log=log, link=link, limits=Limits(), timing=Timing()
        ),
        link,
        log,
    )


def ack(durable: int, received: int | None = None, commit: int = 0, count: int = 0) -> AppendAck:
    return AppendAck(
        term=TERM,
        durable=durable,
        received=durable if received is None else received,
        conflict=False,
        next=0,
        next_term=0,
        commit=commit,
        count=count,
    )


def test_a_majority_of_durable_copies_commits() -> None:
    leader, _, _ = leading(entries=5)
    assert leader.commit(CONFIGS, ME, 1) == 1
    leader.acknowledged(2, ack(durable=4, received=5))
    assert leader.commit(CONFIGS, ME, 1) == 1, "a received entry is not durable yet"
    leader.acknowledged(2, ack(durable=5))
    assert leader.commit(CONFIGS, ME, 1) == 5


def test_the_leaders_own_copy_counts_when_it_is_durable_and_listed() -> None:
    leader, _, _ = leading(entries=5, durable=4)
    leader.acknowledged(2, ack(durable=5))
    assert leader.commit(CONFIGS, ME, 1) == 1
    leader.acknowledged(3, ack(durable=5))
    assert leader.commit(CONFIGS, Replica(1, incarnation(7)), 1) == 5


def test_another_incarnation_does_not_count_and_starts_from_nothing() -> None:
    leader, link, _ = leading(entries=5)
    leader.acknowledged(2, ack(durable=5))
    link.incarnations[2] = incarnation(9)
    assert leader.commit(CONFIGS, ME, 1) == 1, "not even before its first ack"
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=0, conflict=True, next=2, next_term=1, commit=1, count=0)
    )
    assert (leader.progress[2].match, leader.progress[2].next) == (0, 2), "it gets the entries that the old one had"


@pytest.mark.parametrize(("ends_at", "warned"), [(4, True), (5, False)])
def test_a_disk_that_lost_acknowledged_entries_is_logged_once_and_filled(ends_at: int, warned: bool) -> None:
    """In one term a follower keeps what it acknowledged: a follower whose log ends before that has lost entries without
    noticing.
    """
    leader, link, _ = leading(entries=6)
    leader.acknowledged(2, ack(durable=5))
    leader.lost(2)
    with structlog.testing.capture_logs() as told:
        assert leader.acknowledged(
            2, AppendAck(term=TERM, durable=0, received=ends_at, conflict=True, next=5, next_term=1, commit=1, count=0)
        )
        leader.lost(2)
        assert leader.acknowledged(
            2, AppendAck(term=TERM, durable=0, received=ends_at, conflict=True, next=5, next_term=1, commit=1, count=0)
        )
    assert [(t["event"], t["peer"], t["acknowledged"], t["holds"]) for t in told] == [
        ("follower_lost_entries", 2, 5, 4)
    ] * warned
    assert leader.progress[2].match == 4
    leader.replicate(1)
    (sent,) = link.take(2)
    assert isinstance(sent, Append)
    assert (sent.prev_index, [e.index for e in sent.entries]) == (4, [5, 6])
    leader.acknowledged(2, ack(durable=6))
    assert leader.commit(CONFIGS, ME, 1) == 6


def test_a_new_identity_that_kept_its_log_is_not_sent_all_of_it() -> None:
    """Only its count is new. Its first ack answers a read index or is unsolicited, and tells nothing about its log."""
    leader, link, _ = leading(entries=5)
    leader.acknowledged(2, ack(durable=5))
    assert leader.acknowledged(2, ack(durable=0, count=1)), "there are entries to send"
    leader.replicate(1)
    (asked,) = link.take(2)
    assert isinstance(asked, Append)
    assert (asked.prev_index, list(asked.entries)) == (5, []), "probes whether it has the old entries"
    leader.acknowledged(2, ack(durable=5, count=1))
    assert (leader.progress[2].match, leader.progress[2].mode) == (5, Mode.REPLICATE)


def test_probing_sends_one_message_then_empty_ones_less_and_less_often() -> None:
    leader, link, _ = leading(entries=5)
    leader.replicate(1)
    (first,) = link.take(2)
    assert isinstance(first, Append)
    assert len(first.entries) == 1
    times = []
    for _ in range(400):
        link.time += 0.01
        leader.settle(1)
        leader.replicate(1)
        for message in link.take(2):
            assert isinstance(message, Append)
            assert not message.entries
            times.append(link.time - 100.0)
    assert len(times) == 5
    assert times[0] < 2 * PROBE_RETRY_S


def test_an_ack_lost_with_its_connection_is_requested_again() -> None:
    """All entries are sent and received, but the ack of the sync never came, and nothing more is proposed."""
    leader, link, _ = leading(entries=5)
    leader.replicate(1)
    leader.acknowledged(2, ack(durable=3, received=5))
    leader.replicate(1)
    link.take(2)
    assert (leader.progress[2].mode, leader.progress[2].next) == (Mode.REPLICATE, 6)
    link.time += Timing().bulk_stalled_s + 0.1
    leader.settle(1)
    leader.replicate(1)
    (again,) = link.take(2)
    assert isinstance(again, Append)
    assert again.prev_index == 3


def test_a_commit_notice_never_exceeds_the_match_index() -> None:
    leader, link, log = leading(entries=5)
    leader.acknowledged(2, ack(durable=5))
    leader.acknowledged(3, ack(durable=3, received=3))
    log.append(chain([TERM, TERM], after=log.entries[-1]))
    leader.replicate(5)
    for peer, known in ((2, 5), (3, 3)):
        commits = [m.commit for m in link.take(peer) if isinstance(m, CommitNotice)]
        assert all(c <= known for c in commits)


def test_a_group_rests_when_every_live_replica_has_and_knows_everything() -> None:
    leader, link, _ = leading(entries=5)
    leader.acknowledged(2, ack(durable=5, commit=5))
    leader.acknowledged(3, ack(durable=5, commit=4))
    assert not leader.quiet(CONFIGS, 5)
    leader.settle(5)
    assert [m for m in link.take(3) if isinstance(m, CommitNotice)] == [CommitNotice(TERM, 5, True)]
    assert link.take(2) == []
    leader.acknowledged(3, ack(durable=5, commit=5))
    assert leader.quiet(CONFIGS, 5)
    leader.lost(3)
    assert not leader.quiet(CONFIGS, 5), "it may have lost its commit index"
    link.up.discard(3)
    assert leader.quiet(CONFIGS, 5), "the leader does not wait for a dead follower"


def test_the_leader_waits_for_its_own_disk_and_notices_a_hang() -> None:
    leader, link, _ = leading(entries=5, durable=4)
    for peer in (2, 3):
        leader.acknowledged(peer, ack(durable=5, commit=5))
    assert not leader.quiet(CONFIGS, 5)
    assert not leader.sync_hangs()
    link.time += Timing().sync_hang_s + 0.1
    assert leader.sync_hangs()


def test_cold_entries_are_read_once_and_then_sent() -> None:
    leader, link, log = leading(entries=5)
    log.cold_before = 5
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=0, conflict=True, next=2, next_term=1, commit=1, count=0)
    )
    leader.replicate(1)
    leader.replicate(1)
    assert link.cold == [(2, 2)]
    leader.entries_read(2, 2, log.entries[1:4], 1)
    (message,) = [m for m in link.take(2) if isinstance(m, Append)]
    assert (message.prev_index, len(message.entries)) == (1, 3)
    leader.entries_read(2, 2, log.entries[1:4], 1)  # the follower's next index moved meanwhile
    assert [m for m in link.take(2) if isinstance(m, Append)] == []


def test_entries_whose_predecessor_was_removed_while_they_were_read_are_not_sent() -> None:
    leader, link, log = leading(entries=5)
    log.cold_before = 5
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=0, conflict=True, next=2, next_term=1, commit=1, count=0)
    )
    leader.replicate(1)
    link.take(2)
    log.trimmed = 2  # retention removes the head during the disk read
    leader.entries_read(2, 2, log.entries[1:4], 1)
    assert link.take(2) == []
    leader.replicate(1)
    assert link.snapshot_reads == [2], "the leader offers a snapshot instead"


def test_the_successor_is_alive_and_listed_and_has_the_most_entries() -> None:
    leader, link, _ = leading(entries=5)
    leader.acknowledged(2, ack(durable=3, received=3))
    leader.acknowledged(3, ack(durable=5))
    assert leader.followers.successors(CONFIGS)[0] == 3
    leader.acknowledged(2, ack(durable=5))
    assert leader.followers.successors(CONFIGS) == [2, 3], "the preferred broker among equals"
    assert leader.followers.holds_all(2)
    link.incarnations[2] = incarnation(9)
    assert leader.followers.successors(CONFIGS)[0] == 3
    assert not leader.followers.holds_all(2), "only the previous incarnation had acknowledged it"
    link.up.clear()
    assert leader.followers.successors(CONFIGS) == []


def test_while_a_config_is_uncommitted_neither_identity_of_its_broker_counts() -> None:
    """Otherwise {1, old 2} could commit entries behind CONFIG that {new 2, 3} do not have."""
    leader, link, _ = leading(entries=5)
    configs = Configs(Config(1, 0, membership()))
    listed = membership().replacing([Replica(2, incarnation(9))])
    configs.above = [Config(4, TERM, listed)]
    leader.acknowledged(2, ack(durable=5))
    assert leader.commit(configs, ME, 1) == 1
    link.incarnations[2] = incarnation(9)
    leader.acknowledged(2, ack(durable=5))
    assert leader.commit(configs, ME, 1) == 1
    assert leader.followers.successors(configs) == []
    assert not leader.quiet(configs, 5)
    configs.above, configs.applied = [], Config(4, TERM, listed)
    assert leader.commit(configs, ME, 1) == 5


def test_a_new_identity_is_filled_even_if_its_first_ack_is_a_success() -> None:
    """An ack of a read index says nothing about the log, not even that the log is empty now."""
    leader, link, _ = leading(entries=5)
    leader.acknowledged(2, ack(durable=5, commit=5))
    link.incarnations[2] = incarnation(9)
    leader.acknowledged(2, ack(durable=0))
    assert leader.progress[2].commit == 0
    leader.replicate(1)
    (asked,) = link.take(2)
    assert isinstance(asked, Append)
    leader.acknowledged(
        2, AppendAck(term=TERM, durable=0, received=1, conflict=True, next=2, next_term=1, commit=1, count=0)
    )
    leader.replicate(1)
    (message,) = [m for m in link.take(2) if isinstance(m, Append)]
    assert (message.prev_index, [e.index for e in message.entries]) == (1, [2, 3, 4, 5])
