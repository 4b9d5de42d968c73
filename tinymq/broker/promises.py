"""Holds that a leader only remembers: of records that nothing removes before the lease ends, as settings are now.

A hold is an entry in the log, on three disks: a scan of a thousand partitions would write a thousand of them against a
danger that mostly is not there. A promise costs nothing. Its leader keeps retention and trims away as by a hold, and
writes one as soon as other settings endanger it. It ends with the leadership. A successor removes nothing of it either,
unless somebody alters the topic or trims it; and whoever made it asks again in a part of the lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinymq.broker.holds import HOLDS_MAX, Hold, Holds
from tinymq.broker.outcome import Extent
from tinymq.broker.retention import Kept, due_start
from tinymq.proto import partition_pb2 as pb
from tinymq.topic_config import OnFull, TopicConfig


def endangered(config: TopicConfig, kept: Kept, offset: int, now_us: int, lease_us: int) -> bool:
    """May records from `offset` on go within a lease that begins now? By age that is known; by size it is whatever
    comes."""
    if config.retention_bytes is not None or config.on_full is OnFull.DROP_OLDEST:
        return True
    return due_start(config, kept, now_us + lease_us) > offset


class Promises:
    """Of one partition, on the broker that leads it."""

    def __init__(self) -> None:
        self._made = Holds()
        self._trims = 0  # under way

    def make(self, said: pb.Hold, config: TopicConfig, kept: Kept, at: Extent) -> Hold | None:
        """Make or renew one; None: it takes a hold. Raises as Holds.hold."""
        holds = kept.holds
        if self._trims or holds.find(said.hold_id) is not None or len(holds) >= HOLDS_MAX:  # who is refused hears why
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
    def trimming(self) -> Iterator[None]:
        """While the block runs none is made: a trim that was checked against them is on its way."""
        self._trims += 1
        try:
            yield
        finally:
            self._trims -= 1

    def due(self, config: TopicConfig, kept: Kept, now_us: int) -> list[pb.Command]:
        """Those that settings endanger now, as holds to be written. They are promises no more."""
        found = []
        for hold_id, hold in self.live(now_us):
            if endangered(config, kept, hold.offset, now_us, hold.until_us - now_us):
                lease_ms = max(1, (hold.until_us - now_us) // 1000)
                found.append(pb.Command(hold=pb.Hold(hold_id=hold_id, offset=hold.offset, lease_ms=lease_ms)))
                self.release(hold_id)
        return found

    def clear(self) -> None:
        """Somebody else leads."""
        self._made = Holds()
