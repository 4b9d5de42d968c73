"""One replica of one group: it takes events, dispatches them to its role, and commits.

    event ──▶ RaftReplica ──▶ Following | Candidacy | Leadership ──▶ ReplicaState ──▶ log, vote store, barrier, peers
                  │
                  ├── CurrentRole       switches the role when a term is won, lost or over
                  ├── Elections         campaigns, votes, counts votes
                  ├── Applier           applies what is committed
                  └── ForcedLeadership  leads unelected, after a quorum is lost for good

Each method names the hazard of stock PySyncObj that it closes (docs/raft.md). Nothing here awaits.
"""

from __future__ import annotations

from tinymq.base.errors import BrokenInvariant, CorruptData, TinymqError
from tinymq.format.entry import Entry
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.replica.applier import Applier
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.replica.elections import Elections
from tinymq.raft.replica.forced_leadership import ForcedLeadership
from tinymq.raft.rules.commit import reported_commit
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import has_quorum
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
from tinymq.raft.state.env import StateMachine
from tinymq.raft.state.pysyncobj_state import NEVER
from tinymq.raft.state.replica_state import ReplicaState


class RaftReplica:
    """A replica, driven by its broker: `receive`, `tick`, `durable`, `peer_alive`, `current.leading().propose`, ..."""

    def __init__(self, state: ReplicaState, machine: StateMachine, high_watermark: int) -> None:
        self.state = state
        self.current = CurrentRole(state, machine)
        self.applier = Applier(state, machine, self.current, high_watermark)
        self.elections = Elections(state, self.current, self.applier)
        self.forced = ForcedLeadership(state, self.current)

    def next_wake(self) -> float:
        """Return the monotonic time of this replica's next timer; NEVER when it rests."""
        leadership = self.current.leadership
        return self.state.election_deadline if leadership is None else leadership.next_wake()

    # ---- messages -------------------------------------------------------------------------------------------

    def receive(self, peer: int, message: Message, recovery_epoch: int | None = None) -> None:
        """Take one message of a peer. `recovery_epoch` is that of the peer's newest CONFIG (None: the same as ours).

        `messages.from_wire` has verified its checksums. Raises CorruptData when this log has to be repaired, and
        BrokenInvariant when no epoch decides which history is right.
        """
        if self.state.failure is not None:
            return
        ours = self.state.newest_membership.recovery_epoch
        theirs = ours if recovery_epoch is None else recovery_epoch
        leadership = self.current.leadership
        if self.state.membership.replica(peer) is None:
            # A broker that is not a member changes neither this replica nor its term (hazard 8). An observer with a
            # lower recovery epoch may lack the CONFIG of a forced leadership. We take its answers, so that we can fill
            # it.
            if leadership is not None and theirs <= ours:
                leadership.on_observer_message(peer, message)
            return
        match judge_message(ours, theirs, self.state.term, message):
            case MessageVerdict.ABANDONED:
                raise CorruptData(
                    f"term {self.state.term} is of a history that was given up by `tinymq cluster recover`"
                )
            case MessageVerdict.TAKE:
                try:
                    self._dispatch(peer, message)
                except BrokenInvariant as error:
                    if theirs <= ours:
                        raise
                    raise CorruptData(f"{error.message}, since `tinymq cluster recover`") from error
            case MessageVerdict.DROP:
                if leadership is not None and peer in leadership.replication.progress:
                    leadership.restart_follower(peer)  # our answer tells it which recovery epoch continues

    def _dispatch(self, peer: int, message: Message) -> None:
        match message:
            case Append():
                self.on_append(peer, message)
            case AppendAck():
                self.on_append_ack(peer, message)
            case CommitNotice():
                self.on_commit_notice(peer, message)
            case RequestVote():
                self.elections.on_request_vote(peer, message)
            case Vote():
                self.elections.on_vote(peer, message)
            case InstallSnapshot() | SnapshotChunk():
                if self.current.follow_sender(peer, message.term):
                    self.current.following.on_snapshot(peer, message)
            case InstallSnapshotAck():
                self.current.adopt_term(peer, message.term)
                leadership = self.current.leadership
                if leadership is not None and message.term == leadership.term:
                    leadership.on_snapshot_ack(peer, message)
            case TimeoutNow(term, manual):
                if term == self.state.term and peer == self.state.leader_id:
                    origin = LeadershipOrigin.MANUAL if manual else LeadershipOrigin.TRANSFERRED
                    self.elections.campaign(pre=False, origin=origin)

    def on_append(self, peer: int, message: Append) -> None:
        if self.current.follow_sender(peer, message.term):
            self.current.following.on_append(peer, message)

    def on_commit_notice(self, peer: int, notice: CommitNotice) -> None:
        """Take a commit notice. Only one with a read index id makes us follow its sender, as an Append does."""
        if notice.read_id:
            if not self.current.follow_sender(peer, notice.term):
                return
        elif notice.term != self.state.term or peer != self.state.leader_id:
            return
        self.current.following.on_commit_notice(peer, notice)

    def on_append_ack(self, peer: int, ack: AppendAck) -> None:
        """Take a follower's answer. An answer of another term says nothing about this one (hazard 3)."""
        self.current.adopt_term(peer, ack.term)
        leadership = self.current.leadership
        if leadership is None or ack.term != leadership.term:
            return
        moved = leadership.on_append_ack(peer, ack)
        if not ack.conflict:
            self._advance(reported_commit(self.state.commit_index, ack.commit, ack.durable))
        if not leadership.replication.followers.counts(self.state.configs, peer):
            leadership.list_replacement()
        if moved:
            self._commit()
            leadership.wake_for(peer)

    # ---- the life of other brokers --------------------------------------------------------------------------

    def peer_alive(self, peer: int) -> None:
        """Wake the group because a broker has started or returned. Messages that were on their way to it are lost."""
        state, leadership = self.state, self.current.leadership
        if self.state.failure is not None:
            return
        if state.membership.replica(peer) is None:
            if leadership is not None:
                leadership.observer_alive(peer)
        elif leadership is not None:
            leadership.restart_follower(peer)
        elif state.leader_id == peer and state.leader_session != state.env.session(peer):
            # The leader's process ended before we knew it to be alive, so the failure detector reported no end.
            self.elections.leader_gone(peer)
        elif state.leader_id is None and (
            state.membership.rank(state.me.broker_id) == 0 or not self.elections.may_campaign
        ):
            state.election_deadline = min(state.election_deadline, state.env.now())
        state.env.wake()

    def control_connected(self, peer: int) -> None:
        """Note that the control connection to a member opened. Control messages that were on their way are lost."""
        if self.state.failure is None:
            self.current.tell_superseded(peer)

    def connection_lost(self, peer: int) -> None:
        """Note that the bulk connection to a follower closed."""
        if (leadership := self.current.leadership) is not None:
            leadership.connection_lost(peer)

    def observer_gone(self, peer: int) -> None:
        if (leadership := self.current.leadership) is not None:
            leadership.observer_gone(peer)

    # ---- disk -----------------------------------------------------------------------------------------------

    def durable(self) -> None:
        """Continue after a sync of the log, of the vote store, or of a mark with the commit index."""
        state = self.state
        if state.failure is not None:
            return
        state.vote_barrier.flush()
        state.record_commit()
        if state.configs.keep(state.log.commit.durable):
            state.env.wake()  # the replica may be a member now
        self._commit()
        leader = state.leader_id
        if self.current.leadership is None and leader is not None and self.current.following.verified:
            self.current.following.acknowledge(leader)

    def fail(self, error: TinymqError) -> None:
        """End this replica's part in the group, because its disk or log cannot be trusted. The last error counts."""
        self.state.failure = error
        self.state.vote_barrier.clear()
        self.current.follow(None)
        self.state.election_deadline = NEVER

    def vouch(self, index: int) -> None:
        """Note that the leader's snapshot up to `index` is installed, or was not needed. So this log matches the
        leader's up to there."""
        if self.state.failure is None and self.current.leadership is None:
            self.current.following.vouch(index)

    def acknowledge_snapshot(self, peer: int, index: int, crc: int, received: int) -> None:
        """Tell the leader how many bytes of its snapshot this broker has received."""
        self.current.following.acknowledge_snapshot(peer, index, crc, received)

    def entries_read(self, term: int, peer: int, index: int, entries: list[Entry]) -> None:
        """Take the result of a cold read for a follower (empty: it failed). A leadership of another term ignores it."""
        leadership = self.current.leadership
        if leadership is not None and leadership.term == term:
            leadership.entries_read(peer, index, entries)

    def snapshot_read(self, term: int, snapshot: Snapshot | None) -> None:
        """Take the snapshot that was read for a follower. None: the read failed, or there is no snapshot."""
        leadership = self.current.leadership
        if leadership is not None and leadership.term == term:
            leadership.snapshot_read(snapshot)

    # ---- ticks and commits ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Decide, commit, apply, send. Called once per turn of the loop, after all its events (hazard 15)."""
        state = self.state
        if self.state.failure is not None:
            return
        self.elections.check_deadline()
        self._commit()
        self.applier.apply_committed()
        leadership, now = self.current.leadership, state.env.now()
        if leadership is None:
            return
        leadership.learn_time()
        if leadership.settle_at <= now:
            self.current.check_quorum()  # the majority may have failed before this leadership began
            if self.current.role is not leadership:
                return
            leadership.settle(now)
        leadership.tick(now)

    def _commit(self) -> None:
        """Commit the entries that a majority holds, if this replica leads. They are applied at once: a client waits."""
        if (leadership := self.current.leadership) is not None:
            self._advance(leadership.commit_index())

    def _advance(self, commit: int) -> None:
        if commit > self.state.commit_index:
            self.state.advance_commit(commit)
            self.applier.apply_committed()
            if (leadership := self.current.leadership) is not None:
                leadership.committed()

    # ---- transfers and repairs -------------------------------------------------------------------------------

    def transfer_leadership(self, to: int | None, until: float, manual: bool = False) -> bool:
        """Begin a transfer; see `Leadership.begin_transfer`. False when this replica does not lead."""
        leadership = self.current.leadership
        return leadership is not None and leadership.begin_transfer(to, until, manual)

    def can_lose(self, peer: int) -> bool:
        """Would the group survive if broker `peer` lost its data, and all other brokers lost power at this moment?"""
        state, leadership = self.state, self.current.leadership
        sure = set() if leadership is None else leadership.replication.followers.sure(state.configs)
        own = {state.me.broker_id} if state.is_member else set()
        return has_quorum(state.membership, (sure | own) - {peer})
