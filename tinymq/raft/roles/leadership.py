"""The role of a replica that leads one term: it appends, counts acknowledgements, and lets the group rest.

A Leadership is made when a term is won and dropped when it ends, so that nothing of a term outlives it (hazard 19).
"""

from __future__ import annotations

import structlog

from tinymq.base.types import Position
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.roles.leader_log import LeaderLog
from tinymq.raft.roles.leadership_transfer import BEHIND_ENTRIES_MAX, LeadershipTransfer
from tinymq.raft.roles.replication import NEVER, Replication
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import Membership, has_quorum, pack_membership
from tinymq.raft.rules.messages import AppendAck, CommitNotice, InstallSnapshotAck, Message, TimeoutNow
from tinymq.raft.rules.read_index import Answer, ReadIndexes
from tinymq.raft.state.replica_state import ReplicaState

logger = structlog.get_logger("tinymq.raft")

SETTLE_S = 0.1  # seconds after the last write until the followers are asked whether they know the commit


class Leadership:
    """One term of leading. Only the broker's event loop calls it, and nothing here blocks."""

    def __init__(self, state: ReplicaState, origin: LeadershipOrigin) -> None:
        log, env = state.log, state.env
        self.state = state
        self.term = state.term
        self.origin = origin  # how this leadership came about
        self.leader_log = LeaderLog(state)
        self.first_of_term = self.leader_log.first_index  # index of this term's NOOP
        self.replication = Replication(
            term=self.term,
            first_of_term=self.first_of_term,
            peers=state.peers,
            log=log,
            link=env,
            limits=env.limits,
            timing=env.timing,
        )
        self.reads = ReadIndexes()  # reads that wait until a majority confirms this leadership
        self.transfer: LeadershipTransfer | None = None  # while it is not None, no proposal is accepted
        self.settle_at = env.now() + SETTLE_S  # time of the next check for unanswered messages; NEVER: the group rests
        for peer in env.observers():
            self.observer_alive(peer)

    def next_wake(self) -> float:
        """Return the monotonic time of the next timer; NEVER when the group rests."""
        return min(self.settle_at, self.replication.notice_at)

    # ---- appending ----------------------------------------------------------------------------------------

    def propose(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        """Append an entry for a room above; see `Group.propose`.

        No await lies between the caller's decision and the append, so a decision on the end of this log still holds
        (hazard 19). Raises NotLeader during a transfer, and QuotaExceeded.
        """
        if self.transfer is not None:
            raise self.state.not_leader()
        self.leader_log.check_quota(new)
        position = self.leader_log.append(new, raises_level=raises_level)
        self._send_appended()
        return position

    def append_noop(self) -> None:
        """Append the term's first entry, or another NOOP when the cluster's time has become known."""
        self.leader_log.append_noop()
        self._send_appended()

    def append_config(self, membership: Membership) -> None:
        self.leader_log.append(NewEntry(Kind.CONFIG, pack_membership(membership)))
        self._send_appended()

    def _send_appended(self) -> None:
        """Send a lone write at once. Writes that come while others are in flight share messages at the next tick."""
        if self.replication.followers.nothing_out() and self.settle_at != NEVER:
            self.replication.replicate(self.state.commit_index)
        else:
            self.state.env.wake()

    def learn_time(self) -> None:
        """If the cluster's time has become known in this term, append a NOOP that says so."""
        if self.transfer is None and self.leader_log.learns_time():
            self.append_noop()

    def list_replacement(self) -> None:
        """Append a CONFIG with the new identity of a member's broker, if one acknowledges under a new identity.

        Hazard 22: that CONFIG commits without the new identity. At most one CONFIG is uncommitted. The leader appends
        none before it has applied its own NOOP, because only then it knows the commit index.
        """
        state = self.state
        if state.applied_index < self.first_of_term or self.transfer is not None:
            return
        membership = state.configs.replacement(self.replication.followers.present())
        if membership is not None:
            self.append_config(membership)

    # ---- answers of followers -----------------------------------------------------------------------------

    def on_append_ack(self, peer: int, ack: AppendAck) -> bool:
        """Take a member's answer of this term. True when the commit index may move."""
        moved = self.replication.acknowledged(peer, ack)
        if ack.read_id:
            # `acknowledged` must run first: it notes which replica answers.
            if self.replication.followers.counts(self.state.configs, peer):
                self.reads.answered(peer, ack.read_id)
            self.state.env.wake()
        return moved

    def commit_index(self) -> int:
        """Return the commit index by the followers' answers and our own durable index."""
        return self.replication.commit(self.state.configs, self.state.me, self.state.commit_index)

    def committed(self) -> None:
        """Note that the commit index advanced. Followers learn it from the next Append, or from a notice."""
        if self.replication.notify_soon():
            self.state.env.wake()

    def wake_for(self, peer: int) -> None:
        """Ask for a tick after an answer of `peer`, unless a timer that is set suffices."""
        if (
            self.settle_at == NEVER
            or self.transfer is not None
            or self.replication.wants_tick(peer, self.state.commit_index)
        ):
            self.state.env.wake()

    def on_snapshot_ack(self, peer: int, ack: InstallSnapshotAck) -> None:
        if self.replication.snapshots.acknowledged(peer, ack):
            self.state.env.wake()

    def entries_read(self, peer: int, index: int, entries: list[Entry]) -> None:
        """Take the result of a cold read for a follower (empty: it failed)."""
        self.replication.entries_read(peer, index, entries, self.state.commit_index)
        self.state.env.wake()

    def snapshot_read(self, snapshot: Snapshot | None) -> None:
        """Take the snapshot that was read for a follower. None: the read failed, or there is no snapshot."""
        self.replication.snapshots.read(snapshot)
        self.state.env.wake()

    def restart_follower(self, peer: int) -> None:
        """Probe a follower again, and do not rest before it has answered."""
        self.replication.lost(peer)
        self.settle_at = self.state.env.now()
        self.state.env.wake()

    def connection_lost(self, peer: int) -> None:
        """Probe a follower again, because its bulk connection closed and messages in flight may be lost."""
        self.replication.lost(peer)
        self.settle_at = min(self.settle_at, self.state.env.now() + SETTLE_S)
        self.state.env.wake()

    # ---- observers: followers without a vote --------------------------------------------------------------

    def observer_alive(self, peer: int) -> None:
        """Replicate to a broker that no CONFIG lists. It has started, or returned."""
        state = self.state
        if state.membership.replica(peer) is not None:
            return
        if self.replication.followers.observe(peer):
            self.restart_follower(peer)
        else:
            logger.warning("observer_refused", group=str(state.group), broker=peer, reason="there are too many")

    def observer_gone(self, peer: int) -> None:
        self.replication.followers.forget(peer)

    def on_observer_message(self, peer: int, message: Message) -> None:
        """Learn from an observer's answer what to send it next. It changes no term, commit or read (hazard 8)."""
        if peer not in self.replication.progress or message.term != self.term:
            return
        if isinstance(message, InstallSnapshotAck):
            self.on_snapshot_ack(peer, message)
        elif isinstance(message, AppendAck):
            if not message.conflict and max(message.durable, message.received) > self.state.log.last_index:
                return  # from a member this would break an invariant; an observer must not end a leader
            moved = self.replication.acknowledged(peer, message)
            if moved or self.transfer is not None or self.replication.wants_tick(peer, self.state.commit_index):
                self.state.env.wake()

    # ---- reads --------------------------------------------------------------------------------------------

    def read_index(self, answer: Answer) -> None:
        """Call `answer` when this replica has applied every entry that was acknowledged before this call.

        Hazard 13: a majority first confirms that no other leader acknowledged anything. Nothing is written.
        """
        self.reads.ask(max(self.state.commit_index, self.first_of_term), answer)
        self.state.env.wake()

    def confirm_reads(self) -> None:
        """If a read waits for it, ask every member to confirm this leadership, however short the member's log is."""
        read_id = self.reads.begin(self.state.env.now())
        if read_id is None:
            return
        for peer in self.replication.followers.members:
            known = min(self.state.commit_index, self.replication.progress[peer].match)
            self.state.env.send(peer, CommitNotice(self.term, known, False, read_id))

    def answer_reads(self) -> None:
        """Answer the reads that a majority has confirmed and whose index is applied."""
        if not self.reads.pending:
            return
        state = self.state
        own = (state.me.broker_id,) if state.configs.counts(state.me) else ()
        applied, membership = state.applied_index, state.configs.membership
        for answer in self.reads.take(own, applied, lambda brokers: has_quorum(membership, brokers)):
            answer(applied)

    # ---- ticks --------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Repeat unanswered messages, and begin a transfer if a sync of our own disk hangs.

        The replica calls it when `settle_at` is due.
        """
        self.list_replacement()
        self.replication.settle(self.state.commit_index)
        if self.transfer is None and self.replication.sync_hangs():
            self.begin_transfer(None, now + self.state.env.timing.transfer_timeout_s)

    def tick(self, now: float) -> None:
        """Replicate, confirm and answer reads, continue a transfer, and decide whether the group may rest."""
        self.replication.replicate(self.state.commit_index)
        self.confirm_reads()
        self.answer_reads()  # a group of one needs no answers
        if self.transfer is not None:
            self._continue_transfer(self.transfer, now)
        if self.quiet():
            self.settle_at = NEVER
        elif self.settle_at <= now or self.settle_at == NEVER:
            self.settle_at = now + SETTLE_S

    def quiet(self) -> bool:
        """May the group rest? Nothing is left to send, no read waits, and every live follower knows the commit."""
        if self.transfer is not None or self.reads.pending:
            return False
        return self.replication.quiet(self.state.configs, self.state.commit_index)

    # ---- transfer -----------------------------------------------------------------------------------------

    def transfer_obstacle(self, peer: int) -> str:
        """Return the reason why a transfer to `peer` would not succeed at once; "" if it would."""
        if self.transfer is not None:
            return f"its leadership is being transferred to broker {self.transfer.successor}"
        if not self.state.env.alive(peer):
            return f"broker {peer} is not alive"
        if not self.replication.followers.counts(self.state.configs, peer):
            return f"broker {peer} is not listed yet, or has not been heard in this term"
        missing = self.replication.followers.missing(peer)
        if missing is None or missing > BEHIND_ENTRIES_MAX:
            return f"broker {peer} is catching up" + (f": it lacks {missing:,} entries" if missing else "")
        return "a sync hangs" if self.replication.sync_hangs() else ""

    def begin_transfer(self, to: int | None, until: float, manual: bool = False) -> bool:
        """Stop accepting proposals, and let a follower catch up and campaign. False when no follower can lead.

        `to`: the successor; None: the follower that holds most. `until`: monotonic time at which the leader gives up.
        """
        able = self.replication.followers.successors(self.state.configs)
        if not able or to not in (None, *able):
            return False
        self.transfer = LeadershipTransfer(able[0] if to is None else to, until, manual)
        self.settle_at = self.state.env.now()
        self.state.env.wake()
        return True

    def _continue_transfer(self, transfer: LeadershipTransfer, now: float) -> None:
        if transfer.is_over(now):
            self.transfer = None
        elif self.replication.followers.holds_all(transfer.successor):
            # Sent again at each tick until the successor's campaign ends this term: the message may be lost.
            self.state.env.send(transfer.successor, TimeoutNow(self.term, transfer.manual))
