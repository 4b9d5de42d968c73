"""Reads of published batches: in memory, from disk near their PUBLISH entry or far from it, and as parts of a file."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.log.opened import reopened, settle, with_log
from tests.log.published import copy, discard, publish, stage, visible
from tests.log.read_bytes import counted
from tests.log.test_stored_frames import sent
from tests.log.values import LIMITS, append, everything, faulty, open_both, run
from tinymq.base.errors import CorruptData, OffsetOutOfRange
from tinymq.format.entry import HEADER_SIZE, Entry, Kind, iter_entries
from tinymq.format.transactional import STAGED_HEAD_SIZE
from tinymq.log import Log, Store
from tinymq.log.files.files import RealFiles
from tinymq.log.segment.reads import SENT_BATCH_BYTES_MIN, StoredFrames

LARGE = 100_000
SEGMENT_BYTES = 8 << 20


def mixed(log: Log, rng: random.Random, steps: int, sizes: tuple[int, ...]) -> None:
    """Two transactions at a time, in any order with other entries. Some of their batches are copied."""
    waiting: tuple[list[tuple[Entry, int]], ...] = ([], [])
    for step in range(steps):
        staged = rng.choice(waiting)
        match rng.choice(("stage", "stage", "stage", "copy", "data", "other", "publish", "discard")):
            case "stage":
                batch = (b"%d." % step * LARGE)[: rng.choice(sizes)]
                staged.append((stage(log, batch, number=len(staged), time_us=rng.randint(0, 50)), rng.randint(1, 4)))
            case "copy" if staged:
                place = rng.randrange(len(staged))
                entry, records = staged[place]
                staged[place] = copy(log, entry), records
            case "data":
                append(log, 1, rng.choice(sizes), records=rng.randint(1, 3), time_us=rng.randint(0, 50))
            case "other":
                append(log, rng.randint(1, 3), 200, kind=rng.choice((Kind.NOOP, Kind.COMMAND)))
            case "publish" if staged:
                publish(log, staged)
                staged.clear()
            case "discard" if staged:
                discard(log)
                staged.clear()


async def check_reads(log: Log, rng: random.Random, wanted: list[Entry], bytes_maxes: tuple[int, ...]) -> None:
    """All reads from random offsets return a prefix of what a reader should get."""
    assert wanted[-1].header.next_offset == log.next_offset
    for _ in range(60):
        offset = rng.randrange(log.next_offset)
        end = rng.choice((log.next_offset, rng.randint(offset + 1, log.next_offset)))
        bytes_max = rng.choice(bytes_maxes)
        expected = [e for e in wanted if e.header.next_offset > offset and e.header.base_offset < end]
        read = bytes(await log.reader.read_from_offset(offset, end, bytes_max))
        found = list(iter_entries(read))
        assert found
        assert found == expected[: len(found)]
        assert len(read) <= bytes_max or len(found) == 1
        cached = log.reader.tail_from_offset(offset, end, bytes_max)
        assert cached is None or list(iter_entries(cached)) == expected[: len(list(iter_entries(cached)))]
        sendable = await log.reader.find_from_offset(offset, end, bytes_max)
        if not isinstance(sendable, StoredFrames):
            assert list(iter_entries(sendable)) == expected[: len(list(iter_entries(sendable)))]
            continue
        offsets = sendable.offsets
        frames = list(iter_entries(sent(sendable)))
        assert frames == expected[: len(frames)]
        assert offsets == (frames[0].header.base_offset, frames[-1].header.next_offset)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tail_bytes", [1 << 20, 20_000, 1])
def test_readers_get_published_batches_in_the_place_of_their_records(seed: int, tail_bytes: int) -> None:
    """With all of the log in memory, its end, or nothing; transactions span several segments."""
    files = faulty(seed)
    rng = random.Random(seed)

    async def fill(store: Store, log: Log) -> None:
        mixed(log, rng, 150, (1, 100, 3000))
        append(log, 1)
        await settle(store, log)
        wanted = visible(await everything(log))
        assert any(entry.header.version == 3 for entry in wanted)
        await check_reads(log, rng, wanted, (1, 500, 5000, 1 << 20))

    async def again(store: Store, log: Log) -> None:
        await check_reads(log, rng, visible(await everything(log)), (1, 500, 5000, 1 << 20))

    with_log(fill, files, segment_bytes=20_000, tail_cache_bytes_max=tail_bytes)
    reopened(again, files, segment_bytes=20_000, tail_cache_bytes_max=tail_bytes)


def on_real_disk(
    tmp_path: Path,
    fill: Callable[[Log], object],
    check: Callable[[Log], Awaitable[None]],
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Fill a log, and run `check` once no entry is in memory."""

    async def main() -> None:
        limits = replace(LIMITS, tail_cache_bytes_max=1, segment_bytes=segment_bytes)
        store, opened = await open_both(RealFiles(tmp_path), limits=limits)
        fill(opened.log)
        await store.close()
        store, opened = await open_both(RealFiles(tmp_path), limits=limits)
        await check(opened.log)
        await store.close()

    run(main())


