"""Capacity of a bounded partition: whether a batch fits, and which records have to go first. Pure.

A leader decides as if everything that it has appended were applied already, so that no replica ever holds more than
the bound. It drops records by a command in front of the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tinymq.base.config import MIB
from tinymq.base.errors import BatchTooLarge, QuotaExceeded
from tinymq.base.topic_config import OnFull, Retention, Storage, TopicConfig
from tinymq.broker.state.holds import Hold, wait_ms
from tinymq.broker.state.retention import Kept
from tinymq.broker.state.staged import NOTHING, Waiting
from tinymq.proto import partition_pb2 as pb

MOVING_MS = 20  # after a full partition refused while the log start moves over what was read
RETRY_MS = 1000  # after a full partition refused: a guess, because an operator has to make room
LOG_BYTES_MIN = 4 * MIB  # a log in memory may always grow to this size, whatever its topic's bound
# Commands that a full log never refuses.
MAKES_ROOM = frozenset(("move_start", "remove_acknowledged", "delete", "release"))
SLACK = 256  # a move of the start drops 1/256 of the bound, so that not every batch needs a command in front of it


class LogStart(NamedTuple):
    """Where a log starts, and the bytes of records below it."""

    offset: int
    bytes: int  # never more than there are, and less by at most one run of the retention index


class LogEnds(NamedTuple):
    """Both ends of a log, in records and in bytes of records since the partition began."""

    start: LogStart
    end: int
    end_bytes: int


class Uncommitted:
    """The entries that this leader has appended and not applied yet, as far as capacity depends on them.

    Each queue is in the order of the log. A move of the start by capacity will take effect as it says, because the
    leader checked the holds before it proposed the move.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int, int]] = deque()  # (index, offset after the batch, bytes up to there)
        self._moves: deque[tuple[int, LogStart]] = deque()  # (index, new start), by capacity only
        self._holds: deque[tuple[int, int]] = deque()  # (index, offset)
        self._newest_start = (0, 0)  # (index, offset) of the newest move of the start, for any reason

    def appended(self, index: int, end: int, end_bytes: int) -> None:
        """A batch is appended."""
        self._batches.append((index, end, end_bytes))

    def moved(self, index: int, start: LogStart) -> None:
        """A move of the start by capacity is appended."""
        self._moves.append((index, start))

    def proposed(self, index: int, commands: Iterable[pb.Command]) -> None:
        """Note appended commands. Until they are applied, decisions depend on their holds and moves: a batch must not
        drop records that such a hold keeps, and a soft lease must not cover records that such a move removes."""
        for command in commands:
            if command.HasField("hold"):
                self._holds.append((index, command.hold.offset))
            elif command.HasField("move_start"):
                self._newest_start = index, command.move_start.offset
            elif command.HasField("remove_acknowledged"):
                self._newest_start = index, command.remove_acknowledged.upto

    def proposed_start(self, applied_index: int) -> int | None:
        """The offset to which the newest move of the start goes, unless that move is applied."""
        index, offset = self._newest_start
        return offset if index > applied_index else None

    def settle(self, index: int) -> None:
        """Forget the entries up to `index`, which are applied."""
        for queue in (self._batches, self._moves, self._holds):
            while queue and queue[0][0] <= index:
                queue.popleft()

    def clear(self) -> None:
        """Forget everything, because this replica stops leading."""
        self._batches.clear()
        self._moves.clear()
        self._holds.clear()
        self._newest_start = 0, 0

    def end_bytes(self, applied: int) -> int:
        """Bytes of records up to the end of the log. `applied` is the number of those bytes that are applied."""
        return self._batches[-1][2] if self._batches else applied

    def ends(self, applied: Kept) -> LogEnds:
        """The ends of the log as they will be once everything is applied."""
        start = LogStart(applied.log_start, applied.retention_index.start_bytes)
        if self._moves and self._moves[-1][1].offset > start.offset:
            start = self._moves[-1][1]
        if not self._batches:
            return LogEnds(start, applied.high_watermark, applied.record_bytes)
        return LogEnds(start, self._batches[-1][1], self._batches[-1][2])

    def lowest_hold(self) -> int | None:
        """The lowest offset of an uncommitted hold."""
        return min((offset for _, offset in self._holds), default=None)

    def boundary(self, below: int) -> LogStart | None:
        """The first end of an uncommitted batch with at least `below` bytes of records below it."""
        return next((LogStart(end, up_to) for _, end, up_to in self._batches if up_to >= below), None)


def check_size(config: TopicConfig, records: int, size: int) -> None:
    """Raises BatchTooLarge for a batch that would not fit into an empty partition of this topic."""
    if config.max_records is not None and records > config.max_records:
        hint = "send fewer records in one batch, or raise the topic's max_records"
        raise BatchTooLarge(f"{records} records: the partition keeps at most {config.max_records}", hint=hint)
    if config.max_bytes is not None and size > config.max_bytes:
        hint = "send fewer records in one batch, or " if records > 1 else ""
        hint += "raise the topic's max_bytes"
        raise BatchTooLarge(f"{size} bytes: the partition keeps at most {config.max_bytes}", hint=hint)


