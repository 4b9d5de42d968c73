"""A broker's statistics of scans: sums by partition and role, the latest scans, and never more than the bounds."""

from __future__ import annotations

import pytest

from tests.fakes.batches import payload
from tests.fakes.manual_clock import ManualClock
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.serve.scans import ScanProgress, Scans, count_records
from tinymq.format.entry import Kind, NewEntry, make_entry


def group(partition: int) -> GroupId:
    return GroupId(TopicId(b"t" * 16), partition)


def test_bytes_and_records_are_summed_by_partition_and_role() -> None:
    clock = ManualClock()
    scans = Scans(clock)
    scans.count("a", group(0), False, 100, 10)
    scans.count("a", group(1), True, 7, 1)
    clock.advance(2)
    scans.count("a", group(0), False, 50, 5)
    scans.count("b", group(0), False, 1, 1)
    assert scans.describe("a") == [
        ScanProgress(group(1), True, 7, 1, 1000.0),
        ScanProgress(group(0), False, 150, 15, 1002.0),
    ]
    assert scans.describe("c") == []
    clock.advance(0.5)
    totals = [(t.scan_id, t.bytes, t.leader_bytes, t.records, scans.age_ms(t.last_s)) for t in scans.totals()]
    assert totals == [("a", 157, 7, 16, 500), ("b", 1, 0, 1, 500)]


def test_the_oldest_scan_is_dropped() -> None:
    scans = Scans(ManualClock(), scans_max=3, rows_max=2, all_rows_max=4)

    def known() -> dict[str, list[int]]:
        return {t.scan_id: [sent.group.partition for sent in scans.describe(t.scan_id)] for t in scans.totals()}

    for partition in (0, 1, 0, 2):
        scans.count("a", group(partition), False, 1, 1)
    assert known() == {"a": [0, 2]}, "the partition whose scan is the oldest"
    for scan_id in ("b", "c", "a"):
        scans.count(scan_id, group(0), False, 1, 1)
    assert known() == {"b": [0], "c": [0], "a": [2, 0]}
    scans.count("d", group(0), False, 1, 1)
    assert known() == {"c": [0], "a": [2, 0], "d": [0]}, "no more scans than that"
    scans.count("d", group(1), False, 1, 1)
    assert known() == {"a": [2, 0], "d": [0, 1]}, "nor more rows in all"
    for number in range(1000):
        scans.count(f"x{number}", group(number), bool(number % 2), 1, 1)
        assert len(scans.totals()) <= 3
    assert scans._rows == sum(len(scans.describe(t.scan_id)) for t in scans.totals())


def frames(*batches: tuple[int, int]) -> bytes:
    """Frames of (base offset, records)."""
    entries = [
        make_entry(
            NewEntry(Kind.DATA, payload(count), record_count=count),
            index=index + 1,
            term=1,
            prev_crc=0,
            base_offset=base,
            append_time_us=1,
        )
        for index, (base, count) in enumerate(batches)
    ]
    return b"".join(entry.head + entry.payload for entry in entries)


@pytest.mark.parametrize(
    ("offset", "end", "records"),
    [(10, 0, 30), (15, 0, 25), (15, 35, 20), (39, 0, 1), (10, 1000, 30), (10, 11, 1), (0, 0, 30)],
)
def test_only_requested_records_are_counted(offset: int, end: int, records: int) -> None:
    assert count_records(frames((10, 10), (20, 1), (21, 19)), offset, end) == records


def test_without_frames_nothing_is_counted() -> None:
    assert count_records(b"", 5, 0) == 0
