"""Light holds: a leader remembers them in memory, and they keep its retention away until their lease ends.

A normal hold is binding: it is an entry in the log, on three disks. It refuses trims, and a full partition refuses its
producers rather than drop held records. A light hold delays only the leader's own retention, by age and by size. A trim
and `drop_oldest` ignore it, and it ends with the leadership. The reader therefore has to notice when records are gone,
and to report it. In exchange, a scan of a thousand partitions costs a thousand dictionary entries rather than a
thousand log entries.
"""

from __future__ import annotations

from tinymq.base.errors import QuotaExceeded
from tinymq.broker.state.holds import HOLDS_MAX, Hold, Holds, wait_ms
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.proto import partition_pb2 as pb


class SoftLeases:
    """The light holds of one partition, on the broker that leads it."""

    def __init__(self) -> None:
        self._holds = Holds()

    def grant(self, request: pb.Hold, binding: Holds, bounds: OffsetBounds) -> Hold:
        """Make or renew a light hold. `binding` are the partition's holds in the log, which count towards the same
        bound.

        Raises as Holds.hold.
        """
        others = [(hold_id, hold) for hold_id, hold in self.live(bounds.now_us) if hold_id != request.hold_id]
        if len(binding) + len(others) >= HOLDS_MAX:
            until_us = [hold.until_us for _, hold in (*others, *binding.live(bounds.now_us))]
            raise QuotaExceeded(
                f"a partition has at most {HOLDS_MAX} holds",
                retry_after_ms=wait_ms(min(until_us, default=bounds.now_us), bounds.now_us),
            )
        return self._holds.hold(request, bounds)

    def find(self, hold_id: bytes) -> Hold | None:
        """Return the light hold with that id, even if its lease has run out."""
        return self._holds.find(hold_id)

    def release(self, hold_id: bytes) -> None:
        self._holds.release(hold_id)

    def extend(self, now_us: int, jump_us: int) -> None:
        """As Holds.extend."""
        self._holds.extend(now_us, jump_us)

    def lowest(self, now_us: int) -> Hold | None:
        """The live light hold with the lowest offset, which keeps most."""
        return self._holds.lowest(now_us) if len(self._holds) else None

    def live(self, now_us: int) -> list[tuple[bytes, Hold]]:
        """Return the live light holds with their ids, by offset."""
        return self._holds.live(now_us) if len(self._holds) else []

    def clear(self) -> None:
        """Drop all light holds, because another broker leads."""
        self._holds = Holds()
