"""One term of leading one group: what each follower holds, what goes to it next, when the group may rest.

Made when a term is won and dropped when it ends, so that nothing of one term outlives it (hazard 19).
Decides through `replication` and `commit`; sends through the `Surroundings` it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import structlog

from tinymq.base.config import Limits, Timing
from tinymq.format.entry import Entry
from tinymq.log.replica_log.log import Log
from tinymq.raft.leader.followers import Followers
from tinymq.raft.leader.snapshot_sender import SnapshotSender
from tinymq.raft.rules.append_clock import AppendClock
from tinymq.raft.rules.commit import leader_commit
from tinymq.raft.rules.configs import Configs
from tinymq.raft.rules.election import LeadershipOrigin
from tinymq.raft.rules.log_matching import next_after_conflict
from tinymq.raft.rules.membership import Replica, has_quorum
from tinymq.raft.rules.messages import Append, AppendAck, CommitNotice, Message
from tinymq.raft.rules.progress import Mode, Progress
from tinymq.raft.rules.read_index import Answer, ReadIndexes

logger = structlog.get_logger("tinymq.raft")

APPEND_BYTES = 1 << 20  # one Append carries about this much, and at least one entry
PROBE_RETRY_S = 0.1
NEVER = float("inf")
NOTICE_S = 0.002  # a commit waits this long for an Append that carries it: writes in a row need no notices
SETTLE_S = 0.1  # how soon after the last write the followers are asked whether they know of the commit


class PeerLink(Protocol):
    """How a leadership reaches its followers."""

    def now(self) -> float: ...
    def alive(self, peer: int) -> bool: ...
    def connected(self, peer: int) -> bool: ...
    def incarnation(self, peer: int) -> bytes | None: ...
    def send(self, peer: int, message: Message) -> bool: ...
    def reopen(self, peer: int) -> None:
        """The bulk connection seems stuck: open it anew."""
        ...

    def read_cold(self, peer: int, index: int) -> None:
        """Read entries from disk, then call `Leadership.read` and send."""
        ...

    def read_state(self, peer: int) -> None:
        """Read the applied state before the log's first entry, then call `SnapshotSender.read` and send."""
        ...


