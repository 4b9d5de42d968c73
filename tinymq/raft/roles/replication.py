"""Replication of one term's leader to its followers, and the commit index that their answers give.

A Replication exists for one term, so that nothing of a term outlives it (hazard 19). The decisions about one follower
are in `rules.progress` and `rules.log_matching`, the commit rule in `rules.commit`.
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

APPEND_BYTES = 1 << 20  # about the most that one Append carries; it carries at least one entry
PROBE_RETRY_S = 0.1  # seconds until an unanswered probe is repeated
NEVER = float("inf")
NOTICE_S = 0.002  # seconds that a commit waits for an Append to carry it, so that consecutive writes need no notices


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
        self.notice_at = NEVER  # monotonic time of the next notices; followers that an Append informs need none
        self.term = term
        self.first_of_term = first_of_term  # index of this term's NOOP: commits count from here (paper, 5.4.2)
        self.log = log
        self.link = link
        self._limits = limits
        self._timing = timing
        self._notified: dict[int, int] = {}  # by peer: the commit index that was sent to it last
        self._reading: set[int] = set()  # peers for which a cold read is under way
        # (durable index, monotonic time since which it stands) while it is below our last index; None: all is synced
        self._unsynced: tuple[int, float] | None = None

    # ---- answers ------------------------------------------------------------------------------------

    def acknowledged(self, peer: int, ack: AppendAck) -> bool:
        """Take an answer of this term. True when the leader must look again.

        That is, the commit index may move, or there is more to send. The caller drops answers of other terms
        (hazard 3).
        """
        progress = self.progress.get(peer)
        if progress is None:
            return False
        moved = False
        incarnation, known = self.link.incarnation(peer), progress.replica
        if incarnation is not None and (known is None or (known.incarnation, known.count) != (incarnation, ack.count)):
            # Another incarnation, which may lack everything that the old one acknowledged (hazard 22). So its progress
            # starts empty. We probe at the old `next` first, because it may hold those entries, and its answer says
            # where the logs meet.
            if known is not None:
                self.progress[peer] = progress = Progress(next=progress.next)
                self._notified.pop(peer, None)
                moved = True
            progress.replica = Replica(peer, incarnation, ack.count)
        if ack.conflict:
            if ack.received < progress.match:
                # A follower truncates no acknowledged entry within a term. This one's disk has lost some unnoticed.
                logger.warning("follower_lost_entries", peer=peer, acknowledged=progress.match, holds=ack.received)
            progress.conflicted(next_after_conflict(self.log, ack))
            return True
        moved = progress.acknowledged(ack, self.link.now()) or moved
        assert progress.match <= self.log.last_index, f"peer {peer} acknowledged {ack.durable}, beyond our log"
        return moved or progress.next <= self.log.last_index

    def lost(self, peer: int) -> None:
        """Probe a follower again, because it lost its connection or its leader. Messages in flight may be lost."""
        if peer in self.progress:
            self.progress[peer].restart()
            self.progress[peer].commit = 0  # the group does not rest before the follower confirms the commit again
            self._notified.pop(peer, None)

    def commit(self, configs: Configs, me: Replica, commit: int) -> int:
        """Return the commit index now. The leader's own vote is its durable index."""
        held = [commit < self.log.durable_index]
        held += [commit < self.progress[member].match for member in self.followers.members]
        if sum(held) < configs.membership.quorum:
            return commit  # fast path: too few replicas hold more, even if all of them counted
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
            # Retention has removed the entry before `next`, so the follower needs the snapshot before our first entry.
            self.snapshots.send(peer, progress)
            return False
        if progress.next > self.log.last_index or progress.unanswered:
            return self._send(peer, progress, (), commit)  # an empty probe: do the logs match there?
        entries = self.log.reader.tail(progress.next, APPEND_BYTES)
        if entries is None:
            self._reading.add(peer)
            self.link.read_cold(peer, progress.next)
            return False
        return self._send(peer, progress, entries, commit)

    def entries_read(self, peer: int, index: int, entries: list[Entry], commit: int) -> None:
        """Take the result of a cold read (empty: it failed). Send the entries if the follower still needs them.

        If retention has removed the entry before them meanwhile, the next `replicate` sends the snapshot.
        """
        self._reading.discard(peer)
        progress = self.progress.get(peer)  # None: an observer that is gone
        fits = progress is not None and progress.next == index and self.log.term_at(index - 1) is not None
        if progress is not None and entries and fits and progress.may_send(self._limits.inflight_bytes_max):
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
        # The follower commits only entries that this Append verifies, so it learns the commit index up to `last`.
        self._notified[peer] = max(self._notified.get(peer, 0), min(commit, last))
        return True

    # ---- commit notices -------------------------------------------------------------------------------

    def notify(self, peer: int, progress: Progress, commit: int, ack_wanted: bool) -> None:
        """Send a follower the commit index, at most up to its match index."""
        known = min(commit, progress.match)
        news = ack_wanted or known > self._notified.get(peer, 0)
        if (
            progress.mode is Mode.REPLICATE
            and news
            and self.link.send(peer, CommitNotice(self.term, known, ack_wanted))
        ):
            self._notified[peer] = max(self._notified.get(peer, 0), known)

    def notify_soon(self) -> bool:
        """Schedule commit notices within NOTICE_S. True when that sets a new timer."""
        if self.notice_at != NEVER:
            return False
        self.notice_at = self.link.now() + NOTICE_S
        return True

    def wants_tick(self, peer: int, commit: int) -> bool:
        """Does `peer` need a tick after its answer: for more entries, or for a commit notice without a timer?"""
        progress = self.progress[peer]
        if progress.next <= self.log.last_index:
            return True
        return min(commit, progress.match) > self._notified.get(peer, 0) and self.notify_soon()

    # ---- resting --------------------------------------------------------------------------------------

    def settle(self, commit: int) -> None:
        """Repeat unanswered messages. Called every SETTLE_S until the group is quiet."""
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
                # Everything is sent, and no ack comes: the bulk connection may be stuck with entries in its buffers.
                progress.restart()
                self.link.reopen(peer)
            elif progress.match == self.log.last_index and progress.commit < commit:
                # It has every entry, and only lacks the commit index, without which the group cannot rest.
                self.notify(peer, progress, commit, ack_wanted=True)

    def _stalled(self, progress: Progress, now: float) -> bool:
        """Is an answer overdue? The entries or the answer may be lost."""
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
        """Is the whole log committed, synced here, and known to every live follower? Then nothing has to be sent."""
        everything = commit == self.log.last_index == self.log.durable_index
        return everything and self.followers.all_know(configs, commit)