def check_commands(config: TopicConfig, log_bytes: int, commands: Iterable[pb.Command]) -> None:
    """Raises QuotaExceeded for commands on a topic in memory whose log is several times larger than its bound.

    Commands count towards no bound of records, and leave memory only with the records before them. Without this check a
    partition that gets commits and no records would fill the memory.
    """
    if config.storage is not Storage.MEMORY or config.max_bytes is None:
        return
    if log_bytes <= 4 * config.max_bytes + LOG_BYTES_MIN:
        return
    if not all(command.WhichOneof("command") in MAKES_ROOM for command in commands):
        hint = "trim the partition: commits and seeks go with the records before them"
        raise QuotaExceeded(f"{log_bytes} bytes of log are in memory", hint=hint, retry_after_ms=RETRY_MS)


def fits(config: TopicConfig, ends: LogEnds, records: int, size: int) -> bool:
    """Whether `records` more records of `size` bytes fit between the ends."""
    if config.max_records is not None and ends.end + records - ends.start.offset > config.max_records:
        return False
    return config.max_bytes is None or ends.end_bytes + size - ends.start.bytes <= config.max_bytes


def is_nearly_full(config: TopicConfig, applied: Kept, staged: Waiting = NOTHING) -> bool:
    """Whether seven eighths of the bound are taken by applied records, and by staged batches."""
    records = applied.high_watermark - applied.log_start + staged.records
    if config.max_records is not None and 8 * records >= 7 * config.max_records:
        return True
    kept_bytes = applied.record_bytes - applied.retention_index.start_bytes + staged.bytes
    return config.max_bytes is not None and 8 * kept_bytes >= 7 * config.max_bytes


def room(
    config: TopicConfig,
    applied: Kept,
    uncommitted: Uncommitted,
    records: int,
    size: int,
    now_us: int,
    staged: Waiting = NOTHING,
) -> LogStart | None:
    """The offset at which the log has to start before the batch is appended; None: the batch fits.

    `staged` is what batches without offsets take: they have their room from when they are staged. Raises BatchTooLarge;
    QuotaExceeded if the topic rejects writes to a full partition, if staged batches leave no room, or if the records
    that would have to go are held at `now_us`.
    """
    check_size(config, records, size)
    records, size = records + staged.records, size + staged.bytes
    ends = uncommitted.ends(applied)
    if fits(config, ends, records, size):
        return None
    if config.on_full is OnFull.REJECT:
        reading = config.retention is Retention.ACKNOWLEDGED
        hint = "read it, or raise the topic's bounds" if reading else "trim the partition, or raise the topic's bounds"
        if reading and (applied.lowest_cursor or 0) > applied.log_start:
            raise QuotaExceeded("the partition is full, and space is being freed", hint=hint, retry_after_ms=MOVING_MS)
        raise QuotaExceeded("the partition is full", hint=hint, retry_after_ms=RETRY_MS)
    empty = LogEnds(LogStart(ends.end, ends.end_bytes), ends.end, ends.end_bytes)
    if not fits(config, empty, records, size):
        raise QuotaExceeded("delayed batches and open transactions take the partition's room", retry_after_ms=RETRY_MS)
    start, slack = ends.start, 0
    # Bytes first: the index knows bytes at the ends of batches only, so this drops whole batches. A record count can
    # then ask for a higher offset, and that one is exact.
    if config.max_bytes is not None:
        start = _boundary(ends.end_bytes + size - config.max_bytes, ends, applied, uncommitted)
    if config.max_records is not None and ends.end + records - start.offset > config.max_records:
        slack = config.max_records // SLACK
        start = _at(ends.end + records - config.max_records, ends, start, applied)
    held = check_held(start.offset, applied.holds.lowest(now_us), uncommitted.lowest_hold(), now_us)
    # The slack only saves commands. It is no reason to refuse a batch, so it stops at a hold and at the end.
    if slack:
        upto = min(start.offset + slack, ends.end)
        start = _at(upto if held is None else min(upto, held), ends, start, applied)
    return start


def _boundary(below: int, ends: LogEnds, applied: Kept, uncommitted: Uncommitted) -> LogStart:
    """The first known end of a batch with at least `below` bytes of records below it.

    The search goes from the oldest records to the newest: the start, the retention index, the applied end, and the
    uncommitted batches.
    """
    if below <= ends.start.bytes:
        return ends.start
    mark = applied.retention_index.with_at_least(below)
    if mark is not None:
        return LogStart(mark.offset, mark.bytes)
    if below <= applied.record_bytes:
        return LogStart(applied.high_watermark, applied.record_bytes)
    return uncommitted.boundary(below) or LogStart(ends.end, ends.end_bytes)


def _at(offset: int, ends: LogEnds, least: LogStart, applied: Kept) -> LogStart:
    """`offset` as a log start, with a lower bound of the bytes below it. Too few are safe: they make room too early."""
    certain = ends.end_bytes if offset == ends.end else applied.retention_index.below(offset)
    return LogStart(offset, max(certain, least.bytes))


def check_held(start: int, lowest: Hold | None, uncommitted: int | None, now_us: int) -> int | None:
    """The lowest held offset, by an applied hold or by an uncommitted one; None: nothing is held.

    Raises QuotaExceeded if that offset is below `start`.
    """
    if uncommitted is not None and start > uncommitted:
        # The hold's lease begins with its entry's append time, which is not known here.
        raise QuotaExceeded("the partition is full, and its records are being held", retry_after_ms=RETRY_MS)
    if lowest is None:
        return uncommitted
    if start > lowest.offset:
        raise QuotaExceeded(
            f"the partition is full, and its records from {lowest.offset} on are held",
            retry_after_ms=max(1, wait_ms(lowest.until_us, now_us)),
        )
    return lowest.offset if uncommitted is None else min(lowest.offset, uncommitted)
