"""Which CONFIG decides what while a log grows, is truncated and is applied; and the part that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.raft.values import GROUP, chain, incarnation, membership
from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.raft.replica.checkpoint import pack_checkpoint, parse_checkpoint
from tinymq.raft.rules.configs import Config, Configs
from tinymq.raft.rules.membership import RETIRED_MAX, Membership, Replica, pack_membership
from tinymq.raft.rules.messages import (
    Append,
    AppendAck,
    CommitNotice,
    InstallSnapshot,
    InstallSnapshotAck,
    Message,
    RequestVote,
    SnapshotChunk,
    TimeoutNow,
    Vote,
)
from tinymq.raft.rules.recovery_epoch import MessageVerdict, judge_message

OLD, NEW = Replica(2, incarnation(2)), Replica(2, incarnation(9))
FIRST = membership()


def config_entry(index: int, term: int, listed: Membership) -> Entry:
    return make_entry(
        NewEntry(Kind.CONFIG, pack_membership(listed)),
        index=index,
        term=term,
        prev_crc=0,
        base_offset=0,
        append_time_us=1,
    )


def configs(entries: Sequence[Entry] = ()) -> Configs:
    made = Configs(Config(1, 0, FIRST))
    made.above = made.after(None, entries)
    return made


def test_until_it_is_applied_neither_the_old_nor_the_new_identity_counts() -> None:
    entry = config_entry(5, 2, FIRST.replacing([NEW]))
    log = configs([entry])
    assert (log.lists(OLD), log.lists(NEW)) == (True, False), (
        "the applied CONFIG decides; a CONFIG in the log is not enough"
    )
    assert (log.counts(OLD), log.counts(NEW)) == (False, False)
    assert log.counts(Replica(1, incarnation(1)))
    assert log.newest.has(NEW), "its vote counts: it votes only if it has applied the CONFIG"
    log.apply(entry)
    assert (log.lists(OLD), log.lists(NEW)) == (False, True)
    assert (log.counts(OLD), log.counts(NEW)) == (False, True)
    assert (log.applied.index, log.applied.term, log.above) == (5, 2, [])


def test_a_config_is_undone_with_its_entry() -> None:
    log = configs([config_entry(5, 2, FIRST.replacing([NEW]))])
    other = config_entry(5, 3, FIRST.replacing([Replica(3, incarnation(8))]))
    log.above = log.after(5, [other])
    assert log.newest.has(OLD)
    assert not log.newest.has(Replica(3, incarnation(3)))
    log.above = log.after(5, [])
    assert log.newest == FIRST


def test_the_next_config_waits_until_the_previous_one_is_applied() -> None:
    seen = [Replica(1, incarnation(1)), NEW, Replica(3, incarnation(8)), Replica(7, incarnation(7))]
    log = configs()
    first = log.replacement(seen)
    assert first is not None
    assert first.has(NEW)
    assert first.has(Replica(3, incarnation(3))), "the other replica has to wait"
    entry = config_entry(5, 2, first)
    log.above = log.after(None, [entry])
    assert log.replacement(seen) is None
    log.apply(entry)
    second = log.replacement(seen)
    assert second is not None
    assert (second.epoch, second.has(Replica(3, incarnation(8)))) == (3, True)
    entry = config_entry(6, 2, second)
    log.apply(entry)
    assert log.replacement(seen) is None


@pytest.mark.parametrize(
    ("replica", "may"),
    [
        (Replica(2, incarnation(2), 1), True),  # lost something: a higher count
        (Replica(2, incarnation(9)), True),  # another data directory
        (OLD, False),  # is listed
        (Replica(9, incarnation(9)), False),  # no member's broker
    ],
)
def test_replicas_that_may_be_listed_again(replica: Replica, may: bool) -> None:
    assert FIRST.may_list(replica) is may


def test_an_identity_that_was_replaced_is_never_listed_again() -> None:
    """Its disk may come back, and late acks from it may arrive."""
    second = FIRST.replacing([Replica(2, incarnation(2), 5)])
    assert not second.may_list(OLD)
    assert not second.may_list(Replica(2, incarnation(2), 4)), "nor with any lower count"
    third = second.replacing([NEW])
    assert not third.may_list(OLD)
    assert not third.may_list(Replica(2, incarnation(2), 5))
    assert third.retired == (OLD, Replica(2, incarnation(2), 5))
    for count in range(1, 20):
        third = third.replacing([Replica(2, incarnation(9), count)])
    assert len(third.retired) == RETIRED_MAX


@pytest.mark.parametrize(
    "after",
    [
        FIRST,  # the same epoch
        Membership(GROUP, 3, FIRST.replicas),
        Membership(GROUP, 2, FIRST.replicas[:2]),  # brokers stay
        Membership(GROUP, 2, tuple(reversed(FIRST.replicas))),
        Membership(GROUP, 2, (*FIRST.replicas[:2], Replica(4, incarnation(4)))),
    ],
)
def test_a_config_that_does_not_follow_is_refused_before_anything_is_done(after: Membership) -> None:
    log = configs()
    with pytest.raises(CorruptData):
        log.after(None, [config_entry(5, 2, after)])
    assert log.newest == FIRST


def test_a_config_of_an_older_recovery_epoch_does_not_follow() -> None:
    log = Configs(Config(1, 0, Membership(GROUP, 1, FIRST.replicas, recovery_epoch=7)))
    with pytest.raises(CorruptData):
        log.after(None, [config_entry(5, 2, Membership(GROUP, 2, FIRST.replicas, recovery_epoch=6))])


def test_a_forced_membership_counts_until_its_config_is_applied() -> None:
    log = configs()
    forced = FIRST.replacing([NEW])
    log.force(forced)
    assert log.counts(NEW)
    assert log.replacement([Replica(3, incarnation(8))]) is None
    log.release()
    assert log.counts(OLD)
    log.force(forced)
    log.apply(config_entry(5, 2, forced))
    assert log.forced is None
    assert log.counts(NEW)


def test_equal_logs_give_equal_checkpoints_with_their_config() -> None:
    config = Config(5, 2, FIRST.replacing([NEW]))
    packed = pack_checkpoint(config, b"state")
    assert packed == pack_checkpoint(Config(5, 2, FIRST.replacing([NEW])), b"state")
    assert parse_checkpoint(packed) == (config, b"state")
    for cut in range(len(packed) - len(b"state")):
        with pytest.raises(CorruptData):
            parse_checkpoint(packed[:cut])


ENTRY = chain([1])[0]
MESSAGES: list[Message] = [
    RequestVote(5, 1, 1, False, False, 0),
    Vote(5, True, False, 0),
    Append(5, 0, 0, 0, [ENTRY]),
    AppendAck(term=5, durable=1, received=1, conflict=False, next=0, next_term=0, commit=0, count=0),
    CommitNotice(5, 1, True),
    TimeoutNow(5),
    InstallSnapshot(term=5, index=9, entry_term=1, entry_crc=1, next_offset=1, append_time_us=1, size=1, crc=1),
    SnapshotChunk(5, 9, 1, 0, b"x"),
    InstallSnapshotAck(5, 9, 1, 0, 0),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_of_an_abandoned_history_change_nothing(message: Message) -> None:
    answers = isinstance(message, Vote | AppendAck | InstallSnapshotAck)
    leads = isinstance(message, Append | InstallSnapshot | SnapshotChunk)
    assert judge_message(3, 3, 9, message) is MessageVerdict.TAKE
    assert judge_message(3, 2, 5, message) is (MessageVerdict.TAKE if answers else MessageVerdict.DROP), (
        "a replica that is only behind may answer us"
    )
    assert judge_message(3, 2, 4, message) is MessageVerdict.DROP, "but may not raise our term"
    assert judge_message(2, 3, 5, message) is MessageVerdict.TAKE, "a replica that is behind keeps its history"
    assert judge_message(2, 3, 6, message) is (MessageVerdict.ABANDONED if leads else MessageVerdict.TAKE), (
        "our term belongs to no history"
    )
