"""When marks are written and made durable."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.log.gate import until
from tests.log.values import GROUP, LIMITS, append, faulty, first_entry, open_both, open_store, run
from tinymq.log import DISK, InlineRunner, Log, LogConfig, Store
from tinymq.log.broker_files.durability_marks import (
    DAMAGED,
    LAZY,
    DurabilityMark,
    DurabilityMarks,
    LoadedMarks,
    load_marks,
    pack_mark,
    unpack_marks,
)
from tinymq.log.files.layout import GROUPS, SEGMENT, group_directory, in_group


async def with_clock() -> tuple[Any, ManualClock, Store, Log]:
    files, clock = faulty(), ManualClock()
    store = await Store.open(
        files, InlineRunner(), clock, broker_id=1, limits=replace(LIMITS, segment_bytes=1 << 20), rng=random.Random(1)
    )
    return files, clock, store, (await store.open_log(GROUP, first_entry())).log


def test_marks_join_a_sync_now_and_then() -> None:
    async def body() -> None:
        files, clock, store, log = await with_clock()
        for _ in range(10):
            append(log, 1)
            await store.writer.drain()
            clock.advance(0.004)
        syncs = [t for t in files.trace if t.startswith("sync ") and ".log" in t][1:]
        assert ["marks" in t for t in syncs] == [False] + [False, False, True] * 3

    run(body())


def test_marks_lag_one_batch_and_are_synced_when_idle() -> None:
    async def body() -> None:
        files, clock, store, log = await with_clock()
        append(log, 5)
        await store.writer.drain()
        clock.advance(0.05)
        append(log, 5)
        log.note_commit(8)
        await store.writer.drain()
        clock.advance(0.11)
        await store.writer.drain()
        clock.advance(0.11)
        await store.writer.drain()
        files.power_cut()
        mark = load_marks(files).marks[GROUP]
        assert (mark.index, mark.commit) == (11, 8)

    run(body())


def test_the_last_commit_index_is_marked_when_idle_and_then_nothing_is_written() -> None:
    async def body() -> None:
        files, clock, store, log = await with_clock()
        append(log, 5)
        await store.writer.drain()
        for _ in range(5):
            clock.advance(1)
            await store.writer.drain()
        log.note_commit(6)
        clock.advance(0.11)
        await store.writer.drain()
        done = files.operations
        for _ in range(5):
            clock.advance(1)
            await store.writer.drain()
        assert files.operations == done
        files.power_cut()
        assert load_marks(files).marks[GROUP].commit == 6

    run(body())


def test_a_clean_stop_syncs_the_marks() -> None:
    async def body() -> None:
        files, _, store, log = await with_clock()
        append(log, 5)
        log.note_commit(3)
        await store.writer.drain()
        log.note_commit(6)
        await store.close()
        files.power_cut()
        mark = load_marks(files).marks[GROUP]
        assert (mark.index, mark.commit) == (6, 6)

    run(body())


def test_marks_continue_in_a_new_file_when_one_is_full() -> None:
    async def body() -> None:
        files, clock, store, log = await with_clock()
        made = sum(t.startswith("rename marks.new") for t in files.trace)
        for _ in range(10_000):
            append(log, 1, size=1)
            await store.writer.drain()
            clock.advance(0.02)
        assert sum(t.startswith("rename marks.new") for t in files.trace) > made
        files.power_cut()
        assert load_marks(files).marks[GROUP].index >= 10_000

    run(body())


def test_the_reason_for_a_raised_count_is_stored_beside_the_flags() -> None:
    """Where earlier versions have flags that they do not know, so they read everything else as before."""
    for mark in (
        DurabilityMark(GROUP, 0),
        DurabilityMark(GROUP, 7, LAZY, 5, 1, 9, fault_count=3),
        DurabilityMark(GROUP, 7, DAMAGED, fault_count=7),
        DurabilityMark(GROUP, 7, LAZY, fault_count=None),
    ):
        packed = pack_mark(mark)
        assert list(unpack_marks(packed)) == [mark]
        assert packed[24] & 127 == mark.flags
    without = bytearray(pack_mark(DurabilityMark(GROUP, 7, LAZY)))
    without[24:28] = LAZY.to_bytes(4, "little")
    assert list(unpack_marks(bytes(without))) == [DurabilityMark(GROUP, 7, LAZY, fault_count=None)]


def test_the_number_of_counted_risks_saturates() -> None:
    (mark,) = unpack_marks(pack_mark(DurabilityMark(GROUP, 1 << 30)))
    assert mark.fault_count == (1 << 30) - (1 << 24) + 1


@pytest.mark.parametrize(("config", "faults"), [(DISK, 4), (replace(DISK, sync_interval_s=1.0), 0)])
def test_for_an_earlier_version_the_setting_at_the_first_opening_decides(config: LogConfig, faults: int) -> None:
    """As that version would have decided. From then on it is known."""

    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        await store.close()
        number = load_marks(files).number
        old = replace(load_marks(files).marks[GROUP], count=4, fault_count=None)
        DurabilityMarks(files, LoadedMarks({GROUP: old}, number, complete=True)).close()
        store = await open_store(files)
        assert (await store.open_log(GROUP, first_entry(), config)).log.fault_count == faults
        await store.close()
        for again in (DISK, replace(DISK, sync_interval_s=1.0)):
            store = await open_store(files)
            opened = await store.open_log(GROUP, first_entry(), again)
            assert (opened.log.count, opened.log.fault_count) == (4, faults)
            await store.close()

    run(body())


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        ("power", (1, 0)),
        ("folder", (1, 1)),
        ("votes", (1, 1)),
        ("tail", (1, 1)),
        ("power and folder", (2, 2)),
        ("repair", (1, 0)),
    ],
)
def test_the_cause_of_a_raised_count(how: str, counts: tuple[int, int]) -> None:
    """(count, count at the last fault), for all that raises a count."""

    async def body() -> None:
        files = faulty()
        lazy = replace(DISK, sync_interval_s=60.0)
        store = await open_store(files)
        log = (await store.open_log(GROUP, first_entry(), lazy)).log
        append(log, 3)
        await store.writer.drain()
        append(log, 3)
        await until(lambda: log.durable_index == log.last_index)
        if how == "repair":
            await store.quarantine(GROUP)
        if how == "tail":
            await store.close()
        else:
            await store.abandon()
        files.power_cut() if how.startswith("power") else files.kill()
        if "folder" in how:
            files.remove_tree(group_directory(GROUP))
            files.sync_directory(GROUPS)
        if how == "votes":
            files.remove("ballots-a")
            files.remove("ballots-b")
        if how == "tail":
            segment = in_group(group_directory(GROUP), 1, SEGMENT)
            files.flip_bit(segment, load_marks(files).marks[GROUP].position + 70)
        store = await open_store(files)
        opened = await store.open_log(GROUP, first_entry(), lazy)
        assert (opened.count, opened.log.fault_count) == counts
        mark = load_marks(files).marks[GROUP]
        assert (mark.count, mark.fault_count) == counts
        await store.close()

    run(body())
