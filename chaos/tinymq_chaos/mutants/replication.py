"""Mutants of the messages between leaders and followers, and of commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinymq.format.entry import Entry, Kind
from tinymq.log.replica_log.reader import LogReader
from tinymq.raft.host.schedule import Schedule
from tinymq.raft.leader import leadership
from tinymq.raft.leader.leadership import Leadership
from tinymq.raft.peers import heartbeats
from tinymq.raft.replica import following, replica
from tinymq.raft.rules import log_matching
from tinymq.raft.rules.commit import leader_commit
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import Append, AppendAck, CommitNotice
from tinymq.raft.rules.progress import Progress
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

DIVERGING = Focus(faults=("seesaw",), workloads=("idempotent",), latency_s=0.015, pace=0.5)
OVERTAKEN = Focus(faults=("seesaw",), workloads=("metadata", "churn", "lone"), latency_s=0.015, seconds=20.0)
STALE = Focus(faults=("stale", "seesaw"), workloads=("idempotent",), nodes=5, latency_s=0.015, pace=1.0, seconds=20.0)
STATES = Focus(
    faults=("stale", "wipe", "trim"), workloads=("idempotent",), segment_bytes=4 << 10, latency_s=0.015, pace=0.25
)
SEESAW = Focus(faults=("seesaw", "kill"), workloads=("idempotent",), nodes=5, pace=0.5, seconds=16.0)
BACKLOG = Focus(faults=("pause", "cut_link", "isolate"), workloads=("idempotent", "plain"), pace=0.15)
CUTS = ("cut_link", "isolate", "partition", "chain", "reset", "pause", "kill")


@mutant("1, 2: a follower's commit is clamped to what messages of this term have verified", OVERTAKEN)
def commit_not_clamped(p: Patches) -> None:
    real = replica.RaftReplica._learn_commit

    def learn(self: replica.RaftReplica, announced: int, verified: int) -> None:
        real(self, announced, self._log.last_index)

    def tell(self: Leadership, peer: int, progress: object, commit: int, ack_wanted: bool) -> None:
        self._line.send(peer, CommitNotice(self.term, commit, ack_wanted))

    def ask_round(self: Leadership, commit: int) -> None:
        number = self.reads.begin(self._line.now())
        for peer in self.progress if number is not None else ():
            self._line.send(peer, CommitNotice(self.term, commit, False, number or 0))

    p.set(replica.RaftReplica, "_learn_commit", learn)
    p.set(Leadership, "_tell", tell)
    p.set(Leadership, "ask_round", ask_round)


@mutant("1: a state transfer moves the commit index no further than the state", STATES)
def states_vouch_for_the_whole_log(p: Patches) -> None:
    real = following.FollowingReplica.vouch

    def vouch(self: following.FollowingReplica, index: int) -> None:
        self._learn_commit(self._log.last_index, self._log.last_index)
        real(self, index)

    p.set(following.FollowingReplica, "vouch", vouch)


@mutant("2: entries that match are skipped, only a conflict truncates")
def matching_entries_truncated(p: Patches) -> None:
    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Conflict | log_matching.Match:
        decision = log_matching.receive(log, commit, message)
        if isinstance(decision, log_matching.Conflict) or message.prev_index < log.first_index:
            return decision
        cut = message.prev_index + 1 if message.prev_index < log.last_index else None
        return log_matching.Match(cut, message.entries, message.prev_index + len(message.entries))

    p.set(following, "receive", receive)


@mutant("3: acknowledgements of another term are dropped", STALE)
def acks_of_other_terms_count(p: Patches) -> None:
    real = replica.RaftReplica._on_ack

    def on_ack(self: replica.RaftReplica, peer: int, ack: AppendAck) -> None:
        if ack.term < self.term and not ack.conflict and self._leadership is not None:
            known = min(ack.durable, self._log.last_index), min(ack.received, self._log.last_index)
            ack = AppendAck(self.term, *known, False, 0, 0, ack.commit, ack.count, ack.round)
        real(self, peer, ack)

    p.set(replica.RaftReplica, "_on_ack", on_ack)


@mutant("3: what a follower acknowledges was verified in this term", OVERTAKEN)
def acks_tell_the_whole_log(p: Patches) -> None:
    """Acknowledge the index of the last entry, whoever wrote it, as stock PySyncObj does."""

    def send(
        self: Any, node: Any, reset: bool = False, nextNodeIdx: int = 0, success: bool = False, next_term: int = 0
    ) -> None:
        last = self._log.durable_index if success else 0
        ack = AppendAck(
            self.term,
            last,
            last,
            conflict=reset,
            next=nextNodeIdx,
            next_term=next_term,
            commit=self.commit_index,
            count=self._me.count,
            round=self._round,
        )
        self._post(int(node.id), ack)

    p.set(following.FollowingReplica, "_SyncObj__sendNextNodeIdx", send)
    p.wrap(Leadership, "acknowledged", _clipped)


def _clipped(real: Any) -> Any:
    def acknowledged(self: Leadership, peer: int, ack: AppendAck) -> bool:
        last = self._log.last_index
        clipped = replace(ack, durable=min(ack.durable, last), received=min(ack.received, last))
        return bool(real(self, peer, clipped))

    return acknowledged


@mutant(
    "7: an acknowledgement waits for the sync",
    Focus(faults=("power_cut_all", "slow_disk"), workloads=("idempotent",), pace=0.5),
)
def acks_before_the_sync(p: Patches) -> None:
    """Followers acknowledge before their sync, and the leader counts its own entries before its sync."""
    real: Any = replica.RaftReplica.__init__

    def init(self: replica.RaftReplica, group: Any, me: Any, log: Any, *rest: Any) -> None:
        real(self, group, me, AllDurableLog(log), *rest)

    p.set(replica.RaftReplica, "__init__", init)


class AllDurableLog:
    """A log that reports every appended entry as durable."""

    def __init__(self, log: Any) -> None:
        object.__setattr__(self, "_log", log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, "last_index" if name == "durable_index" else name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._log, name, value)


@mutant("7: the leader counts itself once it has synced", Focus(faults=("power_cut", "slow_disk", "isolate", "kill")))
def leader_counts_itself_early(p: Patches) -> None:
    real = Leadership.commit

    def commit(self: Leadership, configs: Any, me: Replica, known: int) -> int:
        log = self._log
        self._log = AllDurableLog(log)  # type: ignore[assignment]
        try:
            return real(self, configs, me, known)
        finally:
            self._log = log

    p.set(Leadership, "commit", commit)


@mutant(
    "11: a conflict is repaired in one round trip",
    Focus(faults=("isolate", "kill"), workloads=("idempotent",), nodes=5, pace=0.25),
)
def conflicts_back_off_by_one(p: Patches) -> None:
    real = log_matching.receive

    def receive(log: log_matching.LogView, commit: int, message: Append) -> log_matching.Conflict | log_matching.Match:
        decision = real(log, commit, message)
        if isinstance(decision, log_matching.Conflict):
            return log_matching.Conflict(message.prev_index, log.term_at(message.prev_index - 1) or 0)
        return decision

    p.set(following, "receive", receive)
    p.set(leadership, "next_after_conflict", lambda log, ack: ack.next)


@mutant(
    "11: a heartbeat says nothing of logs",
    DIVERGING,
    needs_simulator="what the heartbeat carries besides does not travel: all brokers have to be in one process",
)
def heartbeats_carry_a_log_position(p: Patches) -> None:
    """A heartbeat carries a commit index and overtakes appends: the follower takes it up to its own last entry."""
    from tinymq.raft.host.host import Host

    said: dict[tuple[int, int, int], dict[Any, tuple[int, int]]] = {}  # (sender, receiver, sequence): log positions
    hosts: dict[int, Host] = {}  # of each Heartbeats object
    real_init, real_next, real_heard = Host.__init__, heartbeats.Heartbeats.next, heartbeats.Heartbeats.heard

    def init(self: Host, *args: Any, **options: Any) -> None:
        real_init(self, *args, **options)
        hosts[id(self._neighbours._heartbeats)] = self

    def next_beat(self: heartbeats.Heartbeats, peer: int, *rest: Any) -> Any:
        beat = real_next(self, peer, *rest)
        host = hosts[id(self)]
        led = {g.id: (g.term, g.commit_index) for g in host.groups.values() if g.is_leader}
        said[host.broker_id, peer, beat.heartbeat.sequence] = led
        return beat

    def heard(self: heartbeats.Heartbeats, peer: int, session: int, beat: Any, *rest: Any) -> Any:
        host = hosts[id(self)]
        for group_id, (term, commit) in said.get((peer, host.broker_id, beat.sequence), {}).items():
            group = host.groups.get(group_id)
            if group is not None and group.term == term and group.core._leadership is None:
                group.core._learn_commit(commit, group.log.last_index)
        return real_heard(self, peer, session, beat, *rest)

    p.set(Host, "__init__", init)
    p.set(heartbeats.Heartbeats, "next", next_beat)
    p.set(heartbeats.Heartbeats, "heard", heard)


@mutant("17: a message carries a bounded slice of the log", BACKLOG)
def slices_are_not_bounded(p: Patches) -> None:
    tail, read = LogReader.tail, LogReader.read
    many = 1 << 26  # reading a real file allocates as many bytes as are asked for
    p.set(LogReader, "tail", lambda self, index, bytes_max: tail(self, index, many))
    p.set(LogReader, "read", lambda self, index, bytes_max: read(self, index, many))


@mutant("18: what is out to one follower of one group is bounded", BACKLOG)
def followers_are_not_waited_for(p: Patches) -> None:
    real = Progress.may_send

    def may_send(self: Progress, window_bytes: int) -> bool:
        return real(self, 1 << 40)

    p.set(Progress, "may_send", may_send)


@mutant("15: what happens is acted upon at once")
def ticks_come_in_turns(p: Patches) -> None:
    """Send every 100 ms, as stock PySyncObj does."""

    def wake(self: Schedule, group: Any) -> None:
        self._due[group] = None
        if not self._turning and not self._stopped:
            self._turning = True
            self._clock.call_later(0.1, self._turn)

    p.set(Schedule, "wake", wake)
    p.set(Leadership, "nothing_out", lambda self: False)  # otherwise a lone write does not wait for its turn


@mutant("entries of earlier terms are committed with one of the leader's own (paper, 5.4.2)", SEESAW)
def earlier_terms_committed_by_counting(p: Patches) -> None:
    def commit(membership: Membership, match: Mapping[int, int], known: int, first_of_term: int) -> int:
        return leader_commit(membership, match, known, 0)

    p.set(leadership, "leader_commit", commit)


@mutant("a majority commits", Focus(faults=CUTS))
def a_minority_commits(p: Patches) -> None:
    p.set(Membership, "quorum", property(lambda self: len(self.replicas) // 2))


@mutant("a majority commits, and not whoever has it first", Focus(faults=CUTS))
def one_replica_commits(p: Patches) -> None:
    """Commit what one replica holds. Elections still need a majority."""

    def commit(self: Leadership, configs: Configs, me: Replica, known: int) -> int:
        reached = max(self._log.durable_index, *(self.progress[m].match for m in self.members))
        return reached if reached >= self.first_of_term and reached > known else known

    p.set(Leadership, "commit", commit)


@mutant(
    "a leader serves once it has applied what earlier terms committed",
    Focus(faults=("kill", "isolate"), workloads=("idempotent",), latency_s=0.015, pace=0.3),
)
def leads_before_its_noop_is_applied(p: Patches) -> None:
    real = replica.RaftReplica._SyncObj__onBecomeLeader

    def become(self: replica.RaftReplica) -> None:
        real(self)
        leadership = self._leadership
        if leadership is not None:
            self._machine.lead(leadership.term)

    def apply(self: replica.RaftReplica, entry: Entry) -> None:
        if entry.header.kind == Kind.CONFIG:
            self._configs.apply(entry)
        self._machine.apply(entry)
        leadership = self._leadership
        if leadership is not None:
            if entry.index >= leadership.first_of_term:
                leadership.uncommitted_bytes -= entry.size
            if entry.header.kind in (Kind.NOOP, Kind.CONFIG):
                self._list_anew()

    p.set(replica.RaftReplica, "_SyncObj__onBecomeLeader", become)
    p.set(replica.RaftReplica, "_apply", apply)


@mutant("9, 10: an entry that cannot be applied ends its replica, and is not tried again", Focus(faults=("kill",)))
def apply_is_tried_again(p: Patches) -> None:
    """One broker's apply fails now and then.

    The failure is ignored, as in stock PySyncObj, and the entry is applied again.
    """
    real_apply, real_all = replica.RaftReplica._apply, replica.RaftReplica._SyncObj__applyLogEntries

    def apply(self: replica.RaftReplica, entry: Entry) -> None:
        if self._me.broker_id == 2 and entry.header.header_crc % 50 == 0:
            self._SyncObj__raftLastApplied = entry.index - 1
            raise ValueError("apply failed")
        real_apply(self, entry)

    def apply_all(self: replica.RaftReplica) -> bool:
        try:
            return real_all(self)
        except ValueError:
            self._around.clock.call_later(0.05, self._around.wake)
            return False

    p.set(replica.RaftReplica, "_apply", apply)
    p.set(replica.RaftReplica, "_SyncObj__applyLogEntries", apply_all)
