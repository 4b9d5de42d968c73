"""Retention leases, called holds: they keep records from an offset on for a planned read, until the lease ends.

Holds are replicated: they change only in `apply`, by the entries of the log, and time is append time. An expired hold
keeps nothing, and is dropped by the next command on holds or on the log start.
"""

from __future__ import annotations

from typing import NamedTuple

from tinymq.base.errors import CorruptData, InvalidRequest, OffsetOutOfRange, QuotaExceeded
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
HOLDS_MAX = 64
LEASE_MS_MAX = 3_600_000
HOLD_ID_BYTES = 16
_TIME_MAX = (1 << 63) - 1


class Hold(NamedTuple):
    """Keeps the records from `offset` on until `until_us`. Holds sort by offset."""

    offset: int
    until_us: int  # append time; the hold counts before this


class Holds:
    """The holds of one partition, by id."""

    __slots__ = ("_holds",)

    def __init__(self) -> None:
        self._holds: dict[bytes, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def lowest(self, now_us: int) -> Hold | None:
        """The live hold with the lowest offset, which keeps most."""
        return min((hold for hold in self._holds.values() if hold.until_us > now_us), default=None)

    def live(self, now_us: int) -> list[tuple[bytes, Hold]]:
        """The live holds with their ids, by offset."""
        live = ((hold_id, hold) for hold_id, hold in self._holds.items() if hold.until_us > now_us)
        return sorted(live, key=lambda item: item[1])

    def find(self, hold_id: bytes) -> Hold | None:
        """The hold with this id, even if its lease has ended."""
        return self._holds.get(hold_id)

    def drop_expired(self, now_us: int) -> None:
        if self._holds:
            self._holds = {hold_id: hold for hold_id, hold in self._holds.items() if hold.until_us > now_us}

    def hold(self, request: pb.Hold, bounds: OffsetBounds) -> Hold:
        """Make or renew a hold. Raises InvalidRequest, OffsetOutOfRange, QuotaExceeded."""
        if len(request.hold_id) != HOLD_ID_BYTES or not 0 < request.lease_ms <= LEASE_MS_MAX:
            raise InvalidRequest(f"a hold has an id of {HOLD_ID_BYTES} bytes and a lease of 1 to {LEASE_MS_MAX} ms")
        if not bounds.log_start <= request.offset <= bounds.end:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not within {bounds.log_start} and {bounds.end}",
                log_start=bounds.log_start,
                high_watermark=bounds.end,
            )
        # An expired hold takes no place. Every replica drops it at this same entry.
        self.drop_expired(bounds.now_us)
        if request.hold_id not in self._holds and len(self._holds) >= HOLDS_MAX:
            soonest_us = min(hold.until_us for hold in self._holds.values())
            raise QuotaExceeded(
                f"a partition has at most {HOLDS_MAX} holds", retry_after_ms=wait_ms(soonest_us, bounds.now_us)
            )
        hold = Hold(request.offset, min(bounds.now_us + request.lease_ms * 1000, _TIME_MAX))
        self._holds[request.hold_id] = hold
        return hold

    def extend(self, now_us: int, jump_us: int) -> None:
        """Extend every live hold by `jump_us`, because the append clock jumps by that from `now_us` on. Each hold lasts
        as long as it would have without the jump."""
        for hold_id, hold in self.live(now_us):
            self._holds[hold_id] = hold._replace(until_us=min(hold.until_us + jump_us, _TIME_MAX))

    def release(self, hold_id: bytes) -> None:
        self._holds.pop(hold_id, None)

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        state.holds.extend(
            [pb.HeldRange(hold_id=i, offset=h.offset, until_us=h.until_us) for i, h in sorted(self._holds.items())]
        )

    @classmethod
    def load(cls, state: pb.State, end: int) -> Holds:
        """The inverse of `dump`. Raises CorruptData for anything that `dump` cannot write."""
        holds = cls()
        before = b""
        for h in state.holds:
            if len(h.hold_id) != HOLD_ID_BYTES or h.hold_id <= before or h.offset > end:
                raise CorruptData("the applied state's holds are out of range")
            before = h.hold_id
            holds._holds[before] = Hold(h.offset, h.until_us)
        if len(holds._holds) > HOLDS_MAX:
            raise CorruptData("the applied state has too many holds")
        return holds


def wait_ms(until_us: int, now_us: int) -> int:
    """Milliseconds from `now_us` until `until_us`, rounded up."""
    return max(0, until_us - now_us + 999) // 1000
