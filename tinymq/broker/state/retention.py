"""Retention rules: which records are due by age and by bytes, and where a move puts the log start. Pure.

A record's age is the append time that an entry would get now, minus the record's own append time. No record is removed
for its age unless the leader hears the clocks of a majority of the brokers that hold any replica
(docs/adr/0031-a-majority-tells-the-time.md).
"""

from __future__ import annotations

from typing import Protocol

from tinymq.base.errors import Held, InvalidRequest
from tinymq.base.topic_config import TopicConfig
from tinymq.broker.state.holds import Hold, Holds, wait_ms
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.broker.state.retention_index import RetentionIndex
from tinymq.proto import partition_pb2 as pb

REASONS = frozenset(pb.MoveStart.Reason.values())


class Kept(Protocol):
    """The part of a partition's state that retention reads."""

    @property
    def log_start(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def retention_index(self) -> RetentionIndex: ...
    @property
    def holds(self) -> Holds: ...
    @property
    def lowest_cursor(self) -> int | None: ...


def due_start(config: TopicConfig, kept: Kept, now_us: int, expiry_us: int | None) -> int:
    """The greatest offset at which the log may start: every record below it is too old, or beyond the bytes to keep.

    `now_us` decides which holds are live. `expiry_us` is the time by which ages count; None: no record goes by age. No
    record younger than `retention_ms` goes by age, and at least `retention_bytes` stay. The result is never below the
    present start, and no held record goes.
    """
    return max(kept.log_start, clamped(outlived(config, kept, expiry_us), kept.holds.lowest(now_us)))


def acknowledged_start(kept: Kept, now_us: int) -> int:
    """The greatest offset below which every cursor has read all records, for `retention=acknowledged`.

    Without a cursor this is the present start, because nobody has read anything. The result is never below the present
    start, nor above a held record.
    """
    lowest = kept.lowest_cursor
    acknowledged = kept.log_start if lowest is None else min(lowest, kept.high_watermark)
    return max(kept.log_start, clamped(acknowledged, kept.holds.lowest(now_us)))


def outlived(config: TopicConfig, kept: Kept, expiry_us: int | None) -> int:
    """As `due_start`, without holds."""
    start = kept.log_start
    if config.retention_ms is not None and expiry_us is not None:
        start = max(start, kept.retention_index.older_than(expiry_us - config.retention_ms * 1000, kept.high_watermark))
    if config.retention_bytes is not None:
        start = max(start, kept.retention_index.with_at_most(kept.record_bytes - config.retention_bytes))
    return start


def clamped(start: int, lowest: Hold | None) -> int:
    """`start`, or the lowest held offset if that is lower."""
    return start if lowest is None else min(start, lowest.offset)


def new_start(move: pb.MoveStart, bounds: OffsetBounds, lowest: Hold | None) -> int:
    """The log start after `move`, which never falls. Raises Held for a trim of held records.

    A user's trim fails if it cannot be done as a whole. Retention and capacity stop at the first held record.
    """
    if move.reason not in REASONS:
        raise InvalidRequest("no such reason", hint="it comes from a newer version")
    start = min(move.offset, bounds.end)
    if move.reason != pb.MoveStart.TRIM:
        start = clamped(start, lowest)
    else:
        check_trim(start, lowest, bounds.now_us)
    return max(start, bounds.log_start)


def check_trim(start: int, lowest: Hold | None, now_us: int) -> None:
    """Raises Held if a hold keeps records below `start`."""
    if lowest is not None and start > lowest.offset:
        raise Held(
            f"records from {lowest.offset} on are held for a planned read",
            offset=lowest.offset,
            retry_after_ms=wait_ms(lowest.until_us, now_us),
        )
