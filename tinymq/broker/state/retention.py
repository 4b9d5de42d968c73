"""Where a log may start: what is due to go by age and by bytes, and what a move of the start comes to. Pure.

A record's age is the append time that an entry would get now, less the record's own (raft/stamps.py). No record is
removed for its age while the leader does not hear the clocks of a majority of the brokers that hold any replica
(raft/cluster_time.py).
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
    """What of a partition's state is looked at."""

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


def due_start(config: TopicConfig, kept: Kept, now_us: int, expiry_us: int | None) -> int:
    """The greatest offset that the log may start at: all that is below it is too old, or more than is to be kept.
    Holds count at `now_us`, ages at `expiry_us` (None: nothing is removed for its age).

    Nothing younger than `retention_ms` goes by age, and what stays is at least `retention_bytes`. Never below the
    present start, and nothing that is held goes.
    """
    return max(kept.log_start, clamped(outlived(config, kept, expiry_us), kept.holds.lowest(now_us)))


def outlived(config: TopicConfig, kept: Kept, expiry_us: int | None) -> int:
    """The same, if nothing were held."""
    start = kept.log_start
    if config.retention_ms is not None and expiry_us is not None:
        start = max(start, kept.retention_index.older_than(expiry_us - config.retention_ms * 1000, kept.high_watermark))
    if config.retention_bytes is not None:
        start = max(start, kept.retention_index.with_at_most(kept.record_bytes - config.retention_bytes))
    return start


def clamped(start: int, lowest: Hold | None) -> int:
    """As far as no live hold is in the way."""
    return start if lowest is None else min(start, lowest.offset)


def new_start(said: pb.MoveStart, at: OffsetBounds, lowest: Hold | None) -> int:
    """Where the log starts after `said`: never before it started. Raises Held for a trim of what is held."""
    if said.reason not in REASONS:
        raise InvalidRequest("no such reason", hint="it comes from a newer version")
    start = min(said.offset, at.end)
    if said.reason != pb.MoveStart.TRIM:
        start = clamped(start, lowest)
    else:
        check_trim(start, lowest, at.now_us)
    return max(start, at.log_start)


def check_trim(start: int, lowest: Hold | None, now_us: int) -> None:
    """Raises Held for what is in the way of a trim up to `start`."""
    if lowest is not None and start > lowest.offset:
        raise Held(
            f"records from {lowest.offset} on are held for a planned read",
            offset=lowest.offset,
            retry_after_ms=wait_ms(lowest.until_us, now_us),
        )
