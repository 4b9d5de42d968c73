"""One Raft group on this broker, as the rooms above see it: propose, hand over, describe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tinymq.base.clock import within
from tinymq.base.errors import CorruptData, DeadlineExceeded, NotReady, TinymqError
from tinymq.base.types import GroupId, Position
from tinymq.format.entry import NewEntry
from tinymq.log.replica_log.log import Log
from tinymq.raft.replica.pysyncobj_state import StateMachine
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.explanation import explain_candidate, explain_learner, explain_observer
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.quorum_loss import ReplicaReport


class Role(Enum):
    """What this replica is to its group."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    OBSERVER = "observer"  # CONFIG lists no replica of this broker: it follows, and has no vote, as it should be
    LEARNER = (
        "learner"  # CONFIG does not list this incarnation, as far as its disk knows: it holds data, without a vote
    )
    QUARANTINED = "quarantined"  # damage was found: it serves and answers nothing
    FAILED = "failed"  # its disk refused, or it met what it does not know, or what cannot be


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
    """A replica of one group. All of it belongs to the broker's loop."""

    def __init__(self, group_id: GroupId, log: Log, core: RaftReplica, machine: StateMachine) -> None:
        self.id = group_id
        self.log = log
        self.machine = machine
        self.repairing = ""  # the damage that this replica recovers from
        self.stuck = ""  # why it cannot catch up by itself
        self._core = core

    @property
    def core(self) -> RaftReplica:
        """For the host alone."""
        return self._core

    def become(self, other: Group) -> None:
        """For the host alone: the replica was made anew, around another log."""
        self.log, self._core, self.stuck = other.log, other.core, ""

    @property
    def role(self) -> Role:
        core = self._core
        unlisted = Role.OBSERVER if core.is_observer else Role.LEARNER
        if isinstance(core.failure, NotReady):  # it is being made anew
            return Role.FOLLOWER if core.is_member else unlisted
        if core.failure is not None:
            return Role.QUARANTINED if isinstance(core.failure, CorruptData) else Role.FAILED
        if core.leading_term is not None:
            return Role.LEADER
        if not core.is_member:
            return unlisted
        return Role.CANDIDATE if core.is_candidate else Role.FOLLOWER

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def leader(self) -> int | None:
        """The broker that leads, as far as is known here; it may have lost its leadership already."""
        return self._core.leader_id

    @property
    def is_leader(self) -> bool:
        return self._core.leading_term is not None

    @property
    def commit_index(self) -> int:
        return self._core.commit_index

    @property
    def applied_index(self) -> int:
        return self._core.applied_index

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that was committed *and applied* here; nobody is shown more."""
        return self._core.high_watermark

    @property
    def uncommitted_bytes(self) -> int:
        """Of what was appended here as the leader, and is not applied yet; 0 when it does not lead."""
        return self._core.uncommitted_bytes

    @property
    def origin(self) -> LeadershipOrigin | None:
        """How the leadership here came about; None when this replica does not lead."""
        return self._core.origin

    @property
    def is_transferring(self) -> bool:
        """Is it being given to another broker, so that nothing is accepted?"""
        return self._core.is_transferring

    def transfer_obstacle(self, broker_id: int) -> str:
        """Why that broker's replica would not take over from this one at once; "" when it would."""
        return self._core.transfer_obstacle(broker_id)

    def lags(self) -> dict[int, int]:
        """By follower: entries of this leader's log that it has not acknowledged as synced. Empty unless it leads."""
        return self._core.lags()

    @property
    def membership(self) -> Membership:
        return self._core.membership

    @property
    def failure(self) -> TinymqError | None:
        return self._core.failure

    def propose(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        """Append to the log that this replica leads; in memory, to be synced and replicated at once.

        No await lies between the caller's decision and the append. The entry is committed when the state
        machine is given it; its outcome is unknown when `follow` comes first. Raises NotLeader, and
        QuotaExceeded when too much is uncommitted.

        Raises UnsupportedVersion for a version of the entry above the cluster's feature level, unless the entry raises
        that level (`raises_level`). In that case the caller has checked that every member knows the new level.
        """
        return self._core.propose(new, raises_level=raises_level)

    def append_time_now_us(self) -> int:
        """The append time now, for decisions on the applied state. No entry that is appended later gets an earlier one.
        Raises NotLeader."""
        return self._core.append_time_now_us()

    def expiry_now_us(self) -> int | None:
        """Return the append time now if records may be removed for their age; see LeadingReplica.expiry_now_us. Raises
        NotLeader."""
        return self._core.expiry_now_us()

    def report(self) -> ReplicaReport:
        """What a recovery needs to know of this replica."""
        core, log = self._core, self.log
        reason = f"its earlier log is set aside: {self.repairing}" if self.repairing else ""
        if core.failure is not None:
            reason = f"{core.failure.code}: {core.failure.message}"
        return ReplicaReport(
            core.me, core.failure is None, core.leading_term is not None, core.term, log.last_term, log.last_index,
            core.high_watermark, core.membership, core.newest_membership, core.before_forced, reason,
            fault_count=log.fault_count,
        )  # fmt: skip

    def force_leadership(self, term: int, replicas: Sequence[Replica]) -> None:
        """Lead `term` for a group that is `replicas` from now on: an operator accepts what is lost by it. Raises
        NotReady where a leader is heard, or `term` is over."""
        self._core.force_leadership(term, replicas)

    async def promise_term(self, term: int, timeout_s: float) -> ReplicaReport:
        """Take part in no term below this one any more, durably; what this replica is then. Raises NotReady when the
        term is over, and DeadlineExceeded."""
        promised: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._core.promise_term(term, lambda: None if promised.done() else promised.set_result(None))
        await within(self._core.clock, promised, timeout_s, DeadlineExceeded(f"{self.id}: nothing synced in time"))
        return self.report()

    async def read_index(self, timeout_s: float) -> int:
        """Return once this replica has applied whatever was acknowledged anywhere before the call: what is read from
        its state then is not stale. The index up to which it has. Nothing is written, and all that ask at once share a
        round of messages. Raises NotLeader, also when the leadership ends meanwhile, and DeadlineExceeded."""
        read: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(what: int | TinymqError) -> None:
            if not read.done():
                read.set_exception(what) if isinstance(what, TinymqError) else read.set_result(what)

        self._core.read_index(answer)
        late = DeadlineExceeded(f"no majority of {self.id} answered in {timeout_s:.1f} s")
        return await within(self._core.clock, read, timeout_s, late)

    def status(self) -> GroupStatus:
        core, log = self._core, self.log
        return GroupStatus(
            self.id, self.role, core.term, core.leader_id, log.last_index, log.durable_index, core.commit_index,
            core.applied_index, core.high_watermark, log.log_start_offset, self._chain_crc(), self._reason(),
            log.size_bytes,
        )  # fmt: skip

    def _chain_crc(self) -> int:
        try:
            return self.log.reader.crc_at(self._core.commit_index) or 0
        except CorruptData:
            return 0  # the host has been told of it

    def _reason(self) -> str:
        """Why this replica does not take part in full; "" when it does."""
        core = self._core
        if self.stuck:
            return self.stuck
        if core.failure is not None:
            return f"{core.failure.code}: {core.failure}"
        if self.role is Role.LEARNER:
            last, announced = self.log.last_index, core.announced_commit
            return explain_learner(self.repairing, core.leader_id, last, announced, core.is_listed)
        if self.role is Role.OBSERVER:
            return explain_observer(core.leader_id, self.log.last_index, core.announced_commit)
        return explain_candidate() if self.role is Role.CANDIDATE else ""
