"""Room in a bounded partition: what a batch needs to go first, and what is appended and not yet applied. Pure.

A leader decides on a batch against what is kept once all that it appended is applied, so that no replica ever holds
more than the bound. What it drops for that, it drops by a command in front of the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tinymq.base.config import MIB
from tinymq.base.errors import BatchTooLarge, QuotaExceeded
from tinymq.base.topic_config import OnFull, Storage, TopicConfig
from tinymq.broker.state.holds import Hold, wait_ms
from tinymq.broker.state.retention import Kept
from tinymq.proto import partition_pb2 as pb

RETRY_MS = 1000  # for a full partition: when somebody makes room is not known
LOG_BYTES_MIN = 4 * MIB  # that a log in memory may always come to, whatever its topic's bound
MAKES_ROOM = frozenset(("move_start", "delete", "release"))  # the commands that are never refused for want of it
SLACK = 256  # 1/256 of a bound goes at a time, so that not each batch has a command in front of it


class LogStart(NamedTuple):
    """Where a log starts, and the bytes of records below: by less than a run of milestones less than there are."""

    offset: int
    bytes: int


class LogEnds(NamedTuple):
    """Both ends of a log, in records and in bytes of records since it began."""

    start: LogStart
    end: int
    end_bytes: int


class Uncommitted:
    """What this leader appended and has not seen applied, as far as room depends on it: batches, moves of the start by
    capacity (which come to what they say: holds that could be in their way were looked at), and holds."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int, int]] = deque()  # (index, offset after it, bytes up to there)
        self._moves: deque[tuple[int, LogStart]] = deque()
        self._holds: deque[tuple[int, int]] = deque()  # (index, offset)

    def appended(self, index: int, end: int, end_bytes: int) -> None:
        self._batches.append((index, end, end_bytes))

    def moved(self, index: int, start: LogStart) -> None:
        self._moves.append((index, start))

    def held(self, index: int, offset: int) -> None:
        self._holds.append((index, offset))

    def settle(self, index: int) -> None:
        """Entries up to `index` are applied."""
        for known in (self._batches, self._moves, self._holds):
            while known and known[0][0] <= index:
                known.popleft()

    def clear(self) -> None:
        self._batches.clear()
        self._moves.clear()
        self._holds.clear()

    def end_bytes(self, applied: int) -> int:
        """Bytes of records up to the end of the log, when `applied` of them are applied."""
        return self._batches[-1][2] if self._batches else applied

    def ends(self, applied: Kept) -> LogEnds:
        """As it will be once everything is applied."""
        start = LogStart(applied.log_start, applied.retention_index.start_bytes)
        if self._moves and self._moves[-1][1].offset > start.offset:
            start = self._moves[-1][1]
        if not self._batches:
            return LogEnds(start, applied.high_watermark, applied.record_bytes)
        return LogEnds(start, self._batches[-1][1], self._batches[-1][2])

    def lowest_hold(self) -> int | None:
        """The lowest offset that a hold on its way asks for."""
        return min((offset for _, offset in self._holds), default=None)

    def boundary(self, below: int) -> LogStart | None:
        """The first end of a batch with at least so many bytes below it."""
        return next((LogStart(end, up_to) for _, end, up_to in self._batches if up_to >= below), None)


def check_size(config: TopicConfig, records: int, size: int) -> None:
    """Raises BatchTooLarge for a batch that fits into no partition of this topic's."""
    if config.max_records is not None and records > config.max_records:
        hint = "send fewer records in one batch, or raise the topic's max_records"
        raise BatchTooLarge(f"{records} records: the partition keeps at most {config.max_records}", hint=hint)
    if config.max_bytes is not None and size > config.max_bytes:
        hint = "send fewer records in one batch, or " if records > 1 else ""
        hint += "raise the topic's max_bytes"
        raise BatchTooLarge(f"{size} bytes: the partition keeps at most {config.max_bytes}", hint=hint)