class Leadership(Followers):
    """Progress of all followers in one term."""

    def __init__(
        self, term: int, first_of_term: int, peers: Iterable[int], log: Log, line: PeerLink, stamps: AppendClock,
        limits: Limits, timing: Timing,
    ) -> None:  # fmt: skip
        super().__init__(first_of_term, peers, log, line)
        self.term = term
        self.first_of_term = first_of_term  # index of this term's NOOP: commits count from here (paper, 5.4.2)
        self.stamps = stamps
        self.known_at: int | None = None  # index of the NOOP after which append times can be trusted
        self.uncommitted_bytes = 0  # invariant: bytes of this term's entries above the applied index
        self.transfer_to: int | None = None
        self.transfer_until = 0.0
        self.transfer_manual = False
        self.origin = LeadershipOrigin.WON  # how it came about
        self.notice_at = NEVER  # when followers are told of the commit, if no Append does it before
        self.reads = ReadIndexes()
        self._log = log
        self._line = line
        self._limits = limits
        self._timing = timing
        self._told: dict[int, int] = {}  # commit index last sent to each peer
        self._reading: set[int] = set()  # peers for which a cold read is under way
        self._unsynced: tuple[int, float] | None = None  # our durable index while it is not our last, and since when
        self.offers = SnapshotSender(term, log, line, self.progress)

    # ---- answers ------------------------------------------------------------------------------------

    def acknowledged(self, peer: int, ack: AppendAck) -> bool:
        """Take an answer of this term (the caller dropped others: hazard 3). True when something moved."""
        progress = self.progress.get(peer)
        if progress is None:
            return False
        moved = False
        incarnation, known = self._line.incarnation(peer), progress.replica
        if incarnation is not None and (known is None or (known.incarnation, known.count) != (incarnation, ack.count)):
            # Another incarnation: what the old one held and knew counts no more, nor need it hold that (hazard 22).
            # It may hold it all the same: it is asked where we were, and says at once where the logs meet.
            if known is not None:
                self.progress[peer] = progress = Progress(next=progress.next)
                self._told.pop(peer, None)
                moved = True
            progress.replica = Replica(peer, incarnation, ack.count)
        if ack.conflict:
            if ack.received < progress.match:
                logger.warning("disk_forgot", peer=peer, acknowledged=progress.match, holds=ack.received)
            progress.conflicted(next_after_conflict(self._log, ack))
            return True
        moved = progress.acknowledged(ack, self._line.now()) or moved
        assert progress.match <= self._log.last_index, f"peer {peer} acknowledged {ack.durable}, beyond our log"
        return moved or progress.next <= self._log.last_index

    def lost(self, peer: int) -> None:
        """The connection closed, or the follower asks who leads: what was out, and what it knew, may be gone."""
        if peer in self.progress:
            self.progress[peer].restart()
            self.progress[peer].commit = 0  # no rest before it says again that it knows
            self._told.pop(peer, None)

    def commit(self, configs: Configs, me: Replica, commit: int) -> int:
        """The commit index now. The leader's own vote is its durable index."""
        held = [commit < self._log.durable_index, *[commit < self.progress[m].match for m in self.members]]
        if sum(held) < configs.membership.quorum:
            return commit  # whoever of them counts: most events move nothing
        match = {m: self.progress[m].match for m in self.members if configs.counts(self._replica(m))}
        if configs.counts(me):
            match[me.broker_id] = self._log.durable_index
        return leader_commit(configs.membership, match, commit, self.first_of_term)

    def round_answered(self, configs: Configs, peer: int, round_: int) -> None:
        """A follower of this term says so; called after `acknowledged`, which knows who it is."""
        if configs.counts(self._replica(peer)):
            self.reads.answered(peer, round_)

    def readers(self, configs: Configs, me: Replica, applied: int) -> list[Answer]:
        """Who may read now: a majority has said that nobody else leads."""
        own = (me.broker_id,) if configs.counts(me) else ()
        return self.reads.take(own, applied, lambda brokers: has_quorum(configs.membership, brokers))

    # ---- sending --------------------------------------------------------------------------------------

    def pump(self, commit: int) -> None:
        """Send what may be sent. Who learns of the commit by no Append is told of it within NOTICE_S."""
        for peer, progress in self.progress.items():
            if not self._line.connected(peer):
                continue
            while progress.may_send(self._limits.inflight_bytes_max):
                if progress.next > self._log.last_index and progress.mode is Mode.REPLICATE:
                    break
                if not self._send_next(peer, progress, commit):
                    break
        if self.notice_at <= self._line.now():
            self._tell_all(commit)

    def ask_round(self, commit: int) -> None:
        """Begin a round, if somebody waits for one: every member is asked, whatever it holds."""
        number = self.reads.begin(self._line.now())
        if number is None:
            return
        for peer in self.members:
            self._line.send(peer, CommitNotice(self.term, min(commit, self.progress[peer].match), False, number))

    def _tell_all(self, commit: int) -> None:
        """Tell of the commit those whom no Append has told meanwhile."""
        self.notice_at = NEVER
        for peer, progress in self.progress.items():
            if self._line.connected(peer):
                self._tell(peer, progress, commit, ack_wanted=False)

    def _send_next(self, peer: int, progress: Progress, commit: int) -> bool:
        if peer in self._reading:
            return False
        if progress.mode is Mode.SNAPSHOT or self._log.term_at(progress.next - 1) is None:
            self.offers.send(peer, progress)
            return False
        if progress.next > self._log.last_index or progress.unanswered:
            return self._send(peer, progress, (), commit)
        entries = self._log.reader.tail(progress.next, APPEND_BYTES)
        if entries is None:
            self._reading.add(peer)
            self._line.read_cold(peer, progress.next)
            return False
        return self._send(peer, progress, entries, commit)

    def read(self, peer: int, index: int, entries: list[Entry], commit: int) -> None:
        """A cold read is done (empty when it failed): send it unless the peer went elsewhere meanwhile, or the head of
        the log was removed up to there: then it is offered the applied state."""
        self._reading.discard(peer)
        progress = self.progress.get(peer)  # None: an observer that is gone
        there = progress is not None and progress.next == index and self._log.term_at(index - 1) is not None
        if progress is not None and entries and there and progress.may_send(self._limits.inflight_bytes_max):
            self._send(peer, progress, entries, commit)

    def _send(self, peer: int, progress: Progress, entries: Iterable[Entry], commit: int) -> bool:
        batch = list(entries)
        prev = progress.next - 1
        prev_term = self._log.term_at(prev)
        assert prev_term is not None
        if not self._line.send(peer, Append(self.term, prev, prev_term, commit, batch)):
            return False
        last = prev + len(batch)
        progress.sent(last, sum(e.size for e in batch), self._line.now())
        self._told[peer] = max(self._told.get(peer, 0), min(commit, last))
        return True

    def _tell(self, peer: int, progress: Progress, commit: int, ack_wanted: bool) -> None:
        known = min(commit, progress.match)
        news = ack_wanted or known > self._told.get(peer, 0)
        if (
            progress.mode is Mode.REPLICATE
            and news
            and self._line.send(peer, CommitNotice(self.term, known, ack_wanted))
        ):
            self._told[peer] = max(self._told.get(peer, 0), known)

    def tell_soon(self) -> bool:
        """The commit advanced: followers are to be told within NOTICE_S. True when that needs a timer."""
        if self.notice_at != NEVER:
            return False
        self.notice_at = self._line.now() + NOTICE_S
        return True

    def wants_tick(self, peer: int, commit: int) -> bool:
        """After an answer of `peer`: is there more for it, or news of the commit for which no timer is set yet?"""
        progress = self.progress[peer]
        if progress.next <= self._log.last_index or self.transfer_to is not None:
            return True
        return min(commit, progress.match) > self._told.get(peer, 0) and self.tell_soon()

    # ---- resting --------------------------------------------------------------------------------------

    def settle(self, commit: int) -> None:
        """Look after what got no answer; called every SETTLE_S until the group is quiet."""
        now = self._line.now()
        self.offers.settle()
        for peer, progress in self.progress.items():
            if not self._line.alive(peer) or not self._line.connected(peer):
                continue
            large = progress.sending is not None and progress.sending.position is not None
            if progress.probe_overdue(self._timing.bulk_stalled_s if large else PROBE_RETRY_S, now):
                progress.probe_again()
            elif progress.match < self._log.last_index and self._stalled(progress, now):
                progress.restart()
                self._line.reopen(peer)
            elif progress.match == self._log.last_index and progress.commit < commit:
                self._tell(peer, progress, commit, ack_wanted=True)

    def _stalled(self, progress: Progress, now: float) -> bool:
        """It should have answered: with what it holds, or, when its last answer was lost on the way, again."""
        return progress.mode is Mode.REPLICATE and now - progress.sent_at > self._timing.bulk_stalled_s

    def sync_hangs(self) -> bool:
        """Our own disk has made nothing durable for too long; called with `settle`."""
        durable, now = self._log.durable_index, self._line.now()
        if durable == self._log.last_index:
            self._unsynced = None
        elif self._unsynced is None or self._unsynced[0] != durable:
            self._unsynced = durable, now
        return self._unsynced is not None and now - self._unsynced[1] > self._timing.sync_hang_s

    def quiet(self, configs: Configs, commit: int) -> bool:
        """Nothing to send: every live follower is listed, has everything, and has said that it knows the commit."""
        if self.transfer_to is not None or self.reads.pending:
            return False
        return commit == self._log.last_index == self._log.durable_index and self.all_know(configs, commit)
