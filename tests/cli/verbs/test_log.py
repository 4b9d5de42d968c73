"""`tinymq log dump`: the entries of a segment, and its damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinymq.base.types import GroupId, TopicId
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.format.entry import HEADER_SIZE, Kind, NewEntry, make_entry
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE, SegmentHeader, pack_segment_header

PAYLOAD = b"x" * 100


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three entries of 10 records each, and allocated space behind them."""
    data = pack_segment_header(SegmentHeader(GroupId(TopicId(bytes(15) + b"\1"), 2), 1, 0, 0, 0))
    prev_crc = 0
    for i in range(3):
        entry = make_entry(
            NewEntry(Kind.DATA, PAYLOAD, record_count=10, max_timestamp_us=0),
            index=i + 1,
            term=1,
            prev_crc=prev_crc,
            base_offset=10 * i,
            append_time_us=1_357_034_400_000_000,
        )
        prev_crc = entry.header.header_crc
        data += entry.head + entry.payload
    path = tmp_path / "00000000000000000001.log"
    path.write_bytes(data + bytes(1000))
    return path


def test_entries(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(segment)]) == Exit.OK
    lines = capfd.readouterr().out.splitlines()
    assert sum("DATA" in line.upper() for line in lines) == 3
    assert len(lines) == 5


def test_entries_as_json(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(segment), "-o", "json"]) == Exit.OK
    first, *entries, end = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (first["partition"], first["first_index"]) == (2, 1)
    places = [(entry["index"], entry["kind"], entry["position"]) for entry in entries]
    assert places == [(1, "DATA", 64), (2, "DATA", 228), (3, "DATA", 392)]
    assert entries[1]["prev_crc"] == entries[0]["header_crc"]
    assert end == {"end": 556, "entries": 3, "problem": None}


@pytest.mark.parametrize(
    ("at", "whole", "says"),
    [
        (0, 0, "segment header"),
        (SEGMENT_HEADER_SIZE, 0, "header checksum"),
        (SEGMENT_HEADER_SIZE + HEADER_SIZE + 164 + 50, 1, "payload checksum"),
        (SEGMENT_HEADER_SIZE + 2 * 164 + 5, 2, "header checksum"),
    ],
)
def test_a_flipped_bit_is_found(
    segment: Path, capfd: pytest.CaptureFixture[str], at: int, whole: int, says: str
) -> None:
    data = bytearray(segment.read_bytes())
    data[at] ^= 1
    segment.write_bytes(data)
    assert run(["log", "dump", str(segment), "-o", "json"]) == Exit.FAILED
    *entries, end = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert sum("index" in entry for entry in entries) == end["entries"] == whole
    assert says in end["problem"]


def test_a_truncated_segment(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    segment.write_bytes(segment.read_bytes()[: SEGMENT_HEADER_SIZE + 164 + 100])
    assert run(["log", "dump", str(segment)]) == Exit.FAILED
    out, err = capfd.readouterr()
    assert "228" in out.splitlines()[-1]
    assert "problem" in err
