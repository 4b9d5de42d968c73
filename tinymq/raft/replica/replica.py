"""The one subclass of PySyncObj that runs: how a replica is told what happens, leads, commits and applies.

Each override names the hazard that it closes (docs/raft.md) and hands the decision to a pure module:
`catchup`, `replication`, `commit`, `election`, `membership`. Nothing here awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinymq.base.errors import BrokenInvariant, CorruptData, NotReady
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.replica_log.log import Log
from tinymq.raft.replica import pysyncobj_seams
from tinymq.raft.replica.checkpoint import pack_checkpoint
from tinymq.raft.replica.following import check_known
from tinymq.raft.replica.leading import LeadingReplica
from tinymq.raft.replica.pysyncobj_state import NEVER, ReplicaEnv, StateMachine
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Membership, Replica, pack_membership
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
from tinymq.raft.rules.quorum_loss import NOBODY, impose
from tinymq.raft.rules.recovery_epoch import MessageVerdict, hear

APPLY_ENTRIES_MAX = 2_000  # per tick, so that a long replay does not keep the loop from its heartbeats


class RaftReplica(LeadingReplica):
    """One replica of one group, driven by its broker: `receive`, `tick`, `durable`, `propose`, ..."""

    def __init__(
        self, group: GroupId, me: Replica, log: Log, ballots: VoteStore, machine: StateMachine, around: ReplicaEnv,
        configs: Configs, applied_index: int, high_watermark: int,
    ) -> None:  # fmt: skip
        self._high_watermark = high_watermark  # invariant: the next offset after the entry at applied_index
        self._promised = 0  # the term for which a take-over was last prepared
        super().__init__(group, me, log, ballots, machine, around, configs, applied_index)

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    # ---- events ------------------------------------------------------------------------------------------

    def receive(self, peer: int, message: Message, recovery_epoch: int | None = None) -> None:
        """One message of a peer whose newest CONFIG is of `recovery_epoch` (None: as ours). Checksums in it are
        verified already (messages.from_wire). Raises CorruptData when what is here cannot go on, and is to be repaired;
        BrokenInvariant when nobody can tell whose history is right."""
        if self._failure is not None:
            return
        ours = self._configs.newest.recovery_epoch
        if self.membership.replica(peer) is None:  # who is no member moves nobody, and no term (hazard 8)
            if recovery_epoch is None or recovery_epoch <= ours:  # below: it has not got the CONFIG of a take-over yet
                self._hear_observer(peer, message)
            return
        hearing = hear(ours, ours if recovery_epoch is None else recovery_epoch, self.term, message)
        if hearing is MessageVerdict.ABANDONED:
            raise CorruptData(f"term {self.term} is of a history that was given up by `tinymq cluster recover`")
        if hearing is MessageVerdict.TAKE:
            try:
                self._SyncObj__onMessageReceived(pysyncobj_seams.peer(peer), message)
            except BrokenInvariant as error:
                if recovery_epoch is None or recovery_epoch <= ours:
                    raise
                raise CorruptData(f"{error.message}, since `tinymq cluster recover`") from error
        elif self._leadership is not None and peer in self._leadership.progress:
            self._look_after(peer)  # it hears from us what goes on

    def tick(self) -> None:
        """Something happened: decide, commit, apply, send. Called once per turn of the loop, after all events."""
        if self._failure is None:
            with pysyncobj_seams.RunningClock(self._around.clock):
                self._onTick()

    def peer_alive(self, peer: int) -> None:
        """A broker is back, or new: what was sent to it is gone, and a sleeping group wakes."""
        if self._failure is not None:
            return
        if self.membership.replica(peer) is None:
            self.observer_alive(peer)
        elif self._leadership is not None:
            self._look_after(peer)
        elif self.leader_id == peer and self._leader_session != self._around.session(peer):
            self.leader_gone(peer)  # nobody knew that process as alive when it ended, so nobody told of its end
        elif self.leader_id is None and (self.membership.rank(self._me.broker_id) == 0 or not self._may_stand):
            self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, self._around.now())
        self._around.wake()

    def promise_term(self, term: int, promised: Callable[[], None]) -> None:
        """Take part in no lower term any more, and call `promised` once that is durable. Raises NotReady when `term` is
        over."""
        if self._failure is not None or not self._adopt(term):
            raise NotReady(f"{self._group}: term {term} is over")
        self._promised = term
        self._outbox.post(promised)

    def force_leadership(self, term: int, replicas: Sequence[Replica]) -> None:
        """An operator accepts loss: lead `term` unelected, for a group that is `replicas` from now on. Raises NotReady
        where a leader is heard, or `term` is over."""
        there = sum(r.incarnation != NOBODY for r in replicas)
        over = term <= self.term and not (term == self.term == self._promised and self.voted_for is None)
        if self._failure is not None or self.hears_leader or over or 2 * there <= len(replicas):
            raise NotReady(f"{self._group}: it has a leader, or term {term} is over, or too few replicas are there")
        self._follow(None)
        self._SyncObj__raftElectionDeadline = NEVER  # it leads as soon as the term is on disk
        self._SyncObj__setCurrentTerm(term, self._me.broker_id)
        self._forget_term()
        imposed = impose(self._configs.newest, self._me.broker_id, replicas)
        self._configs.impose(imposed)
        self._outbox.post(lambda: self._lead_imposed(term, imposed))
        self._around.wake()

    def _lead_imposed(self, term: int, imposed: Membership) -> None:
        """The CONFIG goes out at once, and commits under itself: nothing is acknowledged before a majority has it."""
        if self.term == term and self._configs.imposed is imposed:
            self._SyncObj__onBecomeLeader()
            assert self._leadership is not None
            self._append_as_leader(self._leadership, NewEntry(Kind.CONFIG, pack_membership(imposed)))

    @property
    def waits_for_ballot(self) -> bool:
        return len(self._outbox) > 0

    # ---- messages --------------------------------------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: pysyncobj_seams.PeerNode, message: Message) -> None:
        """Hazards 1, 2, 3, 4, 11, 14, 22: one pure decision per kind of message."""
        peer = int(node.id)
        match message:
            case Append():
                self._on_append(peer, message)
            case AppendAck():
                self._on_ack(peer, message)
            case CommitNotice():
                self._on_commit_notice(peer, message)
            case RequestVote():
                self._on_request_vote(peer, message)
            case Vote():
                self._on_vote(peer, message)
            case InstallSnapshot() | SnapshotChunk():
                self._on_state(peer, message)
            case InstallSnapshotAck():
                self._on_install_snapshot_ack(peer, message)
            case TimeoutNow(term, manual):
                if term == self.term and peer == self.leader_id:
                    self._stand(pre=False, origin=LeadershipOrigin.MANUAL if manual else LeadershipOrigin.TRANSFERRED)

    # ---- ticks -----------------------------------------------------------------------------------------------

    def _onTick(self, timeToWait: float = 0.0) -> None:
        """Hazard 15: driven by events. What arrived was read before; now decide, commit, apply, send."""
        self._check_deadline(self._around.now())
        self._commit()
        self._SyncObj__applyLogEntries()
        if self._leadership is not None:
            self._SyncObj__sendAppendEntries()

    def _SyncObj__applyLogEntries(self) -> bool:
        """Hazards 9, 10: `apply` is total. Index 1 is applied like any other (stock never does)."""
        applied = self.applied_index
        if self._log.wants_snapshot(applied):  # its segment was closed after it was applied
            self._log.save_snapshot(applied, pack_checkpoint(self._configs.applied, self._machine.dump()))
        stop = min(self.commit_index, applied + APPLY_ENTRIES_MAX)
        while applied < stop:
            entry = self._log.reader.entry(applied + 1)
            applied = entry.index
            self._SyncObj__raftLastApplied = applied
            self._high_watermark = entry.header.next_offset
            self._apply(entry)
            if self._log.wants_snapshot(applied):
                self._log.save_snapshot(applied, pack_checkpoint(self._configs.applied, self._machine.dump()))
        self._log.note_applied(applied)
        self._answer_reads()
        if applied < self.commit_index:
            self._around.wake()
        return False

    def _apply(self, entry: Entry) -> None:
        check_known(entry)  # a newer build may have appended it on this disk
        if entry.header.kind == Kind.CONFIG:
            self._configs.apply(entry)
            if self.is_listed and not self.is_member:
                self._log.sync_commit(entry.index)
                self._configs.keep(self._log.commit.durable)  # it may know that already
            self._around.wake()  # what waits for the count of replicas may be there
        try:
            self._machine.apply(entry)
        except CorruptData as error:  # its checksums are right, so each replica's state machine says so
            raise BrokenInvariant(f"entry {entry.index} cannot be applied: {error.message}") from error
        leadership = self._leadership
        if leadership is None:
            return
        if entry.index >= leadership.first_of_term:
            leadership.uncommitted_bytes -= entry.size
        if entry.index == leadership.first_of_term:
            self._machine.lead(leadership.term)
        if entry.header.kind in (Kind.NOOP, Kind.CONFIG):
            self._list_anew()
