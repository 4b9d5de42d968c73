"""A leader's view of one follower, and what it may send next. Pure.

Table of modes (after etcd-io/raft's tracker):

    PROBE      one message at a time until an answer of this term says where the logs meet
    REPLICATE  messages back to back within a window of bytes (hazard 18)
    SNAPSHOT   it is behind our first entry: the applied state before that, one message at a time (offering)
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
    """One follower as its leader sees it, for one term."""

    next: int  # the next index to send; invariant: > match
    match: int = 0  # durable there, and equal to ours
    mode: Mode = Mode.PROBE
    commit: int = 0  # the commit index that it has acknowledged to know
    replica: Replica | None = None  # who acknowledged last
    waiting: bool = False  # PROBE, STATE: a message is out, or what it is made from is being read
    sending: SnapshotProgress | None = None  # STATE: what is sent; None while it is read
    unanswered: int = 0  # messages in a row that got no answer; from the first on they are only questions
    sent_at: float = 0.0  # monotonic time of the last Append; for retries
    inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes) of messages out
    inflight_bytes: int = 0  # invariant: sum of inflight

    def may_send(self, window_bytes: int) -> bool:
        if self.mode is not Mode.REPLICATE:
            return not self.waiting
        return self.inflight_bytes < window_bytes

    def sent(self, last_index: int, size_bytes: int, now: float) -> None:
        """An Append up to `last_index` is out."""
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
                return False  # not to the probe: it answers a round, or something older
            self.mode = Mode.REPLICATE
            self.sending = None
            self.waiting = False
            self.unanswered = 0
            self.next = max(self.match, ack.received) + 1
        self.next = max(self.next, ack.received + 1)
        while self.inflight and self.inflight[0][0] <= ack.durable:
            self.inflight_bytes -= self.inflight.popleft()[1]
        if self.inflight:
            self.sent_at = now  # it is alive and works on the rest
        if ack.durable > self.match:
            self.match = ack.durable
            return True
        return False

    def begin_snapshot(self, sending: SnapshotProgress | None) -> None:
        """It needs the applied state; None: it has to be read first."""
        self.restart()
        self.mode = Mode.SNAPSHOT
        self.sending = sending
        if sending is not None:
            self.next = sending.snapshot.index + 1

    def probe_overdue(self, retry_s: float, now: float) -> bool:
        """No answer came for too long; the wait doubles up to sixteenfold, for the peer may have failed."""
        wait_s = retry_s * 2 ** min(self.unanswered, 4)
        return self.mode is not Mode.REPLICATE and self.waiting and now - self.sent_at > wait_s

    def probe_again(self) -> None:
        """Ask once more."""
        if self.sending is not None:
            self.sending.ask_again()
        self.waiting = False
        self.unanswered += 1

    def conflicted(self, next_index: int) -> None:
        """The logs do not meet where we thought: go on at `next_index`, one message at a time. A disk may have lost
        what it acknowledged, and nobody there knows it: it is asked again what it holds, and counts for no more."""
        self.match = min(self.match, next_index - 1)
        self.restart(next_index)

    def restart(self, next_index: int | None = None) -> None:
        """What was out may be lost (a connection closed, no answer came): start again behind `match`; while nothing is
        known to match, where we were, for a conflict says at once where the logs meet."""
        self.mode = Mode.PROBE
        self.sending = None
        self.waiting = False
        self.unanswered = 0
        if next_index is None:
            next_index = self.match + 1 if self.match else self.next
        self.next = next_index
        self.inflight.clear()
        self.inflight_bytes = 0
