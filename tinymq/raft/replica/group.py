"""One Raft group on this broker, as the rooms above see it: they propose, read and ask for its status."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tinymq.base.clock import within
from tinymq.base.errors import CorruptData, DeadlineExceeded, NotReady, TinymqError
from tinymq.base.types import GroupId, Position
from tinymq.format.entry import NewEntry
from tinymq.log.replica_log.log import Log
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.explanation import explain_candidate, explain_learner, explain_observer
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import ReplicaReport
from tinymq.raft.state.env import StateMachine


class Role(Enum):
    """A replica's part in its group."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    OBSERVER = "observer"  # CONFIG lists no replica of this broker, which follows without a vote by design
    LEARNER = "learner"  # its disk knows of no CONFIG that lists this incarnation: it has data, but no vote
    QUARANTINED = "quarantined"  # its log is damaged: it serves and answers nothing
    FAILED = "failed"  # its disk refused, an entry is of an unknown version, or an invariant is broken


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A replica at one moment. Indexes are Raft's; `high_watermark` and `log_start` are offsets."""

    group: GroupId
    role: Role
    term: int
    leader: int | None
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    high_watermark: int
    log_start: int
    chain_crc: int  # header crc of the entry at commit_index: equal on equal logs
    reason: str
    size_bytes: int


