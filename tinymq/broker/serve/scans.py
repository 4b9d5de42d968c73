"""Counts what this broker has sent to each scan: bytes and records, by partition and role.

The counts are in memory only, and bounded: the scan with the least recent answer is forgotten, and so is the least
recent partition of a scan. A reader chooses the id of its scan. The id is no secret and grants nothing: it only tells
which reads belong together.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass

from tinymq.base.clock import Clock
from tinymq.base.types import GroupId
from tinymq.format.entry import HEADER_SIZE
from tinymq.log.segment.reads import Frames, StoredFrames

SCANS_MAX = 1_000
ROWS_MAX = 4_096  # of one scan
ALL_ROWS_MAX = 65_536

_LENGTH, _LENGTH_AT = struct.Struct("<I"), 12  # of an entry's header (tinymq/format/entry.py)
_RECORDS, _RECORDS_AT = struct.Struct("<QI"), 36  # its base offset and record count


@dataclass(slots=True)
class ScanProgress:
    """How much this broker sent to one scan from one partition, in one role."""

    group: GroupId
    leader: bool  # whether this broker led the partition then
    bytes: int = 0
    records: int = 0
    last_s: float = 0.0  # by the clock that `Scans` was given


@dataclass(frozen=True, slots=True)
class Total:
    """How much this broker sent to one scan."""

    scan_id: str
    bytes: int
    leader_bytes: int
    records: int
    last_s: float


class Scans:
    """The scans of one broker."""

    def __init__(
        self, clock: Clock, scans_max: int = SCANS_MAX, rows_max: int = ROWS_MAX, all_rows_max: int = ALL_ROWS_MAX
    ) -> None:
        self._clock = clock
        self._scans_max, self._rows_max, self._all_rows_max = scans_max, rows_max, all_rows_max
        # Both levels are ordered by use: the most recently counted scan is last, and so is its most recent row.
        self._scans: OrderedDict[str, OrderedDict[tuple[GroupId, bool], ScanProgress]] = OrderedDict()
        self._rows = 0  # invariant: the number of rows of all scans

    def count(self, scan_id: str, group: GroupId, leader: bool, size: int, records: int) -> None:
        """Count one answer."""
        rows = self._scans.get(scan_id)
        if rows is None:
            rows = self._scans[scan_id] = OrderedDict()
        else:
            self._scans.move_to_end(scan_id)
        key = group, leader
        sent = rows.get(key)
        if sent is None:
            sent = rows[key] = ScanProgress(group, leader)
            self._rows += 1
            self._forget(rows)
        else:
            rows.move_to_end(key)
        sent.bytes += size
        sent.records += records
        sent.last_s = self._clock.monotonic()

    def describe(self, scan_id: str) -> list[ScanProgress]:
        """The counts of one scan by partition and role. Empty if the scan is not known, or forgotten."""
        return list(self._scans.get(scan_id, {}).values())

    def totals(self) -> list[Total]:
        """The totals of all remembered scans."""
        return [_total(scan_id, list(rows.values())) for scan_id, rows in self._scans.items()]

    def age_ms(self, last_s: float) -> int:
        """Milliseconds since `last_s`."""
        return max(0, round((self._clock.monotonic() - last_s) * 1000))

    def _forget(self, newest: OrderedDict[tuple[GroupId, bool], ScanProgress]) -> None:
        if len(newest) > self._rows_max:
            newest.popitem(last=False)
            self._rows -= 1
        while len(self._scans) > self._scans_max or self._rows > self._all_rows_max:
            _, rows = self._scans.popitem(last=False)
            self._rows -= len(rows)


def _total(scan_id: str, rows: list[ScanProgress]) -> Total:
    return Total(
        scan_id,
        sum(row.bytes for row in rows),
        sum(row.bytes for row in rows if row.leader),
        sum(row.records for row in rows),
        max(row.last_s for row in rows),
    )


def count_records(frames: Frames, offset: int, end: int) -> int:
    """Count the records from `offset` on and below `end` (0: no end) in the frames of one answer.

    Offsets are dense, so the first and the last header suffice. The reader verifies the checksums.
    """
    start, behind = frames.offsets if isinstance(frames, StoredFrames) else _offsets_of(frames)
    return max(0, (min(end, behind) if end else behind) - max(offset, start))


def _offsets_of(frames: bytes | memoryview) -> tuple[int, int]:
    """The offset of the first record, and the one behind the last record."""
    at = last = 0
    while at < len(frames):
        last = at
        at += HEADER_SIZE + int(_LENGTH.unpack_from(frames, at + _LENGTH_AT)[0])
    if not frames:
        return 0, 0
    base_offset, count = _RECORDS.unpack_from(frames, last + _RECORDS_AT)
    return int(_RECORDS.unpack_from(frames, _RECORDS_AT)[0]), int(base_offset + count)
