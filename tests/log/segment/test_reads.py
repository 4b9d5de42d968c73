"""Reads of a segment for a fetch: whole, verified frames, and few other bytes."""

from __future__ import annotations

import pytest

from tests.log.opened import reopened, with_log
from tests.log.read_bytes import counted
from tests.log.values import append, faulty
from tinymq.base.errors import CorruptData
from tinymq.format.entry import HEADER_SIZE, iter_entries
from tinymq.log import Log, Store
from tinymq.simulation.faulty_files import FaultyFiles

PAYLOAD = 100_000
COUNT = 8
BYTES = 1 << 20  # of all of them, and more


def filled() -> FaultyFiles:
    """A log with a first entry, and COUNT entries with one record of PAYLOAD bytes each."""
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        for _ in range(COUNT):
            append(log, 1, records=1, size=PAYLOAD)

    with_log(fill, files, tail_cache_bytes_max=1, segment_bytes=BYTES)
    return files


@pytest.mark.parametrize("bytes_max", [1, PAYLOAD, 250_000, 399_999, 1_000_000])
def test_few_bytes_are_read_beyond_the_served_ones(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(store: Store, log: Log) -> None:
        read = counted(monkeypatch)
        served = await log.reader.read_from_offset(2, log.next_offset, bytes_max)
        assert next(iter_entries(served)).header.base_offset == 2
        assert len(served) <= max(bytes_max, PAYLOAD + 1000)
        assert read() - len(served) < 70_000, "the headers, and only frames that are served"

    reopened(check, filled(), tail_cache_bytes_max=1, segment_bytes=BYTES)


@pytest.mark.parametrize("field", [0, 12, 16, 70])
def test_damage_behind_a_large_frame_is_reported_at_its_position(field: int) -> None:
    """Damage the header, a length in it, or the payload of the fourth frame of the segment."""
    files = filled()

    async def check(store: Store, log: Log) -> None:
        (path,) = [path for path in files.paths() if path.endswith(".log")]
        fourth = files.content(path).index(b"4.4.4.") - HEADER_SIZE
        files.flip_bit(path, fourth + field, 3)
        whole = await log.reader.read_from_offset(0, log.next_offset, PAYLOAD + 1000)
        assert [entry.index for entry in iter_entries(whole)] == [2]
        with pytest.raises(CorruptData) as raised:
            await log.reader.read_from_offset(0, log.next_offset, BYTES)
        assert raised.value.detail["index"] == "4"

    reopened(check, files, tail_cache_bytes_max=1, segment_bytes=BYTES)
