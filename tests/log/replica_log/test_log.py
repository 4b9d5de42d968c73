"""One log as its owner sees it: append, tail, read, truncate, trim."""

from __future__ import annotations

import pytest

from tests.log.opened import reopened, settle, with_log
from tests.log.values import (
    GROUP,
    append,
    everything,
    faulty,
    first_entry,
    following,
    open_both,
    open_store,
    run,
)  # fmt: skip
from tinymq.base.errors import CorruptData, OffsetOutOfRange
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log import Log, Store


def test_a_new_log_has_its_first_entry() -> None:
    async def test(store: Store, log: Log) -> None:
        assert (log.first_index, log.last_index, log.durable_index) == (1, 1, 1)
        assert (log.last_term, log.next_offset, log.log_start_offset) == (0, 0, 0)
        assert log.last_crc == first_entry().header.header_crc
        assert log.reader.entry(1) == first_entry()
        assert await everything(log) == [first_entry()]

    with_log(test)


def test_an_append_is_readable_at_once_and_durable_after_a_sync() -> None:
    async def test(store: Store, log: Log) -> None:
        heard: list[int] = []
        log.on_durable = lambda: heard.append(log.durable_index)
        added = append(log, 5)
        assert (log.last_index, log.durable_index, log.next_offset) == (6, 1, 5)
        assert log.reader.tail(2, 1 << 20) == added
        await store.writer.drain()
        assert (log.durable_index, heard) == (6, [6])
        assert (await everything(log))[1:] == added

    with_log(test)


def test_a_reopened_log_is_the_same() -> None:
    files = faulty()
    before: list[list[Entry]] = []

    async def fill(store: Store, log: Log) -> None:
        append(log, 40)
        append(log, 20, term=7)
        log.note_commit(44)
        await store.writer.drain()
        before.append(await everything(log))

    async def test(store: Store, log: Log) -> None:
        assert await everything(log) == before[0]
        assert [log.reader.entry(i) for i in range(1, log.last_index + 1)] == before[0]
        assert [log.term_at(i) for i in (-1, 0, 1, 2, 41, 42, 61, 62)] == [None, 0, 0, 1, 1, 7, 7, None]
        assert [log.reader.crc_at(e.index) for e in before[0]] == [e.header.header_crc for e in before[0]]
        assert (log.reader.crc_at(0), log.reader.crc_at(62)) == (0, None)
        assert log.recovered_commit == 44
        assert log.reader.tail(3, 100) is None
        assert log.reader.tail(62, 100) == []
        assert len(log.segments.bounds()) > 4

    with_log(fill, files)
    reopened(test, files)


def test_an_append_that_does_not_continue_the_log_is_a_broken_invariant() -> None:
    async def test(store: Store, log: Log) -> None:
        entry = following(log)
        append(log, 1)
        with pytest.raises(AssertionError):
            log.append([entry])
        skipping = following(log)
        append(log, 1)
        with pytest.raises(AssertionError):
            log.append([skipping])

    with_log(test)


def test_tail_and_read_return_about_the_requested_bytes_and_at_least_one_entry() -> None:
    async def test(store: Store, log: Log) -> None:
        append(log, 10, size=100)
        assert [e.index for e in log.reader.tail(3, 164 * 3) or ()] == [3, 4, 5]
        assert [e.index for e in log.reader.tail(3, 1) or ()] == [3]
        await store.writer.drain()

    async def cold(store: Store, log: Log) -> None:
        assert [e.index for e in await log.reader.read(3, 164 * 3)] == [3, 4, 5]
        assert [e.index for e in await log.reader.read(3, 1)] == [3]
        assert await log.reader.read(12, 100) == []
        with pytest.raises(OffsetOutOfRange):
            await log.reader.read(0, 100)

    files = faulty()
    with_log(test, files, segment_bytes=1 << 20)
    reopened(cold, files, segment_bytes=1 << 20)


