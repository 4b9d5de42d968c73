"""When marks are written and made durable."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.fakes.manual_clock import ManualClock
from tests.log.values import GROUP, LIMITS, append, faulty, first_entry, run
from tinymq.log import InlineRunner, Log, Store
from tinymq.log.marks import load_marks


async def with_clock() -> tuple[Any, ManualClock, Store, Log]:
    files, clock = faulty(), ManualClock()
    store = await Store.open(
        files, InlineRunner(), clock, broker_id=1, limits=replace(LIMITS, segment_bytes=1 << 20), rng=random.Random(1)
    )
    return files, clock, store, (await store.open_log(GROUP, first_entry())).log


def test_marks_go_along_with_a_sync_now_and_then() -> None:
    async def body() -> None:
        files, clock, store, log = await with_clock()
        for _ in range(10):
            append(log, 1)
            await store.writer.drain()
            clock.advance(0.004)
        syncs = [t for t in files.trace if t.startswith("sync ") and ".log" in t][1:]
        assert ["marks" in t for t in syncs] == [False] + [False, False, True] * 3

    run(body())


def test_marks_lag_a_round_and_are_synced_after_idling() -> None:
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


def test_a_commit_index_that_came_last_is_marked_after_idling_and_then_all_is_quiet() -> None:
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


def test_marks_go_on_in_a_new_file_when_one_is_full() -> None:
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
