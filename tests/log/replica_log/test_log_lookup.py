"""Looking up a log by offset and by time, in memory and on disk."""

from __future__ import annotations

import pytest

from tests.log.opened import reopened, settle, with_log
from tests.log.values import (
    append,
    faulty,
)  # fmt: skip
from tinymq.base.errors import OffsetOutOfRange
from tinymq.format.entry import Kind, iter_entries
from tinymq.log import Log, Store


def frames(data: bytes) -> list[int]:
    return [entry.index for entry in iter_entries(data)]


@pytest.mark.parametrize("cold", [False, True])
def test_frames_by_offset(cold: bool) -> None:
    """Entries 2 … 31 have three records each, except every fifth, which has none."""
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        for index in range(2, 32):
            if index % 5:
                append(log, 1, records=3)
            else:
                append(log, 1, kind=Kind.COMMAND)
        if not cold:
            await check(store, log)

    async def check(store: Store, log: Log) -> None:
        end = log.next_offset
        assert end == 24 * 3
        data = [i for i in range(2, 32) if i % 5]
        for offset in range(end):
            holder = data[offset // 3]
            assert frames(await log.reader.read_from_offset(offset, end, 1)) == [holder]
            several = frames(await log.reader.read_from_offset(offset, end, 600))
            at = data.index(holder)
            assert several == data[at : at + len(several)]
            limit = frames(await log.reader.read_from_offset(offset, offset + 1, 1 << 20))
            assert limit == [holder]
        assert await log.reader.read_from_offset(end, end, 100) == b""
        assert await log.reader.read_from_offset(end + 5, end + 9, 100) == b""
        assert await log.reader.read_from_offset(10, 10, 100) == b""
        warm = log.reader.tail_from_offset(0, end, 1 << 20)
        assert warm is None if cold else frames(warm or b"") == data

    with_log(fill, files, segment_bytes=1200)
    if cold:
        reopened(check, files, segment_bytes=1200)


def test_offsets_below_the_start_are_out_of_range() -> None:
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        append(log, 60)
        await settle(store, log)
        log.remove_before(40)
        assert log.first_index > 1
        with pytest.raises(OffsetOutOfRange):
            await log.reader.read_from_offset(0, 5, 100)

    async def check(store: Store, log: Log) -> None:
        with pytest.raises(OffsetOutOfRange):
            await log.reader.read_from_offset(log.log_start_offset - 1, 50, 100)
        assert frames(await log.reader.read_from_offset(log.log_start_offset, 50, 1)) == [log.first_index]

    with_log(fill, files)
    reopened(check, files)


# Times


@pytest.mark.parametrize("cold", [False, True])
def test_the_first_entry_with_a_record_of_a_time_or_later(cold: bool) -> None:
    files = faulty()
    times = [10, 50, 20, 20, 90, 30, 95, 40, 95, 60] * 8
    times = [t + 100 * (i // 10) for i, t in enumerate(times)]

    async def fill(store: Store, log: Log) -> None:
        for time_us in times:
            append(log, 1, time_us=time_us)
        append(log, 1, kind=Kind.NOOP, time_us=10_000)
        await store.writer.drain()
        if not cold:
            await check(store, log)

    async def check(store: Store, log: Log) -> None:
        for end in (len(times), 33):
            for wanted in range(0, max(times) + 20, 5):
                expected = next((i for i, t in enumerate(times[:end]) if t >= wanted), None)
                found = await log.time_index.entry_for_time(wanted, end)
                assert (found and found.header.base_offset) == expected, (wanted, end)
        for end in range(1, len(times) + 1, 3):
            found = await log.time_index.entry_of_max_timestamp(end)
            assert found is not None
            assert found.header.base_offset == times.index(max(times[:end]))
        assert await log.time_index.entry_of_max_timestamp(0) is None
        for start in (0, 1, 17, 40, 78, 79, 80):
            for end in (1, 33, 79, 80):
                within = times[start:end]
                for wanted in (-5, 15, 95, 395, 745, 796):
                    expected = next((start + i for i, t in enumerate(within) if t >= wanted), None)
                    found = await log.time_index.entry_for_time(wanted, end, start)
                    assert (found and found.header.base_offset) == expected, (wanted, start, end)
                found = await log.time_index.entry_of_max_timestamp(end, start)
                expected = start + within.index(max(within)) if within else None
                assert (found and found.header.base_offset) == expected, (start, end)

    with_log(fill, files)
    if cold:
        reopened(check, files)