def test_the_tail_keeps_unsynced_and_unapplied_entries_and_few_others() -> None:
    async def test(store: Store, log: Log) -> None:
        append(log, 20, size=1000)
        assert log.reader.tail(2, 1) is not None
        await store.writer.drain()
        assert log.reader.tail(2, 1) is not None, "not applied"
        log.note_applied(10)
        assert log.reader.tail(10, 1) is None
        assert log.reader.tail(11, 1) is not None
        log.note_applied(21)
        assert log.reader.tail(18, 1) is None
        assert log.reader.tail(20, 1) is not None
        assert [e.index for e in await everything(log)] == list(range(1, 22))

    with_log(test, tail_cache_bytes_max=5000)


# Truncation


@pytest.mark.parametrize("index", [2, 3, 12, 13, 14, 24, 25, 41])
@pytest.mark.parametrize("cold", [False, True])
def test_truncation_keeps_the_head_and_accepts_another_tail(index: int, cold: bool) -> None:
    files = faulty()
    kept: list[Entry] = []

    async def fill(store: Store, log: Log) -> None:
        append(log, 40, time_us=99)
        await store.writer.drain()
        if not cold:
            await cut(store, log)

    async def cut(store: Store, log: Log) -> None:
        kept.extend(e for e in await everything(log) if e.index < index)
        log.truncate_from(index)
        assert (log.last_index, log.last_crc) == (index - 1, kept[-1].header.header_crc)
        assert (log.durable_index, log.next_offset) == (index - 1, max(0, index - 2))
        assert await everything(log) == kept
        log.truncate_from(index)  # nothing left to truncate
        kept.extend(append(log, 15, term=5, time_us=7))
        assert (log.term_at(index - 1), log.term_at(index)) == (kept[index - 2].term, 5)
        assert log.durable_index == index - 1
        await store.writer.drain()
        assert log.durable_index == index + 14
        assert await everything(log) == kept
        found = await log.time_index.entry_of_max_timestamp(1000)
        assert found is not None
        assert found.header.max_timestamp_us == (99 if index > 2 else 7)

    async def check(store: Store, log: Log) -> None:
        assert await everything(log) == kept

    with_log(fill, files)
    if cold:
        reopened(cut, files)
    reopened(check, files)


def test_a_truncation_before_anything_was_written_reaches_the_disk_in_order() -> None:
    files = faulty()
    kept: list[Entry] = []

    async def fill(store: Store, log: Log) -> None:
        append(log, 20)
        log.truncate_from(9)
        append(log, 3, term=2)
        log.truncate_from(11)
        append(log, 30, term=3)
        kept.extend(await everything(log))

    async def check(store: Store, log: Log) -> None:
        assert await everything(log) == kept

    with_log(fill, files)
    reopened(check, files)


def test_committed_entries_are_never_truncated() -> None:
    async def test(store: Store, log: Log) -> None:
        append(log, 10)
        log.note_commit(5)
        with pytest.raises(AssertionError):
            log.truncate_from(5)
        log.truncate_from(6)

    with_log(test)


# Applied states and removal


def test_a_segment_ends_with_the_entry_that_fills_it() -> None:
    async def test(store: Store, log: Log) -> None:
        ends = []
        while len(ends) < 3:
            append(log, 1)
            if log.segments.end_at(log.last_index):
                ends.append(log.last_index)
        assert [log.segments.end_at(i) for i in ends] == [True] * 3
        assert [s[1] for s in log.segments.bounds()] == ends
        assert all(size >= 2000 for _, _, size, _ in log.segments.bounds())

    with_log(test)


def test_the_newest_applied_state_is_found_at_opening() -> None:
    files = faulty()
    ends: list[int] = []

    async def fill(store: Store, log: Log) -> None:
        append(log, 66)
        ends.extend(s[1] for s in log.segments.bounds()[:-1])
        await settle(store, log)
        log.save_snapshot(17, b"not where a segment ends")

    async def check() -> None:
        _, opened = await open_both(files)
        assert (opened.applied_index, opened.snapshot) == (ends[-1], b"state at %d" % ends[-1])

    with_log(fill, files)
    run(check())


