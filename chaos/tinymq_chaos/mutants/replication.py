"""Mutants of the messages between leaders and followers, and of commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tinymq.format.entry import Entry, Kind
from tinymq.log.replica_log.reader import LogReader
from tinymq.raft.host.tick_schedule import TickSchedule
from tinymq.raft.peers import heartbeats
from tinymq.raft.replica.applier import Applier
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.roles.followers import Followers
from tinymq.raft.roles.following import Following
from tinymq.raft.roles.leadership import Leadership
from tinymq.raft.roles.replication import Replication
from tinymq.raft.rules import log_matching
from tinymq.raft.rules.commit import leader_commit
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.log_matching import Conflict, Match
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import Append, AppendAck, CommitNotice
from tinymq.raft.rules.progress import Progress
from tinymq.raft.state.replica_state import ReplicaState
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

DIVERGING = Focus(faults=("seesaw",), workloads=("idempotent",), latency_s=0.015, pace=0.5)
OVERTAKEN = Focus(faults=("seesaw",), workloads=("metadata", "churn", "lone"), latency_s=0.015, seconds=20.0)
STALE = Focus(faults=("stale", "seesaw"), workloads=("idempotent",), nodes=5, latency_s=0.015, pace=1.0, seconds=20.0)
STATES = Focus(
    faults=("stale", "wipe", "trim"), workloads=("idempotent",), segment_bytes=4 << 10, latency_s=0.015, pace=0.25
)
SEESAW = Focus(faults=("seesaw", "kill"), workloads=("idempotent",), nodes=5, pace=0.5, seconds=16.0)
BACKLOG = Focus(faults=("pause", "cut_link", "isolate"), workloads=("idempotent", "plain"), pace=0.15)
CUTS = ("cut_link", "isolate", "partition", "chain", "reset", "pause", "kill")


@mutant("1, 2: a follower's commit is clamped to the entries that messages of this term have verified", OVERTAKEN)
def commit_not_clamped(p: Patches) -> None:
    real = Following.learn_commit

    def learn_commit(self: Following, announced: int, verified: int) -> None:
        real(self, announced, self.state.log.last_index)

    def notify(self: Replication, peer: int, progress: object, commit: int, ack_wanted: bool) -> None:
        self.link.send(peer, CommitNotice(self.term, commit, ack_wanted))

    def confirm_reads(self: Leadership) -> None:
        state = self.state
        read_id = self.reads.begin(state.env.now())
        for peer in self.replication.progress if read_id is not None else ():
            state.env.send(peer, CommitNotice(self.term, state.commit_index, False, read_id or 0))

    p.replace(Following.learn_commit, learn_commit)
    p.replace(Replication.notify, notify)
    p.replace(Leadership.confirm_reads, confirm_reads)


@mutant("1: a state transfer moves the commit index no further than the state", STATES)
@replaces(Following.vouch)
def states_vouch_for_the_whole_log(real: Any, self: Following, index: int) -> None:
    self.learn_commit(self.state.log.last_index, self.state.log.last_index)
    real(self, index)


@mutant("2: entries that match are skipped, only a conflict truncates")
@replaces(log_matching.receive)
def matching_entries_truncated(
    real: Callable[..., Conflict | Match],
    log: log_matching.LogView,
    commit: int,
    message: Append,
) -> Conflict | Match:
    decision = real(log, commit, message)
    if isinstance(decision, Conflict) or message.prev_index < log.first_index:
        return decision
    cut = message.prev_index + 1 if message.prev_index < log.last_index else None
    return Match(cut, message.entries, message.prev_index + len(message.entries))


@mutant("3: acknowledgements of another term are dropped", STALE)
@replaces(RaftReplica.on_append_ack)
def acks_of_other_terms_count(real: Any, self: RaftReplica, peer: int, ack: AppendAck) -> None:
    if ack.term < self.state.term and not ack.conflict and self.current.leadership is not None:
        ack = replace(_clipped(ack, self.state.log.last_index), term=self.state.term, next=0, next_term=0)
    real(self, peer, ack)


@mutant("3: a follower acknowledges only entries verified in this term", OVERTAKEN)
def acks_tell_the_whole_log(p: Patches) -> None:
    """Acknowledge the index of the last entry, whoever wrote it, as stock PySyncObj does."""

    real = Replication.acknowledged

    def acknowledge(self: Following, peer: int) -> None:
        state = self.state
        last = state.log.durable_index
        ack = AppendAck(
            term=state.term,
            durable=last,
            received=last,
            conflict=False,
            next=0,
            next_term=0,
            commit=state.commit_index,
            count=state.me.count,
            read_id=self.read_id,
        )
        state.post(peer, ack)

    def acknowledged(self: Replication, peer: int, ack: AppendAck) -> bool:
        return real(self, peer, _clipped(ack, self.log.last_index))

    p.replace(Following.acknowledge, acknowledge)
    p.replace(Replication.acknowledged, acknowledged)


def _clipped(ack: AppendAck, last: int) -> AppendAck:
    """An ack of no more than `last`: a leader that is told more than it has would notice."""
    return replace(ack, durable=min(ack.durable, last), received=min(ack.received, last))


@mutant(
    "7: an acknowledgement waits for the sync",
    Focus(faults=("power_cut_all", "slow_disk"), workloads=("idempotent",), pace=0.5),
)
def acks_before_the_sync(p: Patches) -> None:
    """Followers acknowledge before their sync, and the leader counts its own entries before its sync."""
    real: Any = ReplicaState.__init__

    def init(self: ReplicaState, *, log: Any, **rest: Any) -> None:
        real(self, log=AllDurableLog(log), **rest)

    p.replace(ReplicaState.__init__, init)


class AllDurableLog:
    """A log that reports every appended entry as durable."""

    def __init__(self, log: Any) -> None:
        object.__setattr__(self, "_log", log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, "last_index" if name == "durable_index" else name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._log, name, value)


@mutant("7: the leader counts itself once it has synced", Focus(faults=("power_cut", "slow_disk", "isolate", "kill")))
@replaces(Replication.commit)
def leader_counts_itself_early(
    real: Callable[..., int], self: Replication, configs: Any, me: Replica, commit: int
) -> int:
    log = self.log
    self.log = AllDurableLog(log)  # type: ignore[assignment]
    try:
        return real(self, configs, me, commit)
    finally:
        self.log = log


@mutant(
    "11: a conflict is repaired in one round trip",
    Focus(faults=("isolate", "kill"), workloads=("idempotent",), nodes=5, pace=0.25),
)
def conflicts_back_off_by_one(p: Patches) -> None:
    real = log_matching.receive

    def receive(log: log_matching.LogView, commit: int, message: Append) -> Conflict | Match:
        decision = real(log, commit, message)
        if isinstance(decision, Conflict):
            return log_matching.Conflict(message.prev_index, log.term_at(message.prev_index - 1) or 0)
        return decision

    p.replace(log_matching.receive, receive)
    p.replace(log_matching.next_after_conflict, lambda log, ack: ack.next)


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
        hosts[id(self._peers._heartbeats)] = self

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
            if group is not None and group.term == term and not group.is_leader:
                group.replica.current.following.learn_commit(commit, group.log.last_index)
        return real_heard(self, peer, session, beat, *rest)

    p.replace(Host.__init__, init)
    p.replace(heartbeats.Heartbeats.next, next_beat)
    p.replace(heartbeats.Heartbeats.heard, heard)


@mutant("17: a message carries a bounded slice of the log", BACKLOG)
def slices_are_not_bounded(p: Patches) -> None:
    tail, read = LogReader.tail, LogReader.read
    many = 1 << 26  # reading a real file allocates as many bytes as are asked for
    p.replace(LogReader.tail, lambda self, index, bytes_max: tail(self, index, many))
    p.replace(LogReader.read, lambda self, index, bytes_max: read(self, index, many))


@mutant("18: the bytes in flight to one follower of one group are bounded", BACKLOG)
@replaces(Progress.may_send)
def followers_are_not_waited_for(real: Callable[..., bool], self: Progress, window_bytes: int) -> bool:
    return real(self, 1 << 40)


@mutant("15: events take effect at once")
def ticks_come_in_turns(p: Patches) -> None:
    """Send every 100 ms, as stock PySyncObj does."""

    def wake(self: TickSchedule, group: Any) -> None:
        self._due[group] = None
        if not self._turning and not self._stopped:
            self._turning = True
            self._clock.call_later(0.1, self._turn)

    p.replace(TickSchedule.wake, wake)
    p.replace(Followers.nothing_out, lambda self: False)  # otherwise a lone write does not wait for its turn


@mutant("entries of earlier terms are committed with one of the leader's own (paper, 5.4.2)", SEESAW)
@replaces(leader_commit)
def earlier_terms_committed_by_counting(
    _: Any, membership: Membership, match: Mapping[int, int], commit: int, first_of_term: int
) -> int:
    return leader_commit(membership, match, commit, 0)


@mutant("a majority commits", Focus(faults=CUTS))
def a_minority_commits(p: Patches) -> None:
    p.replace(Membership.quorum, property(lambda self: len(self.replicas) // 2))


@mutant("a majority commits, not a single replica", Focus(faults=CUTS))
@replaces(Replication.commit)
def one_replica_commits(_: Any, self: Replication, configs: Configs, me: Replica, commit: int) -> int:
    """Commit what one replica holds. Elections still need a majority."""
    reached = max(self.log.durable_index, *(self.progress[m].match for m in self.followers.members))
    return reached if reached >= self.first_of_term and reached > commit else commit


@mutant(
    "a leader serves once it has applied the entries of earlier terms",
    Focus(faults=("kill", "isolate"), workloads=("idempotent",), latency_s=0.015, pace=0.3),
)
def leads_before_its_noop_is_applied(p: Patches) -> None:
    real = CurrentRole.become_leader

    def become_leader(self: CurrentRole, origin: LeadershipOrigin) -> None:
        real(self, origin)
        self.machine.lead(self.leading().term)

    def apply(self: Applier, entry: Entry) -> None:
        if entry.header.kind == Kind.CONFIG:
            self.state.configs.apply(entry)
        self.machine.apply(entry)
        leadership = self.current.leadership
        if leadership is not None:
            leadership.leader_log.applied(entry)
            if entry.header.kind in (Kind.NOOP, Kind.CONFIG):
                leadership.list_replacement()

    p.replace(CurrentRole.become_leader, become_leader)
    p.replace(Applier.apply, apply)


@mutant("9, 10: an entry that cannot be applied ends its replica, and is not tried again", Focus(faults=("kill",)))
def apply_is_tried_again(p: Patches) -> None:
    """One broker's apply fails now and then.

    The failure is ignored, as in stock PySyncObj, and the entry is applied again.
    """
    real_apply, real_all = Applier.apply, Applier.apply_committed

    def apply(self: Applier, entry: Entry) -> None:
        if self.state.me.broker_id == 2 and entry.header.header_crc % 50 == 0:
            self.state.raft.applied_index = entry.index - 1
            raise ValueError("apply failed")
        real_apply(self, entry)

    def apply_committed(self: Applier) -> None:
        try:
            real_all(self)
        except ValueError:
            self.state.env.clock.call_later(0.05, self.state.env.wake)

    p.replace(Applier.apply, apply)
    p.replace(Applier.apply_committed, apply_committed)
