"""A leader's view of one follower, and what it may send next. Pure.

The modes (after etcd-io/raft's tracker):

    PROBE      one message at a time, until an answer of this term says where the two logs meet
    REPLICATE  messages back to back, within a window of bytes (hazard 18)
    SNAPSHOT   the follower is behind our first entry: chunks of the snapshot before it, one message at a time

                    answer of this term                    connection lost, conflict, no answer
    PROBE, SNAPSHOT ──────────────────▶ REPLICATE    any ──────────────────────────────────────▶ PROBE
    PROBE ── our log begins after `next` - 1 ──▶ SNAPSHOT
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.messages import AppendAck
from tinymq.raft.rules.snapshot_transfer import SnapshotProgress


class Mode(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """One follower as its leader sees it, in one term. Only the leader's replication writes it."""

    next: int  # the next index to send; invariant: > match
    match: int = 0  # the last index that is synced there and equal to ours; it falls only when a disk lost entries
    mode: Mode = Mode.PROBE
    commit: int = 0  # the commit index that the follower says it knows; the group rests when all know it
    replica: Replica | None = None  # the incarnation that acknowledged last; None: none has in this term
    waiting: bool = False  # PROBE, SNAPSHOT: a message is in flight, or its content is being read from disk
    sending: SnapshotProgress | None = None  # SNAPSHOT: the transfer; None while the snapshot is read from disk
    unanswered: int = 0  # messages in a row without an answer; from the first one on, probes carry no entries
    sent_at: float = 0.0  # monotonic seconds of the last message or sign of life; retries count from here
    inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes) of each message in flight
    inflight_bytes: int = 0  # invariant: sum of inflight

    def may_send(self, window_bytes: int) -> bool:
        """May another message go now? `window_bytes` bounds the bytes in flight in REPLICATE."""
        if self.mode is not Mode.REPLICATE:
            return not self.waiting
        return self.inflight_bytes < window_bytes

    def sent(self, last_index: int, size_bytes: int, now: float) -> None:
        """An Append up to `last_index` is in flight."""
        self.sent_at = now
        if self.mode is not Mode.REPLICATE:
            self.waiting = True
            return
        self.next = last_index + 1
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes

    def acknowledged(self, ack: AppendAck, now: float) -> bool:
        """Take a success. True when `match` advanced. A success never lowers `next` (hazard 2)."""
        self.commit = max(self.commit, ack.commit)
        if self.mode is not Mode.REPLICATE:
            if ack.received < self.next - 1:
                return False  # it does not answer the probe but a read, or an older message
            self.mode = Mode.REPLICATE
            self.sending = None
            self.waiting = False
            self.unanswered = 0
            self.next = max(self.match, ack.received) + 1
        self.next = max(self.next, ack.received + 1)
        while self.inflight and self.inflight[0][0] <= ack.durable:
            self.inflight_bytes -= self.inflight.popleft()[1]
        if self.inflight:
            self.sent_at = now  # the follower is alive and works on the rest
        if ack.durable > self.match:
            self.match = ack.durable
            return True
        return False

    def begin_snapshot(self, sending: SnapshotProgress | None) -> None:
        """Begin to send a snapshot. None: the snapshot has to be read from disk first."""
        self.restart()
        self.mode = Mode.SNAPSHOT
        self.sending = sending
        if sending is not None:
            self.next = sending.snapshot.index + 1

    def probe_overdue(self, retry_s: float, now: float) -> bool:
        """Is an answer overdue? The wait doubles up to sixteenfold, because the peer may have failed."""
        wait_s = retry_s * 2 ** min(self.unanswered, 4)
        return self.mode is not Mode.REPLICATE and self.waiting and now - self.sent_at > wait_s

    def probe_again(self) -> None:
        """Allow the same probe to be sent again."""
        if self.sending is not None:
            self.sending.ask_again()
        self.waiting = False
        self.unanswered += 1

    def conflicted(self, next_index: int) -> None:
        """The logs do not meet where we thought: continue at `next_index`, one message at a time.

        The follower's disk may have lost what it acknowledged without noticing. So `match` falls: the follower counts
        for no more than it says now.
        """
        self.match = min(self.match, next_index - 1)
        self.restart(next_index)

    def restart(self, next_index: int | None = None) -> None:
        """Start again after `match`: messages in flight may be lost (a connection closed, or no answer came).

        While nothing is known to match, start where we were, because a conflict says at once where the logs meet.
        """
        self.mode = Mode.PROBE
        self.sending = None
        self.waiting = False
        self.unanswered = 0
        if next_index is None:
            next_index = self.match + 1 if self.match else self.next
        self.next = next_index
        self.inflight.clear()
        self.inflight_bytes = 0
