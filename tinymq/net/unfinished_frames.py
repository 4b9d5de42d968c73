"""Bounds incomplete frames: how many bytes they may take over all connections of a port, and for how long.

A large frame gets its buffer before its bytes arrive. A client that begins many frames and completes none would make a
broker keep that memory for good. So a frame waits, unread, until there is room for it, and a frame that is not complete
in time ends its connection. One host gets at most half of the room. No I/O: time and timers are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tinymq.base.clock import Timer
from tinymq.base.config import KIB
from tinymq.net.framing import FrameReader

FRAME_S = 30.0  # how long any frame may take
FRAME_BYTES_PER_S_MIN = 256 * KIB  # a larger frame may take longer, at this rate


def allowed_s(frame_bytes: int) -> float:
    """How long a frame may take from its first byte to its last."""
    return max(FRAME_S, frame_bytes / FRAME_BYTES_PER_S_MIN)


class FrameRoom:
    """The room of one port, in bytes. Claims get room in the order in which they ask. Claims of a host that has its
    half wait, without delaying other hosts."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  # invariant: at most bytes_max, or the size of a single frame
        self._by_host: dict[str, int] = {}  # bytes of each host that has any
        self._waiting: OrderedDict[Claim, None] = OrderedDict()  # the oldest first

    @property
    def waiting(self) -> int:
        """Frames that wait for room."""
        return len(self._waiting)

    def ask(self, claim: Claim) -> bool:
        """See Claim.ask."""
        if not self._waiting and self._fits_host(claim) and self._fits(claim):
            self._give(claim)
            return True
        self._waiting[claim] = None
        self._grant(asking=claim)
        return claim not in self._waiting

    def give_back(self, claim: Claim) -> None:
        """See Claim.give_back."""
        if claim in self._waiting:
            del self._waiting[claim]
        else:
            self.bytes -= claim.bytes
            left = self._by_host.pop(claim.host) - claim.bytes
            if left:
                self._by_host[claim.host] = left
        if self._waiting:
            self._grant()

    def _fits_host(self, claim: Claim) -> bool:
        of_host = self._by_host.get(claim.host, 0)
        return not of_host or of_host + claim.bytes <= self.bytes_max // 2

    def _fits(self, claim: Claim) -> bool:
        return not self.bytes or self.bytes + claim.bytes <= self.bytes_max

    def _give(self, claim: Claim) -> None:
        self.bytes += claim.bytes
        self._by_host[claim.host] = self._by_host.get(claim.host, 0) + claim.bytes

    def _grant(self, asking: Claim | None = None) -> None:
        granted = []
        for claim in self._waiting:
            if not self._fits_host(claim):
                continue
            if not self._fits(claim):
                break
            self._give(claim)
            granted.append(claim)
        for claim in granted:
            del self._waiting[claim]
        for claim in granted:
            if claim is not asking:
                claim.on_granted()


class Claim:
    """One connection's part of a FrameRoom: room for one frame at a time."""

    __slots__ = ("_room", "bytes", "host", "on_granted")

    def __init__(self, room: FrameRoom, host: str, on_granted: Callable[[], None]) -> None:
        self.host = host
        self.on_granted = on_granted
        self.bytes = 0  # the bytes asked for or given; 0: neither
        self._room = room

    def ask(self, frame_bytes: int) -> bool:
        """Ask for room for a frame. True: there is room at once. False: `on_granted` is called once there is. Asking
        again while the claim waits returns False."""
        if self.bytes:
            return False
        self.bytes = frame_bytes
        return self._room.ask(self)

    def give_back(self) -> None:
        """Give the room back, because the frame has arrived or its connection has ended. Does nothing without a
        frame."""
        if self.bytes:
            self._room.give_back(self)
            self.bytes = 0


class FrameDeadline:
    """Ends a connection if one of its frames takes too long. Only time in which the connection is read counts."""

    __slots__ = ("_began_s", "_call_later", "_expire", "_frame", "_now", "_paused", "_reader", "_timer")

    def __init__(
        self,
        reader: FrameReader,
        now: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        expire: Callable[[float], None],
    ) -> None:
        """`expire` is called with the number of seconds that the frame was allowed."""
        self._reader = reader
        self._now = now
        self._call_later = call_later
        self._expire = expire
        self._frame = -1  # the number of the frame that began at _began_s
        self._began_s = 0.0
        self._paused = False
        self._timer: Timer | None = None  # at most one, which outlives frames, so that not every frame needs its own

    def look(self) -> None:
        """React to received bytes, or to the end of a pause."""
        if self._reader.frames != self._frame or self._paused:
            self._paused = False
            if not self._reader.begun:
                return
            self._frame = self._reader.frames
            self._began_s = self._now()
        if self._timer is None and self._reader.begun:
            self._timer = self._call_later(allowed_s(self._reader.begun_bytes), self._due)

    def pause(self) -> None:
        """The connection is not read until `look` is called again."""
        self._paused = True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        if self._paused or not self._reader.begun or self._reader.frames != self._frame:
            return  # the next look sets another timer
        allowed = allowed_s(self._reader.begun_bytes)
        left_s = self._began_s + allowed - self._now()
        if left_s <= 0:
            self._expire(allowed)
        else:
            self._timer = self._call_later(left_s, self._due)
