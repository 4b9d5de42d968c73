"""How a replica leads: what it accepts, counts and sends.

The decisions are `commit`, `replication`, `configs`, `reads` and `offering`, pure; one term's book-keeping is a
`Leadership`, dropped when the term ends.
"""

from __future__ import annotations

from typing import Any

import structlog

from tinymq.base.errors import NotLeader, QuotaExceeded
from tinymq.base.types import Position
from tinymq.format.entry import HEADER_SIZE, Entry, Kind, NewEntry, make_entry
from tinymq.format.feature_level import FIRST_LEVEL, check, entry_level
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.leader.leadership import SETTLE_S, Leadership
from tinymq.raft.replica import pysyncobj_seams
from tinymq.raft.replica.leadership_transfer import TransferringReplica
from tinymq.raft.replica.pysyncobj_state import NEVER
from tinymq.raft.rules.append_clock import AppendClock
from tinymq.raft.rules.commit import reported_commit
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.membership import has_quorum, pack_membership
from tinymq.raft.rules.messages import AppendAck, InstallSnapshotAck, Message
from tinymq.raft.rules.noop import NoopNote, pack_noop
from tinymq.raft.rules.read_index import Answer

logger = structlog.get_logger("tinymq.raft")


class LeadingReplica(TransferringReplica):
    """A replica that others may follow."""

    @property
    def leading_term(self) -> int | None:
        return None if self._leadership is None else self._leadership.term

    @property
    def uncommitted_bytes(self) -> int:
        """Of what this leader has appended and not yet applied; 0 when it does not lead."""
        return 0 if self._leadership is None else self._leadership.uncommitted_bytes

    def lags(self) -> dict[int, int]:
        """Entries that each follower has not acknowledged as synced in this term; empty when it does not lead."""
        if self._leadership is None:
            return {}
        return {peer: self._log.last_index - p.match for peer, p in self._leadership.progress.items()}

    def _SyncObj__onBecomeLeader(self) -> None:
        """Hazards 7, 19: the leader counts itself like any other, and accepts once it applied its own NOOP."""
        around, log = self._around, self._log
        origin = LeadershipOrigin.WON if self._ballot is None else self._ballot.origin
        self._ballot = None
        self._set_leader(self._me.broker_id)
        self._SyncObj__setState(pysyncobj_seams.LEADER)
        self._SyncObj__raftElectionDeadline = NEVER
        stamps = AppendClock(log.last_append_time_us, around.cluster_us(), around.now())
        self._leadership = Leadership(
            self.term, log.last_index + 1, self._peers, log, around, stamps, around.limits, around.timing
        )
        self._leadership.origin = origin
        self._settle_at = around.now() + SETTLE_S
        for peer in around.observers():
            self.observer_alive(peer)
        self._append_noop(self._leadership)

    def _append_noop(self, leadership: Leadership) -> None:
        """Append a NOOP that tells every replica whether append times can be trusted from here on, and by how much they
        jumped."""
        stamps = leadership.stamps
        position = self._append_as_leader(
            leadership, NewEntry(Kind.NOOP, pack_noop(NoopNote(stamps.known, stamps.jump_us)))
        )
        leadership.known_at = position.index if stamps.known else None

    def learn_time(self) -> None:
        """If this leader began without the cluster's time and the time is known now, append a NOOP that says so."""
        leadership = self._leadership
        if leadership is None or leadership.stamps.known or leadership.transfer_to is not None:
            return
        if (now_us := self._around.cluster_us()) is None:
            return
        leadership.stamps.learn(now_us, self._around.now())
        self._append_noop(leadership)

    def _commit(self) -> None:
        """As the leader: commit what a majority holds, and apply it at once, for somebody waits for the answer."""
        if self._leadership is None:
            return
        self._advance(self._leadership.commit(self._configs, self._me, self.commit_index))

    def _advance(self, commit: int) -> None:
        if commit > self.commit_index:
            self._set_commit(commit)
            self._SyncObj__applyLogEntries()
            if self._leadership is not None and self._leadership.tell_soon():
                self._around.wake()

    def _look_after(self, peer: int) -> None:
        """Begin anew with a follower, and do not rest before it has answered."""
        assert self._leadership is not None
        self._leadership.lost(peer)
        self._settle_at = self._around.now()
        self._around.wake()

    def connection_lost(self, peer: int) -> None:
        """The bulk connection to a follower closed: what was out on it may be gone."""
        if self._leadership is not None:
            self._leadership.lost(peer)
            self._settle_at = min(self._settle_at, self._around.now() + SETTLE_S)
            self._around.wake()

    # ---- observers: who follows without a vote --------------------------------------------------------------

    def observer_alive(self, peer: int) -> None:
        """A broker that no CONFIG lists came, or came back, to follow this group."""
        leadership = self._leadership
        if leadership is None or self.membership.replica(peer) is not None:
            return
        if leadership.observe(peer):
            self._look_after(peer)
        else:
            logger.warning("observer_refused", group=str(self._group), broker=peer, reason="there are too many")

    def observer_gone(self, peer: int) -> None:
        if self._leadership is not None:
            self._leadership.forget(peer)

    def _hear_observer(self, peer: int, message: Message) -> None:
        """What it holds says what to send it next. It moves no term, no commit and no round (hazard 8)."""
        leadership = self._leadership
        if leadership is None or peer not in leadership.progress or message.term != leadership.term:
            return
        if isinstance(message, InstallSnapshotAck):
            self._on_install_snapshot_ack(peer, message)
        elif isinstance(message, AppendAck):
            if not message.conflict and max(message.durable, message.received) > self._log.last_index:
                return  # of a member this would be a broken invariant; no observer may end a leader
            if leadership.acknowledged(peer, message) or leadership.wants_tick(peer, self.commit_index):
                self._around.wake()

    def check_quorum(self) -> None:
        """Hazard 13: a leader that a majority no longer hears, or does not prove to, steps down."""
        hearing = {self._me.broker_id, *(p for p in self._peers if self._around.heard_by(p))}
        if self._leadership is not None and not has_quorum(self.membership, hearing):
            self._follow(None)

    def propose(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        """Append to the leader's log, in memory. No await: what was decided on this log's end holds (hazard 19)."""
        leadership = self._leadership
        if leadership is None or leadership.transfer_to is not None:
            raise NotLeader(f"{self._group} is not led here", leader=self.leader_id, leader_epoch=self.term)
        if leadership.uncommitted_bytes + len(new.payload) > self._around.limits.uncommitted_bytes_max:
            raise QuotaExceeded("too much is waiting for a majority of replicas", retry_after_ms=50)
        if new.kind == Kind.DATA:  # commands make room, or keep the place of who reads
            self._log.check_quota(len(new.payload) + HEADER_SIZE)
        return self._append_as_leader(leadership, new, raises_level=raises_level)

    def append_time_now_us(self) -> int:
        """The append time now, for decisions on the applied state. No entry that is appended later gets an earlier one.
        Raises NotLeader."""
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(f"{self._group} is not led here", leader=self.leader_id, leader_epoch=self.term)
        stamp = leadership.stamps.stamp(self._around.cluster_us(), self._around.now())
        if leadership.known_at is not None and leadership.known_at > self.applied_index:
            return stamp - leadership.stamps.jump_us  # the applied leases do not include the jump yet
        return stamp

    def expiry_now_us(self) -> int | None:
        """The append time now, if records may be removed for their age. None: this broker does not hear the clocks of a
        majority of the brokers that hold any replica, or this term's append times cannot be trusted yet. Raises
        NotLeader."""
        now_us, leadership = self.append_time_now_us(), self._leadership
        assert leadership is not None
        settled = leadership.known_at is not None and leadership.known_at <= self.applied_index
        return now_us if settled and self._around.cluster_us() is not None else None

    def _append_as_leader(self, leadership: Leadership, new: NewEntry, *, raises_level: bool = False) -> Position:
        """Make an entry; no other code of a leader does. Refuses an entry that some member may not know (the feature
        level). `raises_level`: the entry raises that level, and its proposer has checked that every member knows the
        new one."""
        needed = entry_level(new.kind, new.version)
        if needed > FIRST_LEVEL and not raises_level:
            check(f"entry version {new.version} of {Kind(new.kind).name}", needed, self._around.feature_level)
        log, around = self._log, self._around
        stamp = leadership.stamps.stamp(around.cluster_us(), around.now())
        entry = make_entry(
            new,
            index=log.last_index + 1,
            term=leadership.term,
            prev_crc=log.last_crc,
            base_offset=log.next_offset,
            append_time_us=stamp,
        )
        self._change_log(None, [entry])
        leadership.uncommitted_bytes += entry.size
        if leadership.nothing_out() and self._settle_at != NEVER:
            leadership.pump(self.commit_index)  # a lone write does not wait for the tick; others share messages
        else:
            around.wake()
        return Position(entry.index, entry.term, entry.header.base_offset, stamp)

    def read_index(self, answer: Answer) -> None:
        """Hazard 13: learn up to which index everything is applied of what was acknowledged anywhere before this call,
        once a majority has said that no other leader did it. Nothing is written. Raises NotLeader."""
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(f"{self._group} is not led here", leader=self.leader_id, leader_epoch=self.term)
        leadership.reads.ask(max(self.commit_index, leadership.first_of_term), answer)
        self._around.wake()

    def does_without(self, peer: int) -> bool:
        """Would the group go on if what broker `peer` holds were gone, and everybody else lost power at this moment?"""
        sure = set() if self._leadership is None else self._leadership.sure(self._configs)
        own = {self._me.broker_id} if self.is_member else set()
        return has_quorum(self.membership, (sure | own) - {peer})

    def _answer_reads(self) -> None:
        if self._leadership is not None and self._leadership.reads.pending:
            for answer in self._leadership.readers(self._configs, self._me, self.applied_index):
                answer(self.applied_index)

    def read_done(self, term: int, peer: int, index: int, entries: list[Entry]) -> None:
        """A cold read for a follower is done (empty: it failed)."""
        if self._leadership is not None and self._leadership.term == term:
            self._leadership.read(peer, index, entries, self.commit_index)
            self._around.wake()

    def state_read(self, term: int, peer: int, state: Snapshot | None) -> None:
        """The applied state before our first entry was read for a follower (None: it failed, or there is none)."""
        if self._leadership is not None and self._leadership.term == term:
            self._leadership.offers.read(state)
            self._around.wake()

    def _on_install_snapshot_ack(self, peer: int, ack: InstallSnapshotAck) -> None:
        if self._adopt(ack.term) or self._leadership is None or ack.term != self.term:
            return
        if self._leadership.offers.acknowledged(peer, ack):
            self._around.wake()

    def _on_ack(self, peer: int, ack: AppendAck) -> None:
        if self._adopt(ack.term) or self._leadership is None or ack.term != self.term:
            return  # hazard 3: an answer of another term says nothing about this one
        leadership = self._leadership
        moved = leadership.acknowledged(peer, ack)
        if ack.round:
            leadership.round_answered(self._configs, peer, ack.round)
            self._around.wake()
        if not ack.conflict:
            self._advance(reported_commit(self.commit_index, ack.commit, ack.durable))
        if not leadership.counts(self._configs, peer):
            self._list_anew()
        if moved:
            self._commit()
            if self._settle_at == NEVER or leadership.wants_tick(peer, self.commit_index):
                self._around.wake()  # else the timers that are set will do

    def _list_anew(self) -> None:
        """Hazard 22: who came back as another incarnation is listed by a CONFIG that commits without it. One at a
        time, and not before this leader knows what is committed."""
        leadership = self._leadership
        if leadership is None or self.applied_index < leadership.first_of_term or leadership.transfer_to is not None:
            return
        membership = self._configs.replacement(leadership.present())
        if membership is not None:
            self._append_as_leader(leadership, NewEntry(Kind.CONFIG, pack_membership(membership)))

    def _SyncObj__sendAppendEntries(self) -> None:
        """Hazards 2, 12, 17, 18: whole entries, within a window, from memory or by a read beside the loop."""
        leadership = self._leadership
        assert leadership is not None
        now = self._around.now()
        self.learn_time()
        if self._settle_at <= now:
            self.check_quorum()  # they may have gone before it led
            if self._leadership is None:
                return
            self._list_anew()
            leadership.settle(self.commit_index)
            if leadership.transfer_to is None and leadership.sync_hangs():
                self.hand_over(None, now + self._around.timing.hand_over_s)
        leadership.pump(self.commit_index)
        leadership.ask_round(self.commit_index)
        self._answer_reads()  # a group of one has asked everybody by now
        if leadership.transfer_to is not None:
            self._continue_hand_over(leadership, leadership.transfer_to, now)
        if leadership.quiet(self._configs, self.commit_index):
            self._settle_at = NEVER
        elif self._settle_at <= now or self._settle_at == NEVER:
            self._settle_at = now + SETTLE_S

    def describe(self) -> dict[str, Any]:
        """Progress of the followers, for logs and tests."""
        if self._leadership is None:
            return {}
        return {str(p): (g.match, g.next, g.mode.value) for p, g in self._leadership.progress.items()}