@pytest.mark.parametrize("seed", range(4))
def test_sent_batches_equal_read_ones(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    def fill(log: Log) -> None:
        mixed(log, rng, 150, (100, SENT_BATCH_BYTES_MIN, LARGE))
        append(log, 1)

    async def check(log: Log) -> None:
        await check_reads(log, rng, visible(await everything(log)), (1, 150_000, 1 << 20))

    on_real_disk(tmp_path, fill, check)


def large(log: Log) -> None:
    """Five large batches with a record each, between other entries, and a record behind them."""
    staged = []
    for number in range(5):
        staged.append((stage(log, b"%d" % number * LARGE, number=number), 1))
        append(log, 1, 50, kind=Kind.COMMAND)
    publish(log, staged)
    append(log, 1)


def segment_with(folder: Path, content: bytes) -> Path:
    return next(path for path in folder.rglob("*.log") if content in path.read_bytes())


def test_large_batches_are_sent_from_their_file_without_a_copy(tmp_path: Path) -> None:
    async def check(log: Log) -> None:
        found = await log.reader.find_from_offset(1, 10, 1 << 20)
        assert isinstance(found, StoredFrames)
        assert found.offsets == (1, 5)
        assert [(len(made), length) for made, _, length in found.pieces] == [(HEADER_SIZE, LARGE)] * 4
        found.close()

    on_real_disk(tmp_path, large, check)


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("at", [0, 16, HEADER_SIZE + STAGED_HEAD_SIZE, HEADER_SIZE + STAGED_HEAD_SIZE + 99])
def test_a_damaged_batch_is_found_when_it_is_read(near: bool, at: int) -> None:
    """In the header of its entry, or in the batch. Other batches are served."""
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        staged = [(stage(log, b"%d" % number * 100, number=number), 1) for number in range(3)]
        if not near:
            append(log, 3, 40_000, kind=Kind.COMMAND)
        publish(log, staged)

    async def check(store: Store, log: Log) -> None:
        (path,) = [path for path in files.paths() if path.endswith(".log")]
        batch = files.content(path).index(b"1" * 100)
        files.flip_bit(path, batch - HEADER_SIZE - STAGED_HEAD_SIZE + at)
        damage: list[CorruptData] = []
        log.reader.on_damage = damage.append
        with pytest.raises(CorruptData) as raised:
            await log.reader.read_from_offset(1, 3, 1)
        assert raised.value.detail["index"] == "3"
        assert damage == [raised.value]
        if not near:
            assert [e.payload for e in iter_entries(await log.reader.read_from_offset(0, 1, 1))] == [b"0" * 100]
            if at >= HEADER_SIZE:
                assert [e.payload for e in iter_entries(await log.reader.read_from_offset(2, 3, 1))] == [b"2" * 100]

    with_log(fill, files, segment_bytes=SEGMENT_BYTES)
    reopened(check, files, segment_bytes=SEGMENT_BYTES)


def test_damage_in_a_batch_that_is_sent_unread_is_found_by_its_reader_and_by_the_next_read(tmp_path: Path) -> None:
    async def check(log: Log) -> None:
        path = segment_with(tmp_path, b"3" * LARGE)
        content = bytearray(path.read_bytes())
        content[content.index(b"3" * LARGE) + 5] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptData):
            list(iter_entries(sent(await log.reader.find_from_offset(0, 6, 1 << 20))))
        with pytest.raises(CorruptData) as raised:
            await log.reader.read_from_offset(0, 6, 1 << 20)
        assert raised.value.detail["index"] == "8"

    on_real_disk(tmp_path, large, check)