def check_commands(config: TopicConfig, log_bytes: int, said: Iterable[pb.Command]) -> None:
    """Raises QuotaExceeded for commands on a topic in memory whose log has come to several times its bound: they count
    to no bound of records, and only go when the records before them do."""
    if config.storage is not Storage.MEMORY or config.max_bytes is None:
        return
    if log_bytes <= 4 * config.max_bytes + LOG_BYTES_MIN:
        return
    if not all(command.WhichOneof("command") in MAKES_ROOM for command in said):
        hint = "trim the partition: commits and seeks go with the records before them"
        raise QuotaExceeded(f"{log_bytes} bytes of log are in memory", hint=hint, retry_after_ms=RETRY_MS)


def fits(config: TopicConfig, ends: LogEnds, records: int, size: int) -> bool:
    """Is there room for as many more?"""
    if config.max_records is not None and ends.end + records - ends.start.offset > config.max_records:
        return False
    return config.max_bytes is None or ends.end_bytes + size - ends.start.bytes <= config.max_bytes


def room(
    config: TopicConfig, applied: Kept, uncommitted: Uncommitted, records: int, size: int, now_us: int
) -> LogStart | None:
    """Where the log has to start before a batch comes; None: there is room.

    Raises BatchTooLarge, and QuotaExceeded when the topic rejects what it has no room for, or when what has to go for
    it is held at `now_us`.
    """
    check_size(config, records, size)
    ends = uncommitted.ends(applied)
    if fits(config, ends, records, size):
        return None
    if config.on_full is OnFull.REJECT:
        hint = "somebody has to trim it, or raise its bounds"
        raise QuotaExceeded("the partition is full", hint=hint, retry_after_ms=RETRY_MS)
    start, slack = ends.start, 0
    if config.max_bytes is not None:
        start = _boundary(ends.end_bytes + size - config.max_bytes, ends, applied, uncommitted)
    if config.max_records is not None and ends.end + records - start.offset > config.max_records:
        slack = config.max_records // SLACK
        start = _at(ends.end + records - config.max_records, ends, start, applied)
    held = check_held(start.offset, applied.holds.lowest(now_us), uncommitted.lowest_hold(), now_us)
    if slack:
        upto = min(start.offset + slack, ends.end)
        start = _at(upto if held is None else min(upto, held), ends, start, applied)
    return start


def _boundary(below: int, ends: LogEnds, applied: Kept, uncommitted: Uncommitted) -> LogStart:
    """The first known end of a batch with at least so many bytes below it."""
    if below <= ends.start.bytes:
        return ends.start
    mark = applied.retention_index.with_at_least(below)
    if mark is not None:
        return LogStart(mark.offset, mark.bytes)
    if below <= applied.record_bytes:
        return LogStart(applied.high_watermark, applied.record_bytes)
    return uncommitted.boundary(below) or LogStart(ends.end, ends.end_bytes)


def _at(offset: int, ends: LogEnds, least: LogStart, applied: Kept) -> LogStart:
    """`offset`, with as many bytes below it as are certain."""
    certain = ends.end_bytes if offset == ends.end else applied.retention_index.below(offset)
    return LogStart(offset, max(certain, least.bytes))


def check_held(start: int, lowest: Hold | None, on_its_way: int | None, now_us: int) -> int | None:
    """The lowest offset that is held; None: none is. Raises QuotaExceeded when it is below `start`."""
    if on_its_way is not None and start > on_its_way:
        raise QuotaExceeded("the partition is full, and its records are being held", retry_after_ms=RETRY_MS)
    if lowest is None:
        return on_its_way
    if start > lowest.offset:
        raise QuotaExceeded(
            f"the partition is full, and its records from {lowest.offset} on are held",
            retry_after_ms=max(1, wait_ms(lowest.until_us, now_us)),
        )
    return lowest.offset if on_its_way is None else min(lowest.offset, on_its_way)