class Group:
    """A replica of one group. Only the broker's event loop calls it."""

    def __init__(self, group_id: GroupId, log: Log, replica: RaftReplica, machine: StateMachine) -> None:
        self.id = group_id
        self.log = log
        self.machine = machine
        self.repairing = ""  # the damage that this replica recovers from; "" without damage
        self.stuck = ""  # the reason why it cannot catch up by itself; "" if it can
        self._replica = replica

    @property
    def replica(self) -> RaftReplica:
        """The replica itself. Only the host may call it."""
        return self._replica

    def become(self, other: Group) -> None:
        """Take the log and the replica of `other`, which was opened in this one's place. Only the host may call it."""
        self.log, self._replica, self.stuck = other.log, other.replica, ""

    @property
    def role(self) -> Role:
        state = self._replica.state
        failure = state.failure
        if failure is None:  # asked for at every tick: the usual answers come first
            if self._replica.current.leadership is not None:
                return Role.LEADER
            if state.is_member:
                return Role.CANDIDATE if state.is_candidate else Role.FOLLOWER
        elif not isinstance(failure, NotReady):
            return Role.QUARANTINED if isinstance(failure, CorruptData) else Role.FAILED
        elif state.is_member:  # the host opens it again
            return Role.FOLLOWER
        return Role.OBSERVER if state.is_observer else Role.LEARNER

    @property
    def term(self) -> int:
        return self._replica.state.term

    @property
    def leader(self) -> int | None:
        """The leader's broker as known here, or None. It may have lost its leadership already."""
        return self._replica.state.leader_id

    @property
    def is_leader(self) -> bool:
        return self._replica.current.leadership is not None

    @property
    def commit_index(self) -> int:
        return self._replica.state.commit_index

    @property
    def applied_index(self) -> int:
        return self._replica.state.applied_index

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that was committed *and applied* here. Clients read only below it."""
        return self._replica.applier.high_watermark

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes that this leader has appended and not applied yet; 0 when this replica does not lead."""
        leadership = self._replica.current.leadership
        return 0 if leadership is None else leadership.leader_log.uncommitted_bytes

    @property
    def origin(self) -> LeadershipOrigin | None:
        """How the leadership here came about; None when this replica does not lead."""
        leadership = self._replica.current.leadership
        return None if leadership is None else leadership.origin

    @property
    def is_transferring(self) -> bool:
        """Is this leadership being transferred? Then this replica accepts no proposal."""
        leadership = self._replica.current.leadership
        return leadership is not None and leadership.transfer is not None

    def transfer_obstacle(self, broker_id: int) -> str:
        """Return the reason why a transfer to that broker would not succeed at once; "" if it would."""
        leadership = self._replica.current.leadership
        return "it is not led here" if leadership is None else leadership.transfer_obstacle(broker_id)

    def lags(self) -> dict[int, int]:
        """Count the entries that each follower has not acknowledged as synced. Empty unless this replica leads."""
        leadership = self._replica.current.leadership
        if leadership is None:
            return {}
        return {peer: self.log.last_index - p.match for peer, p in leadership.replication.progress.items()}

    @property
    def membership(self) -> Membership:
        """The membership as applied here."""
        return self._replica.state.membership

    @property
    def feature_level(self) -> int:
        """The cluster's feature level, as known here."""
        return self._replica.state.env.feature_level

    @property
    def failure(self) -> TinymqError | None:
        """The error that ended this replica's part in the group; None while it takes part."""
        return self._replica.state.failure

    def propose(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        """Append to the log that this replica leads, in memory. It is synced and replicated at once.

        No await lies between the caller's decision and the append. The entry is committed when the state machine
        applies it. Its outcome is unknown if the state machine's `follow` comes first.

        Raises NotLeader, and QuotaExceeded when too much is uncommitted. Raises UnsupportedVersion for a version of the
        entry above the cluster's feature level, unless the entry raises that level (`raises_level`). In that case the
        caller has checked that every member knows the new level.
        """
        return self._replica.current.leading().propose(new, raises_level=raises_level)

    def append_time_now_us(self) -> int:
        """Return the append time now, for decisions on the applied state. No later entry gets an earlier one.

        Raises NotLeader.
        """
        return self._replica.current.leading().leader_log.append_time_now_us()

    def expiry_now_us(self) -> int | None:
        """Return the append time now if records may be removed because of their age; see LeaderLog.expiry_now_us.

        Raises NotLeader.
        """
        return self._replica.current.leading().leader_log.expiry_now_us()

    def report(self) -> ReplicaReport:
        """Describe this replica for a loss-of-quorum recovery of the group."""
        state, log = self._replica.state, self.log
        reason = f"its earlier log is in quarantine: {self.repairing}" if self.repairing else ""
        if state.failure is not None:
            reason = f"{state.failure.code}: {state.failure.message}"
        return ReplicaReport(
            replica=state.me,
            healthy=state.failure is None,
            leads=self.is_leader,
            term=state.term,
            last_term=log.last_term,
            last_index=log.last_index,
            high_watermark=self.high_watermark,
            applied=state.membership,
            newest=state.newest_membership,
            before_forced=state.position_before_forced,
            reason=reason,
            fault_count=log.fault_count,
        )

    def force_leadership(self, term: int, replicas: Sequence[Replica]) -> None:
        """Lead `term` unelected, for a group that consists of `replicas` from now on. An operator accepts the loss.

        Raises NotReady if this replica hears a leader, if `term` is over, or if `replicas` names no majority.
        """
        self._replica.forced.lead(term, replicas)

    async def promise_term(self, term: int, timeout_s: float) -> ReplicaReport:
        """Promise durably to take part in no term below `term`, then return a report of this replica.

        Raises NotReady when the term is over, and DeadlineExceeded.
        """
        promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._replica.forced.promise_term(term, lambda: None if promised.done() else promised.set_result(None))
        late = DeadlineExceeded(f"{self.id}: nothing synced in time")
        await within(self._replica.state.env.clock, promised, timeout_s, late)
        return self.report()

    async def read_index(self, timeout_s: float) -> int:
        """Return the applied index once this replica has applied every entry acknowledged before the call.

        A read of the state machine is not stale then. Nothing is written, and concurrent reads share their messages.
        Raises NotLeader, also when the leadership ends meanwhile, and DeadlineExceeded.
        """
        read: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(result: int | TinymqError) -> None:
            if not read.done():
                read.set_exception(result) if isinstance(result, TinymqError) else read.set_result(result)

        self._replica.current.leading().read_index(answer)
        late = DeadlineExceeded(f"no majority of {self.id} answered in {timeout_s:.1f} s")
        return await within(self._replica.state.env.clock, read, timeout_s, late)

    def status(self) -> GroupStatus:
        """Describe this replica at this moment."""
        state, log = self._replica.state, self.log
        return GroupStatus(
            group=self.id,
            role=self.role,
            term=state.term,
            leader=state.leader_id,
            last_index=log.last_index,
            durable_index=log.durable_index,
            commit_index=state.commit_index,
            applied_index=state.applied_index,
            high_watermark=self.high_watermark,
            log_start=log.log_start_offset,
            chain_crc=self._chain_crc(),
            reason=self._reason(),
            size_bytes=log.size_bytes,
        )

    def describe_followers(self) -> dict[str, Any]:
        """Return (match, next, mode) by follower, for logs and tests. Empty unless this replica leads."""
        leadership = self._replica.current.leadership
        if leadership is None:
            return {}
        return {str(p): (g.match, g.next, g.mode.value) for p, g in leadership.replication.progress.items()}

    def _chain_crc(self) -> int:
        try:
            return self.log.reader.crc_at(self.commit_index) or 0
        except CorruptData:
            return 0  # the log has reported the damage to the host

    def _reason(self) -> str:
        """Return the reason why this replica does not take part in full; "" if it does."""
        state, announced = self._replica.state, self._replica.current.following.announced_commit
        if self.stuck:
            return self.stuck
        if state.failure is not None:
            return f"{state.failure.code}: {state.failure}"
        if self.role is Role.LEARNER:
            return explain_learner(self.repairing, state.leader_id, self.log.last_index, announced, state.is_listed)
        if self.role is Role.OBSERVER:
            return explain_observer(state.leader_id, self.log.last_index, announced)
        return explain_candidate() if self.role is Role.CANDIDATE else ""
