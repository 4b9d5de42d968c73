"""Hazards of stock PySyncObj (docs/raft.md has the table), with a test for each fix. Where a fix can be taken out, a
mutant proves that the test notices. Other hazards have modules of their own: elections, incarnations, power cuts,
storms.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable

import pysyncobj.pickle
import pytest
from pysyncobj import SyncObj

from tests.raft.harness import LIMITS, Cluster, Recorder, simulate
from tests.raft.test_flow import a_large_entry_travels_whole
from tests.raft.test_power_cut import acknowledge_before_the_sync
from tests.raft.traffic import append_to, appends, deliver, entry_after, fails, listen
from tests.raft.values import GROUP, chain
from tests.seeds import first_of
from tinymq.base.config import KIB, Limits
from tinymq.base.errors import CorruptData, NotLeader, UnsupportedVersion
from tinymq.format.entry import ENTRY_VERSION, Entry, Kind, NewEntry
from tinymq.format.feature_level import ENTRIES
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.proto import peer_pb2 as pb
from tinymq.raft import Role
from tinymq.raft.roles import following, replication
from tinymq.raft.roles.candidacy import Candidacy
from tinymq.raft.rules import log_matching
from tinymq.raft.rules.messages import Append, AppendAck, to_wire
from tinymq.raft.state import pysyncobj_seams
from tinymq.raft.state.pysyncobj_state import PySyncObjState
from tinymq.raft.state.vote_barrier import Action, VoteBarrier

# ---- 2: acknowledged entries are not truncated and not resent ----------------------------------------------


async def each_entry_is_sent_once(cluster: Cluster) -> None:
    await cluster.commit(b"x")
    await cluster.settle()
    heard = listen(cluster)
    for follower in cluster.followers():
        follower.disk.delay_s = (0.02, 0.02)  # acks come much later, one by one
    for i in range(30):
        cluster.leader().propose(b"%d" % i)
        await cluster.run_for(0.003)
    await cluster.settle()
    for follower in cluster.followers():
        sent = sum(a.entries for a in appends(heard, follower.id))
        assert sent == 30, f"{sent} entries were sent for 30"


def test_2_each_entry_is_sent_once() -> None:
    simulate(each_entry_is_sent_once)


def test_mutant_2_acks_pull_next_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replication.Progress.acknowledged

    def acknowledged(self: replication.Progress, ack: AppendAck, now: float) -> bool:
        moved = real(self, ack, now)
        self.next = ack.durable + 1
        return moved

    monkeypatch.setattr(replication.Progress, "acknowledged", acknowledged)
    fails(each_entry_is_sent_once)


async def an_older_append_takes_nothing_back(cluster: Cluster) -> None:
    for i in range(10):
        await cluster.commit(b"%d" % i)
    await cluster.settle()
    leader, follower = cluster.leader(), cluster.followers()[0]
    first = await leader.process.run(leader.group().log.reader.read(2, 1))
    last = follower.group().log.last_index
    deliver(follower, leader.id, Append(1, 1, 0, 1, first[:1]))
    assert follower.group().log.last_index == last
    assert follower.group().role is Role.FOLLOWER


def test_2_an_older_append_takes_nothing_back() -> None:
    simulate(an_older_append_takes_nothing_back)


def test_mutant_2_an_append_truncates_matching_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Conflict | log_matching.Match:
        return log_matching.Match(message.prev_index + 1, message.entries, message.prev_index + len(message.entries))

    monkeypatch.setattr(following, "receive", receive)
    fails(an_older_append_takes_nothing_back)


# ---- 4: votes are attributed -------------------------------------------------------------------------------


def test_mutant_4_anonymous_votes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.raft.test_incarnations import test_a_vote_counts_once

    def record(self: Candidacy, voter: int) -> None:
        self.voters.add(next(b for b in (voter, *range(1, 6)) if b not in self.voters))

    monkeypatch.setattr(Candidacy, "record", record)
    with pytest.raises(AssertionError):
        test_a_vote_counts_once()


# ---- 5, 6, 21: checkpoints ---------------------------------------------------------------------------------


async def restart_from_a_checkpoint(cluster: Cluster) -> None:
    for i in range(60):
        await cluster.commit(b"%d" % i + bytes(1000))
    await cluster.settle()
    await cluster.run_for(1.0)
    broker = cluster.followers()[0]
    state, last = broker.machine().state, broker.machine().index
    broker.kill()
    await broker.start()
    assert broker.machine().index >= last, "entries known to be committed are applied before any message arrives"
    assert broker.machine().entries[0].index > 1, "it continued from a checkpoint"
    assert broker.machine().state == state
    await cluster.settle()
    await cluster.check_logs()


def test_6_a_restart_keeps_the_log_and_goes_on_from_the_checkpoint() -> None:
    simulate(restart_from_a_checkpoint)


def test_5_a_checkpoint_that_the_state_machine_refuses_is_damage_and_is_repaired() -> None:
    async def scenario(cluster: Cluster) -> None:
        await restart_from_a_checkpoint(cluster)
        broker = cluster.followers()[0]
        broker.kill()
        Recorder.load = refuse  # type: ignore[method-assign]
        try:
            await broker.start()
            assert broker.group().role is Role.QUARANTINED
            assert "nonsense" in str(broker.group().failure)
        finally:
            Recorder.load = real  # type: ignore[method-assign]
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 5.0, "it begins anew")
        await cluster.settle()
        await cluster.check_logs()

    def refuse(self: Recorder, state: bytes) -> None:
        raise CorruptData("nonsense")

    real = Recorder.load
    simulate(scenario)


def test_21_a_trimmed_log_without_its_checkpoint_is_quarantined() -> None:
    async def scenario(cluster: Cluster) -> None:
        await restart_from_a_checkpoint(cluster)
        broker = cluster.followers()[0]
        log = broker.group().log
        broker.process.do(lambda: log.remove_before(log.last_index))
        await cluster.run_for(0.5)
        assert log.first_index > 1
        await cluster.commit(b"more")
        await cluster.settle()
        broker.kill()
        for path in broker.files.paths():
            if path.endswith(".state"):
                broker.files.remove(path)
        await broker.start()
        assert broker.group().role is Role.QUARANTINED
        await cluster.commit(b"the others go on")

    simulate(scenario)


def test_21_a_trimmed_log_with_its_checkpoint_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await restart_from_a_checkpoint(cluster)
        broker = cluster.followers()[0]
        log = broker.group().log
        broker.process.do(lambda: log.remove_before(log.last_index))
        await cluster.run_for(0.5)
        state, first = broker.machine().state, log.first_index
        assert first > 1
        broker.kill()
        await broker.start()
        assert broker.group().log.first_index == first
        assert broker.machine().state == state
        await cluster.commit(b"more")
        await cluster.settle()
        await cluster.check_logs()

    simulate(scenario)


# ---- 7: durable before any message leaves --------------------------------------------------------------------


async def the_leader_counts_itself_after_its_sync(cluster: Cluster) -> None:
    await cluster.commit(b"x")
    await cluster.settle()
    leader, (_, other) = cluster.leader(), cluster.followers()
    other.kill()
    await cluster.run_for(0.3)
    hung = leader.disk.hung = cluster.loop.create_future()
    position = leader.propose(b"y")
    await cluster.run_for(0.5)
    assert leader.group().commit_index < position.index, "one disk of three is no majority"
    leader.disk.hung = None
    hung.set_result(None)
    await cluster.until(lambda: leader.machine().index >= position.index, 1.0)


def test_7_the_leader_counts_itself_after_its_sync() -> None:
    simulate(the_leader_counts_itself_after_its_sync)


def test_mutant_7_the_leader_counts_itself_before_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge_before_the_sync(monkeypatch)
    fails(the_leader_counts_itself_after_its_sync)


async def a_vote_leaves_after_its_sync(cluster: Cluster) -> None:
    await cluster.settle()
    leader, (candidate, voter) = cluster.leader(), cluster.followers()
    await cluster.run_for(0.5)
    hung = voter.disk.hung = cluster.loop.create_future()
    heard = listen(cluster)
    leader.kill()
    await cluster.until(lambda: voter.group().replica.state.voted_for == candidate.id and voter.group().term > 1, 3.0)
    await cluster.run_for(0.1)
    assert not [m for a, _, _, m, _ in heard if a == voter.id and m.HasField("vote") and not m.vote.pre]
    voter.disk.hung = None
    hung.set_result(None)
    await cluster.until(cluster.leaders, 3.0)


def test_7_a_vote_leaves_after_its_sync() -> None:
    simulate(a_vote_leaves_after_its_sync)


def test_mutant_7_a_vote_leaves_before_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VoteStore, "durable", lambda self, group: True)
    fails(a_vote_leaves_after_its_sync)


async def a_candidate_counts_itself_after_its_sync(cluster: Cluster) -> None:
    """In a group of one, no other broker's sync can stand in for its own."""
    await cluster.commit(b"x")
    await cluster.settle()
    only = cluster.leader()
    term = only.group().term
    only.kill()
    await only.start()
    assert only.group().term == term
    hung = only.disk.hung = cluster.loop.create_future()
    await cluster.until(lambda: only.group().term > term, 3.0)
    await cluster.run_for(1.0)
    assert only.group().role is Role.CANDIDATE, "after a power cut it would use the same term a second time"
    only.disk.hung = None
    hung.set_result(None)
    await cluster.until(cluster.leaders, 3.0)