def test_a_state_waits_until_its_entries_are_durable() -> None:
    async def test(store: Store, log: Log) -> None:
        append(log, 30)
        end = log.segments.bounds()[0][1]
        log.save_snapshot(end, b"early")
        log.truncate_from(end)  # entry 3 was not committed
        await store.writer.drain()
        assert not any(p.endswith(".state") for p in files.paths())
        append(log, 30)
        log.save_snapshot(log.segments.bounds()[0][1], b"early")
        await store.writer.drain()
        assert any(p.endswith(".state") for p in files.paths())

    files = faulty()
    with_log(test, files)


def test_segments_are_removed_only_when_the_next_ones_state_is_durable() -> None:
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        append(log, 60)
        bounds = log.segments.bounds()
        log.note_applied(61)
        await store.writer.drain()
        log.remove_before(61)
        assert log.first_index == 1, "no state"
        log.save_snapshot(bounds[1][1], b"second")
        log.remove_before(61)
        assert log.first_index == 1, "not durable yet"
        await store.writer.drain()
        log.remove_before(bounds[1][1])
        assert log.first_index == 1, "the second segment has an entry that must stay"
        log.remove_before(bounds[1][1] + 1)
        assert log.first_index == bounds[2][0]
        assert log.log_start_offset == bounds[2][0] - 2
        assert log.term_at(log.first_index - 1) == 1
        assert log.term_at(log.first_index - 2) is None
        await store.writer.drain()
        assert sum(p.endswith(".log") for p in files.paths()) == len(bounds) - 2

    async def check(store: Store, log: Log) -> None:
        assert log.first_index > 1
        assert log.term_at(log.first_index - 1) == 1
        assert [e.index for e in await everything(log)] == list(range(log.first_index, 62))

    with_log(fill, files)
    reopened(check, files)


def test_the_last_segment_stays_even_when_it_is_full() -> None:
    async def test(store: Store, log: Log) -> None:
        while not log.segments.end_at(log.last_index):
            append(log, 1)
        await settle(store, log)
        log.remove_before(1000)
        assert log.first_index == 1
        append(log, 1)
        log.remove_before(1000)
        assert log.first_index == 1, "no durable entry behind it yet"
        await store.writer.drain()
        log.remove_before(1000)
        assert log.first_index == log.last_index

    with_log(test)


# Damage met while reading


def test_cold_reads_never_return_damaged_entries() -> None:
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        append(log, 10)

    async def check(store: Store, log: Log) -> None:
        path = next(p for p in files.paths() if p.endswith(".log"))
        files.flip_bit(path, len(files.content(path)) // 2, 3)
        with pytest.raises(CorruptData):
            await everything(log)
        with pytest.raises(CorruptData):
            await log.reader.read_from_offset(0, 10, 1 << 20)
        with pytest.raises(CorruptData):
            [log.reader.entry(i) for i in range(1, 12)]

    with_log(fill, files, segment_bytes=1 << 20)
    reopened(check, files, segment_bytes=1 << 20)


def test_a_log_with_another_first_entry_is_refused() -> None:
    files = faulty()

    async def body() -> None:
        store, _ = await open_both(files)
        await store.close()
        store = await open_store(files)
        other = replace_payload(first_entry())
        opened = await store.open_log(GROUP, other)
        assert opened.damage is not None
        assert "first entry" in opened.damage
        with pytest.raises(CorruptData):
            append(opened.log, 1)
        await store.close()

    run(body())


def replace_payload(entry: Entry) -> Entry:
    return make_entry(
        NewEntry(Kind.CONFIG, entry.payload + b"!"), index=1, term=0, prev_crc=0, base_offset=0, append_time_us=1
    )