@pytest.mark.parametrize("left", [0, HEADER_SIZE, HEADER_SIZE + STAGED_HEAD_SIZE, LARGE])
def test_a_truncated_file_is_found_by_the_fallback_read(tmp_path: Path, left: int) -> None:
    async def check(log: Log) -> None:
        path = segment_with(tmp_path, b"1" * LARGE)
        os.truncate(path, path.read_bytes().index(b"1" * LARGE) - HEADER_SIZE - STAGED_HEAD_SIZE + left)
        with pytest.raises(CorruptData) as raised:
            await log.reader.find_from_offset(1, 5, 1 << 20)
        assert raised.value.detail["index"] == "4"

    on_real_disk(tmp_path, large, check, segment_bytes=2 * LARGE)


@pytest.mark.parametrize("at", [0, 12, 40, HEADER_SIZE + 3, HEADER_SIZE + 30, HEADER_SIZE + 50])
def test_a_damaged_publish_entry_is_found(at: int) -> None:
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        publish(log, [(stage(log, b"a" * 100), 1), (stage(log, b"b" * 100, number=1), 1)])

    async def check(store: Store, log: Log) -> None:
        (path,) = [path for path in files.paths() if path.endswith(".log")]
        files.flip_bit(path, files.content(path).index(b"b" * 100) + 100 + at)
        with pytest.raises(CorruptData) as raised:
            await log.reader.read_from_offset(1, 2, 1)
        assert raised.value.detail["index"] == "4"

    with_log(fill, files, segment_bytes=SEGMENT_BYTES)
    reopened(check, files, segment_bytes=SEGMENT_BYTES)


# ---- batches that are gone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail_bytes", [1 << 20, 1])
def test_batches_below_the_first_entry_are_out_of_range_and_the_others_are_served(tail_bytes: int) -> None:
    """As on a follower that was filled from a snapshot."""

    async def check(store: Store, log: Log) -> None:
        staged = [(stage(log, b"%d" % number * 900, number=number), 10) for number in range(6)]
        last = publish(log, staged)
        append(log, 30)
        await settle(store, log)
        log.remove_before(staged[2][0].index + 1)
        first = log.first_index
        gone = sum(entry.index < first for entry, _ in staged)
        assert 0 < gone < 6
        start = 10 * gone
        damage: list[CorruptData] = []
        log.reader.on_damage = damage.append
        for offset in range(start):
            with pytest.raises(OffsetOutOfRange) as raised:
                await log.reader.read_from_offset(offset, 60, 1 << 20)
            assert raised.value.detail["log_start"] == str(start)
        assert not damage
        wanted = visible(await everything(log))
        for offset in range(start, 60):
            found = next(iter_entries(await log.reader.read_from_offset(offset, 60, 1)))
            assert found == next(e for e in wanted if e.header.next_offset > offset)
        assert last.index >= log.first_index

    with_log(check, tail_cache_bytes_max=tail_bytes)


@pytest.mark.parametrize("tail_bytes", [1 << 20, 1])
def test_a_copy_in_front_of_a_batch_that_is_gone_is_served(tail_bytes: int) -> None:
    """The copy lies behind the other batches, and its records come first."""

    async def check(store: Store, log: Log) -> None:
        staged = [(stage(log, b"%d" % number * 900, number=number), 10) for number in range(6)]
        staged[0] = copy(log, staged[0][0]), 10
        publish(log, staged)
        append(log, 30)
        await settle(store, log)
        log.remove_before(staged[2][0].index + 1)
        gone = sum(entry.index < log.first_index for entry, _ in staged)
        assert 0 < gone < 5
        found = list(iter_entries(await log.reader.read_from_offset(0, 60, 1 << 20)))
        assert [entry.header.base_offset for entry in found] == [0]
        for offset in (10, 10 * gone):
            with pytest.raises(OffsetOutOfRange) as raised:
                await log.reader.read_from_offset(offset, 60, 1 << 20)
            assert raised.value.detail["log_start"] == str(10 * (gone + 1))
        found = list(iter_entries(await log.reader.read_from_offset(10 * (gone + 1), 60, 1 << 20)))
        assert found[0].header.base_offset == 10 * (gone + 1)

    with_log(check, tail_cache_bytes_max=tail_bytes)


