"""Holds that a leader only remembers: of records that nothing removes before the lease ends, as settings are now.

A hold is an entry in the log, on three disks: a scan of a thousand partitions would write a thousand of them against a
danger that mostly is not there. A promise costs nothing. Its leader keeps retention and trims away as by a hold, and
writes one as soon as other settings endanger it. It ends with the leadership. A successor removes nothing of it either,
unless somebody alters the topic or trims it; and whoever made it asks again in a part of the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinymq.broker.holds import HOLDS_MAX, Hold, Holds
from tinymq.broker.outcome import Extent
from tinymq.broker.retention import Kept, check_trim, outlived
from tinymq.proto import partition_pb2 as pb
from tinymq.topic_config import OnFull, TopicConfig


def endangered(config: TopicConfig, kept: Kept, offset: int, now_us: int, lease_us: int) -> bool:
    """May records from `offset` on go within a lease that begins now? By age that is known; by size it is whatever
    comes."""
    if config.retention_bytes is not None or config.on_full is OnFull.DROP_OLDEST:
        return True
    return outlived(config, kept, now_us + lease_us) > offset


class Promises:
    """Of one partition, on the broker that leads it."""

    def __init__(self) -> None:
        self._made = Holds()
        self._trims = 0  # under way

    def make(self, said: pb.Hold, config: TopicConfig, kept: Kept, at: Extent) -> Hold | None:
        """Make or renew one; None: it takes a hold. Raises as Holds.hold."""
        if self._trims or kept.holds.find(said.hold_id) is not None:
            return None
        others = [hold_id for hold_id, _ in self.live(at.now_us) if hold_id != said.hold_id]
        if len(kept.holds) + len(others) >= HOLDS_MAX:  # the log says so to who is refused
            return None
        if endangered(config, kept, said.offset, at.now_us, said.lease_ms * 1000):
            return None
        return self._made.hold(said, at)

    def find(self, hold_id: bytes) -> Hold | None:
        """It may have run out."""
        return self._made.find(hold_id)

    def release(self, hold_id: bytes) -> None:
        self._made.release(hold_id)

    def lowest(self, now_us: int) -> Hold | None:
        """The live one that keeps most."""
        return self._made.lowest(now_us) if len(self._made) else None

    def live(self, now_us: int) -> list[tuple[bytes, Hold]]:
        """With their ids, by offset."""
        return self._made.live(now_us) if len(self._made) else []

    @contextmanager
    def trimming(self, start: int, now_us: int) -> Iterator[None]:
        """A trim is carried out in the block, in which none is made that it knows nothing of. Raises Held."""
        check_trim(start, self.lowest(now_us), now_us)
        self._trims += 1
        try:
            yield
        finally:
            self._trims -= 1

    def write(
        self, config: TopicConfig, kept: Kept, now_us: int, propose: Callable[[list[pb.Command]], object]
    ) -> None:
        """Make holds of those that these settings endanger. Raises as `propose` does: they stay promises then."""
        due = [
            pb.Hold(hold_id=hold_id, offset=hold.offset, lease_ms=max(1, (hold.until_us - now_us) // 1000))
            for hold_id, hold in self.live(now_us)
            if endangered(config, kept, hold.offset, now_us, hold.until_us - now_us)
        ]
        if due:
            propose([pb.Command(hold=hold) for hold in due])
            for hold in due:
                self.release(hold.hold_id)

    def clear(self) -> None:
        """Somebody else leads."""
        self._made = Holds()
