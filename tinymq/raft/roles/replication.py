"""How the leader of one term fills its followers, and what their answers commit.

It exists for one term, so that nothing of a term outlives it (hazard 19). The decisions about one follower are
`rules.progress` and `rules.log_matching`; the commit rule is `rules.commit`.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tinymq.base.config import Limits, Timing
from tinymq.format.entry import Entry
from tinymq.log.replica_log.log import Log
from tinymq.raft.roles.followers import Followers
from tinymq.raft.roles.snapshot_sender import SnapshotSender
from tinymq.raft.rules.commit import leader_commit
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.log_matching import next_after_conflict
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.messages import Append, AppendAck, CommitNotice
from tinymq.raft.rules.progress import Mode, Progress
from tinymq.raft.state.env import PeerLink

logger = structlog.get_logger("tinymq.raft")

APPEND_BYTES = 1 << 20  # one Append carries about this much, and at least one entry
PROBE_RETRY_S = 0.1
NEVER = float("inf")
NOTICE_S = 0.002  # a commit waits this long for an Append that carries it: writes in a row need no notices


class Replication:
    """Sends the log to all followers of one term, within the window of each."""

    def __init__(
        self,
        term: int,
        first_of_term: int,
        peers: Iterable[int],
        log: Log,
        link: PeerLink,
        limits: Limits,
        timing: Timing,
    ) -> None:
        self.followers = Followers(first_of_term, peers, log, link)
        self.progress = self.followers.progress
        self.snapshots = SnapshotSender(term, log, link, self.progress)
        self.notice_at = NEVER  # when followers are told of the commit, if no Append tells them before
        self.term = term
        self.first_of_term = first_of_term  # index of this term's NOOP: commits count from here (paper, 5.4.2)
        self.log = log
        self.link = link
        self._limits = limits
        self._timing = timing
        self._notified: dict[int, int] = {}  # by peer: the commit index that was sent to it last
        self._reading: set[int] = set()  # peers for which a cold read is under way
        self._unsynced: tuple[int, float] | None = None  # our durable index while it is not our last; since when

    # ---- answers ------------------------------------------------------------------------------------

    def acknowledged(self, peer: int, ack: AppendAck) -> bool:
        """Take an answer of this term. True when the follower's progress moved, or there is more to send.

        The caller drops answers of other terms (hazard 3).
        """
        progress = self.progress.get(peer)
        if progress is None:
            return False
        moved = False
        incarnation, known = self.link.incarnation(peer), progress.replica
        if incarnation is not None and (known is None or (known.incarnation, known.count) != (incarnation, ack.count)):
            # Another incarnation. What the old one held and knew counts no more, and this one need not hold it
            # (hazard 22). It may hold it all the same: we ask where we were, and its answer says where the logs meet.
            if known is not None:
                self.progress[peer] = progress = Progress(next=progress.next)
                self._notified.pop(peer, None)
                moved = True
            progress.replica = Replica(peer, incarnation, ack.count)
        if ack.conflict:
            if ack.received < progress.match:
                # In one term a follower keeps what it acknowledged. This one's disk has lost some of it unnoticed.
                logger.warning("follower_lost_entries", peer=peer, acknowledged=progress.match, holds=ack.received)
            progress.conflicted(next_after_conflict(self.log, ack))
            return True
        moved = progress.acknowledged(ack, self.link.now()) or moved
        assert progress.match <= self.log.last_index, f"peer {peer} acknowledged {ack.durable}, beyond our log"
        return moved or progress.next <= self.log.last_index

    def lost(self, peer: int) -> None:
        """A connection closed, or the follower asks who leads: what was in flight, and what it knew, may be gone."""
        if peer in self.progress:
            self.progress[peer].restart()
            self.progress[peer].commit = 0  # the group does not rest before the follower says again that it knows
            self._notified.pop(peer, None)

    def commit(self, configs: Configs, me: Replica, commit: int) -> int:
        """Return the commit index now. The leader's own vote is its durable index."""
        held = [commit < self.log.durable_index]
        held += [commit < self.progress[member].match for member in self.followers.members]
        if sum(held) < configs.membership.quorum:
            return commit  # too few replicas hold more, even if all of them count: most events move nothing
        counting = [m for m in self.followers.members if self.followers.counts(configs, m)]
        match = {member: self.progress[member].match for member in counting}
        if configs.counts(me):
            match[me.broker_id] = self.log.durable_index
        return leader_commit(configs.membership, match, commit, self.first_of_term)

    # ---- sending --------------------------------------------------------------------------------------

    def replicate(self, commit: int) -> None:
        """Send every connected follower as much of the log as its window allows.

        Followers that no Append informs of the commit get a CommitNotice within NOTICE_S.
        """
        for peer, progress in self.progress.items():
            if not self.link.connected(peer):
                continue
            while progress.may_send(self._limits.inflight_bytes_max):
                # A follower in REPLICATE that has every entry needs nothing more. One in PROBE
                # is asked even then: only its answer tells us where the two logs meet.
                if progress.next > self.log.last_index and progress.mode is Mode.REPLICATE:
                    break
                if not self._send_next(peer, progress, commit):
                    break  # the link is full, or the entries are being read from disk
        if self.notice_at <= self.link.now():
            self.notice_at = NEVER
            for peer, progress in self.progress.items():
                if self.link.connected(peer):
                    self.notify(peer, progress, commit, ack_wanted=False)

    def _send_next(self, peer: int, progress: Progress, commit: int) -> bool:
        if peer in self._reading:
            return False
        if progress.mode is Mode.SNAPSHOT or self.log.term_at(progress.next - 1) is None:
            # Retention has removed the entry before the next one: only the snapshot before our first entry helps.
            self.snapshots.send(peer, progress)
            return False
        if progress.next > self.log.last_index or progress.unanswered:
            return self._send(peer, progress, (), commit)  # a question: do the logs meet there?
        entries = self.log.reader.tail(progress.next, APPEND_BYTES)
        if entries is None:
            self._reading.add(peer)
            self.link.read_cold(peer, progress.next)
            return False
        return self._send(peer, progress, entries, commit)

    def entries_read(self, peer: int, index: int, entries: list[Entry], commit: int) -> None:
        """A cold read is done (empty: it failed). Send the entries, unless the follower is elsewhere by now.

        If retention has removed the entry before them meanwhile, the follower gets the snapshot at its next turn.
        """
        self._reading.discard(peer)
        progress = self.progress.get(peer)  # None: an observer that is gone
        there = progress is not None and progress.next == index and self.log.term_at(index - 1) is not None
        if progress is not None and entries and there and progress.may_send(self._limits.inflight_bytes_max):
            self._send(peer, progress, entries, commit)

    def _send(self, peer: int, progress: Progress, entries: Iterable[Entry], commit: int) -> bool:
        batch = list(entries)
        prev = progress.next - 1
        prev_term = self.log.term_at(prev)
        assert prev_term is not None
        if not self.link.send(peer, Append(self.term, prev, prev_term, commit, batch)):
            return False
        last = prev + len(batch)
        progress.sent(last, sum(e.size for e in batch), self.link.now())
        self._notified[peer] = max(self._notified.get(peer, 0), min(commit, last))
        return True

    # ---- telling of the commit ------------------------------------------------------------------------

    def notify(self, peer: int, progress: Progress, commit: int, ack_wanted: bool) -> None:
        """Tell a follower of the commit index, as far as its log is known to match ours."""
        known = min(commit, progress.match)
        news = ack_wanted or known > self._notified.get(peer, 0)
        if (
            progress.mode is Mode.REPLICATE
            and news
            and self.link.send(peer, CommitNotice(self.term, known, ack_wanted))
        ):
            self._notified[peer] = max(self._notified.get(peer, 0), known)

    def notify_soon(self) -> bool:
        """The commit advanced: tell the followers within NOTICE_S. True when that needs a timer."""
        if self.notice_at != NEVER:
            return False
        self.notice_at = self.link.now() + NOTICE_S
        return True

    def wants_tick(self, peer: int, commit: int) -> bool:
        """After an answer of `peer`: is there more for it, or news of the commit for which no timer is set yet?"""
        progress = self.progress[peer]
        if progress.next <= self.log.last_index:
            return True
        return min(commit, progress.match) > self._notified.get(peer, 0) and self.notify_soon()

    # ---- resting --------------------------------------------------------------------------------------

    def settle(self, commit: int) -> None:
        """Ask again what got no answer. Called every SETTLE_S until the group is quiet."""
        now = self.link.now()
        self.snapshots.settle()
        for peer, progress in self.progress.items():
            if not self.link.alive(peer) or not self.link.connected(peer):
                continue
            # A chunk of a snapshot takes longer on a slow link than a probe does.
            large = progress.sending is not None and progress.sending.position is not None
            if progress.probe_overdue(self._timing.bulk_stalled_s if large else PROBE_RETRY_S, now):
                progress.probe_again()
            elif progress.match < self.log.last_index and self._stalled(progress, now):
                progress.restart()
                self.link.reopen(peer)
            elif progress.match == self.log.last_index and progress.commit < commit:
                self.notify(peer, progress, commit, ack_wanted=True)

    def _stalled(self, progress: Progress, now: float) -> bool:
        """Is an answer overdue? Its last answer may also have been lost on the way."""
        return progress.mode is Mode.REPLICATE and now - progress.sent_at > self._timing.bulk_stalled_s

    def sync_hangs(self) -> bool:
        """Has our own disk made nothing durable for too long? Called with `settle`."""
        durable, now = self.log.durable_index, self.link.now()
        if durable == self.log.last_index:
            self._unsynced = None
        elif self._unsynced is None or self._unsynced[0] != durable:
            self._unsynced = durable, now
        return self._unsynced is not None and now - self._unsynced[1] > self._timing.sync_hang_s

    def quiet(self, configs: Configs, commit: int) -> bool:
        """Is everything committed, synced here, and known to every live follower? Then nothing needs to be sent."""
        everything = commit == self.log.last_index == self.log.durable_index
        return everything and self.followers.all_know(configs, commit)
