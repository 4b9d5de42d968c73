"""Scenarios that a person can read, compared with what the code does. `scenarios/README.md` says how to read them.
`pytest tests/raft/test_scenarios.py --rewrite` rewrites the records: read the difference, and judge it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.raft.transcript import replayed
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.replica_log.log import Log
from tinymq.raft import Group, Host
from tinymq.raft.host import replicas
from tinymq.raft.host.repair import Repairs
from tinymq.raft.replica import elections, snapshot_receiver
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.replica.elections import Elections
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.roles import following, replication
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.roles.followers import Followers
from tinymq.raft.roles.following import Following
from tinymq.raft.roles.replication import Replication
from tinymq.raft.rules import log_matching
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.election import VoteAnswer, Voter, answer_vote
from tinymq.raft.rules.membership import Membership, Replica, quorum_index
from tinymq.raft.rules.messages import Append, AppendAck, Message, RequestVote
from tinymq.raft.rules.progress import Progress
from tinymq.raft.rules.read_index import ReadIndexes
from tinymq.raft.state.replica_state import ReplicaState

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    now = replayed(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(now)
    else:
        assert now == text


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_each_scenario_opens_with_what_it_shows(path: Path) -> None:
    prose, _, rest = path.read_text().partition("\n\n")
    assert len(prose) > 150, "a paragraph, please"
    assert not prose.startswith((">", "#"))
    assert "> " in rest


# ---- each scenario notices a broken rule ---------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def old_terms_commit_by_counting(patch: pytest.MonkeyPatch) -> None:
    def commit(membership: Membership, match: Mapping[int, int], commit: int, *_: int) -> int:
        return max(commit, quorum_index(membership, match))

    patch.setattr(replication, "leader_commit", commit)


def acks_of_any_term(patch: pytest.MonkeyPatch) -> None:
    real = RaftReplica.on_append_ack

    def on_ack(self: RaftReplica, peer: int, ack: AppendAck) -> None:
        object.__setattr__(ack, "term", self.state.term)
        real(self, peer, ack)

    patch.setattr(RaftReplica, "on_append_ack", on_ack)


def votes_are_counted(patch: pytest.MonkeyPatch) -> None:
    def record(self: Candidacy, voter: int) -> None:
        self.voters.add(next(b for b in (voter, *range(1, 6)) if b not in self.voters))

    patch.setattr(Candidacy, "record", record)


def whatever_follows_is_cut(patch: pytest.MonkeyPatch) -> None:
    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Match:
        entries = message.entries
        return log_matching.Match(message.prev_index + 1, entries, message.prev_index + len(entries))

    patch.setattr(following, "receive", receive)


def commits_are_not_clamped(patch: pytest.MonkeyPatch) -> None:
    real = Following.learn_commit

    def learn(self: Following, announced: int, verified: int) -> None:
        real(self, announced, self.state.log.last_index)

    patch.setattr(Following, "learn_commit", learn)


def answers_before_the_votes_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoteStore, "durable", lambda self, group: True)


def everything_counts_as_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "durable_index", property(lambda self: self.last_index))


def votes_whoever_leads(patch: pytest.MonkeyPatch) -> None:
    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        return answer_vote(dataclasses.replace(voter, hears_leader=False), candidate, request)

    patch.setattr(elections, "answer_vote", answer)


def votes_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    def answer(voter: Voter, candidate: int, request: RequestVote) -> VoteAnswer:
        return answer_vote(dataclasses.replace(voter, voted_for=None), candidate, request)

    patch.setattr(elections, "answer_vote", answer)


def nobody_steps_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CurrentRole, "check_quorum", lambda self: None)


def whoever_led_leads_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "stepped_down", lambda self, broker_id, term: self.leader_gone(broker_id))


def every_incarnation_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Configs, "lists", lambda self, replica: True)


def every_ack_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Configs, "counts", lambda self, replica: True)


def an_answer_to_any_read_id_will_do(patch: pytest.MonkeyPatch) -> None:
    real = ReadIndexes.answered
    patch.setattr(ReadIndexes, "answered", lambda self, peer, number: real(self, peer, max(number, 2)))


def every_vote_of_any_incarnation_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "lists", lambda self, broker_id, incarnation, count: True)


def nobody_takes_another_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replicas, "other_count", lambda membership, me: None)


def a_config_alone_is_no_news(patch: pytest.MonkeyPatch) -> None:
    real = Host._announce
    known: dict[Group, tuple[object, ...]] = {}

    def announce(self: Host, group: Group) -> None:
        now = (group.role, group.leader, group.term, group.replica.current.leading_term)
        if known.get(group) != now:
            known[group] = now
            real(self, group)

    patch.setattr(Host, "_announce", announce)


def an_offered_snapshot_is_always_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshot_receiver, "need_of", lambda log, commit, offer, most: snapshot_receiver.Need.SNAPSHOT)


def a_snapshot_vouches_for_the_whole_log(patch: pytest.MonkeyPatch) -> None:
    real = Following.vouch

    def vouch(self: Following, index: int) -> None:
        self.learn_commit(self.state.log.last_index, self.state.log.last_index)
        real(self, index)

    patch.setattr(Following, "vouch", vouch)


def what_was_acknowledged_is_still_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "conflicted", lambda self, index: self.restart(max(index, self.match + 1)))


def whoever_is_there_now_is_told(patch: pytest.MonkeyPatch) -> None:
    def post(self: ReplicaState, peer: int, message: Message) -> None:
        self.vote_barrier.post(lambda: self.env.send(peer, message))

    patch.setattr(ReplicaState, "post", post)


def strangers_are_heard(patch: pytest.MonkeyPatch) -> None:
    real = Membership.replica
    patch.setattr(Membership, "replica", lambda self, broker: real(self, broker) or Replica(broker, bytes(16)))


def acks_say_only_what_did_not_match(patch: pytest.MonkeyPatch) -> None:
    real = log_matching.receive

    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Conflict | log_matching.Match:
        decision = real(log, commit, message)
        if isinstance(decision, log_matching.Conflict):
            return log_matching.Conflict(message.prev_index, log.term_at(message.prev_index - 1) or 0)
        return decision

    patch.setattr(following, "receive", receive)


def appends_of_any_term(patch: pytest.MonkeyPatch) -> None:
    real = RaftReplica.on_append

    def on_append(self: RaftReplica, peer: int, message: Append) -> None:
        real(self, peer, dataclasses.replace(message, term=max(self.state.term, message.term)))

    patch.setattr(RaftReplica, "on_append", on_append)


def the_first_entry_of_a_log_stays(patch: pytest.MonkeyPatch) -> None:
    real = Log.truncate_from

    def truncate(self: Log, index: int) -> None:
        assert index > self.first_index
        real(self, index)

    patch.setattr(Log, "truncate_from", truncate)


def nobody_asks_who_does_without_it(patch: pytest.MonkeyPatch) -> None:
    async def may_begin(self: Repairs, group: Group) -> None:
        pass

    patch.setattr(Repairs, "may_begin", may_begin)


def no_recovery_epoch_is_compared(patch: pytest.MonkeyPatch) -> None:
    real = RaftReplica.receive
    patch.setattr(RaftReplica, "receive", lambda self, peer, message, recovery_epoch: real(self, peer, message, None))


def a_replica_that_lacks_entries_campaigns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Followers, "holds_all", lambda self, peer: True)


def a_sync_may_hang(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "sync_hangs", lambda self: False)


def only_the_applied_config_is_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Configs, "newest", property(lambda self: self.membership))


def what_is_listed_is_a_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Configs, "has_kept", Configs.lists)


NOTICED: list[tuple[str, Patch]] = [
    ("figure_8_commit", old_terms_commit_by_counting),
    ("stale_ack", acks_of_any_term),
    ("duplicate_vote", votes_are_counted),
    ("retransmission", whatever_follows_is_cut),
    ("commit_clamp", commits_are_not_clamped),
    ("notice_without_position", commits_are_not_clamped),
    ("vote_after_sync", answers_before_the_votes_are_synced),
    ("ack_after_sync", everything_counts_as_synced),
    ("prevote", votes_whoever_leads),
    ("chained_partition", votes_whoever_leads),
    ("check_quorum", nobody_steps_down),
    ("ended_leader", whoever_led_leads_on),
    ("isolated_leader", nobody_steps_down),
    ("amnesia", every_incarnation_votes),
    ("rejoining", every_ack_counts),
    ("next_disk", what_is_listed_is_a_member),
    ("behind_a_config", every_ack_counts),
    ("other_incarnations", every_ack_counts),
    ("other_incarnations", every_vote_of_any_incarnation_counts),
    ("old_disk", nobody_takes_another_count),
    ("old_disk_at_once", a_config_alone_is_no_news),
    ("snapshot_transfer", an_offered_snapshot_is_always_taken),
    ("snapshot_transfer", a_snapshot_vouches_for_the_whole_log),
    ("read_index", an_answer_to_any_read_id_will_do),
    ("strangers", strangers_are_heard),
    ("one_round_trip", acks_say_only_what_did_not_match),
    ("stale_leader", appends_of_any_term),
    ("snapshot_then_conflict", the_first_entry_of_a_log_stays),
    ("nobody_left_to_say", only_the_applied_config_is_asked),
    ("repair", every_incarnation_votes),
    ("repair_of_two", nobody_asks_who_does_without_it),
    ("forced_leadership", no_recovery_epoch_is_compared),
    ("transfer", a_replica_that_lacks_entries_campaigns),
    ("sync_hangs", a_sync_may_hang),
    ("uncommitted_of_old_leader", nobody_steps_down),
    ("forgetful_disk", what_was_acknowledged_is_still_there),
    ("vote_for_another", whoever_is_there_now_is_told),
    ("split_vote", votes_are_given_twice),
    ("power_cut_of_all", everything_counts_as_synced),
]


def test_every_scenario_has_a_mutant_that_it_notices() -> None:
    assert {name for name, _ in NOTICED} == {path.stem for path in FILES}


@pytest.mark.parametrize(("name", "mutant"), NOTICED, ids=[f"{n}, {m.__name__}" for n, m in NOTICED])
def test_the_scenario_notices_the_mutant(name: str, mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    mutant(monkeypatch)
    try:
        now = replayed(text)
    except AssertionError:
        return
    assert now != text