def test_a_transaction_of_which_all_batches_are_gone_is_out_of_range_up_to_its_end() -> None:
    async def check(store: Store, log: Log) -> None:
        staged = [(stage(log, b"%d" % number * 900, number=number), 10) for number in range(3)]
        append(log, 20, kind=Kind.COMMAND)
        last = publish(log, staged)
        append(log, 30)
        await settle(store, log)
        log.remove_before(last.index)
        assert staged[-1][0].index < log.first_index <= last.index
        with pytest.raises(OffsetOutOfRange) as raised:
            await log.reader.read_from_offset(0, 60, 1)
        assert raised.value.detail["log_start"] == "30"
        assert next(iter_entries(await log.reader.read_from_offset(30, 60, 1))).header.base_offset == 30

    with_log(check)


@pytest.mark.parametrize("needed", [True, False])
def test_segments_stay_while_something_needs_their_entries(needed: bool) -> None:
    """The partition's state knows the least index that undecided and published batches need (`keep_from`)."""

    async def check(store: Store, log: Log) -> None:
        staged = stage(log, b"x" * 900)
        append(log, 40)
        published = publish(log, [(staged, 1)])
        append(log, 40)
        await settle(store, log)
        log.remove_before_offset(published.header.base_offset, staged.index if needed else None)
        assert (log.first_index <= staged.index) == needed
        reads = log.reader.read_from_offset(published.header.base_offset, log.next_offset, 1)
        if needed:
            assert next(iter_entries(await reads)).payload == b"x" * 900
        else:
            with pytest.raises(OffsetOutOfRange):
                await reads

    with_log(check)


# ---- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tail_bytes", [1 << 20, 1])
def test_times_are_looked_up_batch_by_batch(seed: int, tail_bytes: int) -> None:
    rng = random.Random(seed)

    async def check(store: Store, log: Log) -> None:
        mixed(log, rng, 120, (1, 100, 1000))
        append(log, 1)
        await settle(store, log)
        wanted = visible(await everything(log))
        for _ in range(100):
            start, end = sorted(rng.randint(0, log.next_offset + 1) for _ in range(2))
            end = rng.choice((start, end, end))
            within = [e for e in wanted if e.header.next_offset > start and e.header.base_offset < end]
            time_us = rng.randint(-1, 52)
            found = await log.time_index.entry_for_time(time_us, end, start)
            assert found == next((e for e in within if e.header.max_timestamp_us >= time_us), None)
            greatest = max((e.header.max_timestamp_us for e in within), default=None)
            found = await log.time_index.entry_of_max_timestamp(end, start)
            assert found == next((e for e in within if e.header.max_timestamp_us == greatest), None)

    with_log(check, segment_bytes=10_000, tail_cache_bytes_max=tail_bytes)


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, 2000])
def test_one_batch_among_many_costs_a_few_items_and_one_batch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files = faulty()

    async def fill(store: Store, log: Log) -> None:
        publish(log, [(stage(log, b"%4d" % number * 50, number=number), 1) for number in range(count)])

    async def check(store: Store, log: Log) -> None:
        read = counted(monkeypatch)
        found = next(iter_entries(await log.reader.read_from_offset(3, count, 1)))
        assert found.payload == b"   3" * 50
        assert read() < 250_000 + 36 * count, "two rows of the sparse index, the PUBLISH entry, and the batch"

    with_log(fill, files, segment_bytes=SEGMENT_BYTES)
    reopened(check, files, segment_bytes=SEGMENT_BYTES)