def test_7_a_candidate_counts_itself_after_its_sync() -> None:
    simulate(a_candidate_counts_itself_after_its_sync, nodes=1)


def test_mutant_7_a_candidate_counts_itself_before_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(self: VoteBarrier, action: Action, kind: Hashable = None) -> None:
        return action() if kind == "our own vote" else real(self, action, kind)

    real = VoteBarrier.post
    monkeypatch.setattr(VoteBarrier, "post", post)
    fails(a_candidate_counts_itself_after_its_sync, nodes=1)


# ---- 8, 20: membership comes from committed CONFIG entries ---------------------------------------


def test_8_an_ack_from_a_broker_that_is_not_a_member_is_ignored() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader = cluster.leader()
        last = leader.group().log.last_index
        deliver(
            leader,
            9,
            AppendAck(term=1, durable=last, received=last, conflict=False, next=0, next_term=0, commit=last, count=0),
        )
        deliver(
            leader, 9, AppendAck(term=1, durable=0, received=0, conflict=True, next=1, next_term=0, commit=0, count=0)
        )
        await cluster.commit(b"y")
        assert leader.group().role is Role.LEADER

    simulate(scenario)


def test_20_a_leader_appends_nothing_above_the_feature_level() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        leader = cluster.leader()
        group, last = leader.group(), leader.group().log.last_index
        newer = ((Kind.COMMAND, 2), (Kind.COMMAND, 3), (Kind.DATA, 2), (Kind.STAGED, 1), (Kind.PUBLISH, 1))
        for kind, version in newer:
            with pytest.raises(UnsupportedVersion, match="this cluster is at 1"):
                group.propose(NewEntry(kind, b"", version=version))
        assert group.log.last_index == last
        leader.host.feature_level = 2
        group.propose(NewEntry(Kind.COMMAND, b"", version=2))
        assert group.log.last_index == last + 1

    simulate(scenario)


UNKNOWN = [(kind, ENTRY_VERSION) for kind in (*sorted(set(Kind) - ENTRIES.keys()), 0, 99)]
UNKNOWN += [(kind, max(versions) + 1) for kind, versions in ENTRIES.items()]


@pytest.mark.parametrize(("kind", "version"), UNKNOWN)
def test_20_an_entry_of_an_unknown_kind_or_version_stops_the_replica(kind: int, version: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        follower = cluster.followers()[0]
        before = follower.group().log.last_index
        deliver(follower, cluster.leader().id, append_to(follower, entry_after(follower, kind, 1, b"", version)))
        assert follower.group().role is Role.FAILED
        assert isinstance(follower.group().failure, UnsupportedVersion)
        assert follower.group().log.last_index == before, "and the replica keeps no part of it"
        await cluster.commit(b"the others go on")

    simulate(scenario)


# ---- 9, 10: apply ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("a bug"), AssertionError("a bug")])
def test_10_an_apply_that_raises_stops_its_replica_and_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """`apply` must not raise. If it does, no broker stalls, and no entry is skipped or applied twice."""
    tries: list[int] = []
    real = Recorder.apply

    def apply(self: Recorder, entry: Entry) -> None:
        if entry.payload == b"poison" and self._broker_id == 2:
            tries.append(entry.index)
            raise error
        real(self, entry)

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.commit(b"poison")
        for i in range(10):
            await cluster.commit(b"%d" % i)
        await cluster.run_for(5.0)
        poisoned = cluster.brokers[2]
        assert len(tries) == 1
        assert poisoned.group().failure is not None
        assert poisoned.machine().index == tries[0] - 1
        assert all(b.host.alive(2) for b in cluster.running), "its broker keeps running"

    monkeypatch.setattr(Recorder, "apply", apply)
    simulate(scenario)


# ---- 11: a divergent tail ----------------------------------------------------------------------------------


async def a_divergent_tail_is_repaired_at_once(cluster: Cluster) -> None:
    for i in range(20):
        await cluster.commit(b"%d" % i)
    await cluster.settle()
    old = cluster.leader()
    cluster.isolate(old.id)
    for i in range(300):
        old.propose(b"lost %d" % i)
    await cluster.until(lambda: [b for b in cluster.leaders() if b is not old], 3.0)
    for i in range(100):
        await cluster.commit(b"new %d" % i)
    assert old.group().log.last_index > 300
    first, new = cluster.leader(), next(b for b in cluster.followers() if b is not old)
    first.process.do(lambda: first.host.transfer(GROUP, new.id))
    await cluster.until(lambda: new in cluster.leaders(), 1.0)  # it probes in the middle of the divergent tail first
    heard = listen(cluster)
    cluster.heal()
    took = await cluster.until(lambda: old.machine().index == new.machine().index, 2.0)
    assert took < 0.3, took
    conflicts = [m for a, _, _, m, _ in heard if a == old.id and m.HasField("append_ack") and m.append_ack.conflict]
    # one conflict for each time the bulk connection opened
    assert len(conflicts) <= 2, f"{len(conflicts)} conflict answers"
    assert sum(a.entries for a in appends(heard, old.id)) < 2 * 130
    await cluster.settle()
    await cluster.check_logs()


@pytest.mark.parametrize("seed", first_of(range(5), 1))
def test_11_a_divergent_tail_is_repaired_at_once(seed: int) -> None:
    simulate(a_divergent_tail_is_repaired_at_once, seed)


def test_mutant_11_a_conflict_backs_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = log_matching.receive

    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Conflict | log_matching.Match:
        decision = real(log, commit, message)
        if isinstance(decision, log_matching.Conflict):
            return log_matching.Conflict(message.prev_index, log.term_at(message.prev_index - 1) or 0)
        return decision

    monkeypatch.setattr(following, "receive", receive)
    monkeypatch.setattr(replication, "next_after_conflict", lambda log, ack: ack.next)
    fails(a_divergent_tail_is_repaired_at_once)


def test_11_a_heartbeat_carries_no_log_position() -> None:
    """So a heartbeat that overtakes an Append cannot move an index back."""
    fields = {f.name for f in pb.Heartbeat.DESCRIPTOR.fields}
    assert not fields & {"commit", "prev_index", "last_index", "term"}


def test_11_the_commit_index_survives_a_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        for i in range(20):
            await cluster.commit(b"%d" % i)
        await cluster.settle()
        await cluster.run_for(1.0)
        commit = cluster.leader().group().commit_index
        for broker in cluster.brokers.values():
            broker.power_cut()
        cluster.isolate(1)
        await cluster.brokers[1].start()
        assert cluster.brokers[1].group().commit_index == commit
        assert cluster.brokers[1].machine().index == commit

    simulate(scenario)


# ---- 16, and other code that must never run ----------------------------------------------------------------------


def test_16_nothing_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a pickle")

    for name in ("loads", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
        monkeypatch.setattr(pysyncobj.pickle, name, refuse)
    simulate(restart_from_a_checkpoint)


def test_16_a_frame_that_is_damaged_changes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        follower = cluster.followers()[0]
        before = follower.group().status()
        head, body = to_wire(GROUP, append_to(follower, entry_after(follower, Kind.DATA, 1, b"payload")))
        damaged = bytearray(b"".join(body))
        damaged[-1] ^= 1
        follower.process.do(lambda: follower.host._router.on_message(1, head, bytes(damaged)))
        assert follower.group().status() == before
        await cluster.commit(b"y")
        await cluster.settle()

    simulate(scenario)


def stock_sends_a_large_entry(raft: PySyncObjState) -> None:
    """In chunks of 64 KiB, to a follower that is connected and behind."""
    for node in raft._SyncObj__otherNodes:
        raft._SyncObj__connectedNodes.add(node)
        raft._SyncObj__raftNextIndex[node] = raft.commit_index
    SyncObj._SyncObj__sendAppendEntries(raft)


NEVER: list[tuple[str, Callable[[PySyncObjState], object]]] = [
    ("5, 6, 21", lambda c: c._SyncObj__loadDumpFile(clearJournal=True)),
    ("6", lambda c: c._SyncObj__deleteEntriesTo(1)),
    ("6, 21", lambda c: c._SyncObj__raftLog.clear()),
    ("6", lambda c: c._SyncObj__raftLog.deleteEntriesTo(1)),
    ("2", lambda c: c._SyncObj__raftLog.deleteEntriesFrom(1)),
    ("6", lambda c: c._SyncObj__raftLog.add(b"", 2, 1)),
    ("8, 20", lambda c: c._SyncObj__changeCluster(["add", "x"])),
    ("8, 20", lambda c: c._SyncObj__doChangeCluster(["rem", "x"])),
    ("12", stock_sends_a_large_entry),
    ("12, 17", lambda c: c._SyncObj__getEntries(1, None, 64 * KIB)),
    ("16", lambda c: c._SyncObj__doApplyCommand(b"")),
    ("16", lambda c: pysyncobj_seams.NoTransport().send(pysyncobj_seams.PeerNode(2), {})),
    ("19", lambda c: c._applyCommand(b"", None)),
    ("19", lambda c: c._checkCommandsToApply()),
]


@pytest.mark.parametrize(("hazards", "call"), NEVER, ids=[h for h, _ in NEVER])
def test_stock_paths_refuse(hazards: str, call: Callable[[PySyncObjState], object]) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(bytes(100 * KIB))
        raft = cluster.leader().group().replica.state.raft
        with pytest.raises(AssertionError, match=r"hazard|PySyncObj"):
            call(raft)
        assert raft._SyncObj__conf.fullDumpFile is None
        assert raft._SyncObj__conf.dynamicMembershipChange is False

    simulate(scenario, limits=Limits())


STOCK_CODE_THAT_RUNS = {
    "__init__",  # once
    "__setState", "__setCurrentTerm", "__getCurrentLogIndex", "__getCurrentLogTerm",
    "__initInTickThread", "__generateRaftTimeout", "__bindMethods", "__regenerateEnabledCodeVersion",
}  # fmt: skip


def test_hardly_any_stock_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elections, writes of all sizes, a divergent tail and restarts all run through our overrides."""
    ran: set[str] = set()

    def watched(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            ran.add(name.removeprefix("_SyncObj"))
            return real(*args, **options)

        return call

    for name, value in list(vars(SyncObj).items()):
        if callable(value) and not (name.startswith("__") and name != "__init__"):
            monkeypatch.setattr(SyncObj, name, watched(name, value))
    simulate(a_divergent_tail_is_repaired_at_once)
    simulate(restart_from_a_checkpoint)
    simulate(a_large_entry_travels_whole, limits=Limits())
    assert "__init__" in ran
    assert ran <= STOCK_CODE_THAT_RUNS, sorted(ran - STOCK_CODE_THAT_RUNS)


# ---- 19: no queue outlives a term --------------------------------------------------------------------------


def test_19_a_follower_forwards_nothing_and_keeps_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        follower = cluster.followers()[0]
        last = follower.group().log.last_index
        with pytest.raises(NotLeader) as refused:
            follower.group().propose(NewEntry(Kind.DATA, b"y"))
        assert refused.value.detail["leader"] == str(cluster.leader().id)
        await cluster.run_for(2.0)
        assert [b.group().log.last_index for b in cluster.running] == [last] * 3

    simulate(scenario)


def test_19_a_proposal_of_a_lost_term_is_appended_by_no_other_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        old = cluster.leader()
        cluster.isolate(old.id)
        old.propose(b"seq=7")
        await cluster.until(lambda: [b for b in cluster.leaders() if b is not old], 3.0)
        await cluster.commit(b"seq=7")
        cluster.heal()
        await cluster.settle()
        assert [b.machine().payloads for b in cluster.running] == [[b"x", b"seq=7"]] * 3
        assert [p.term for p in old.machine().unknown] == [1]

    simulate(scenario)


def test_entries_of_earlier_terms_are_committed_with_one_of_the_leaders_own() -> None:
    """The Raft paper, figure 8. Stock PySyncObj is right here, and so is this code."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, (one, other) = cluster.leader(), cluster.followers()
        one.disk.delay_s = other.disk.delay_s = (0.05, 0.05)
        leader.propose(b"in doubt")
        await cluster.until(lambda: one.group().log.last_index == other.group().log.last_index == 4, 1.0)
        leader.kill()
        await cluster.until(cluster.leaders, 3.0)
        successor = cluster.leader()
        assert successor.machine().payloads == [b"x", b"in doubt"]
        terms = [e.term for e in successor.machine().entries]
        assert terms == sorted(terms)
        assert terms[-1] > 1

    assert [e.term for e in chain([1, 2])] == [1, 2]
    simulate(scenario, limits=LIMITS)
