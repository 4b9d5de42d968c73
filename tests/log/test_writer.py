"""The writer job: rounds, and what happens on the loop while one runs."""

from __future__ import annotations

import asyncio

from tests.log.gate import GateRunner, until
from tests.log.values import GROUP, OTHER, append, everything, faulty, first_entry, open_both, open_store, run


def test_all_that_is_appended_while_a_sync_runs_goes_into_the_next_one() -> None:
    async def body() -> None:
        files = faulty()
        runner = GateRunner()
        store = await open_store(files, runner=runner)
        log = (await store.open_log(GROUP, first_entry())).log
        other = (await store.open_log(OTHER, first_entry())).log
        runner.close()
        append(log, 1)
        await until(lambda: runner.waiting)
        for _ in range(20):
            append(log, 1)
            append(other, 1)
            store.ballots.set(GROUP, log.last_index, 1)
        syncs = sum(t.startswith("sync ") for t in files.trace)
        runner.let_go()
        await store.writer.drain()
        assert (log.durable_index, other.durable_index) == (22, 21)
        assert store.ballots.durable(GROUP)
        assert sum(t.startswith("sync ") and "folder" not in t for t in files.trace) <= syncs + 2
        await store.close()

    run(body())


def test_a_sync_that_ends_after_a_truncation_makes_no_new_entry_durable() -> None:
    async def body() -> None:
        files = faulty()
        runner = GateRunner()
        store = await open_store(files, runner=runner)
        log = (await store.open_log(GROUP, first_entry())).log
        append(log, 5)
        await store.writer.drain()
        heard: list[int] = []
        log.on_durable = lambda: heard.append(log.durable_index)
        runner.close()
        append(log, 5)  # 7 … 11
        await until(lambda: runner.waiting)
        log.truncate_from(9)
        append(log, 6, term=3)  # 9 … 14: in the next round
        assert log.durable_index == 6
        runner.let_go()
        await until(lambda: heard)
        assert heard[0] == 8
        await store.writer.drain()
        assert (log.durable_index, heard) == (14, [8, 14])
        expected = await everything(log)
        await store.abandon()
        files.power_cut()
        store, opened = await open_both(files)
        assert await everything(opened.log) == expected
        await store.close()

    run(body())


def test_a_truncation_below_what_a_running_sync_covers_may_leave_nothing_durable() -> None:
    async def body() -> None:
        runner = GateRunner()
        store = await open_store(faulty(), runner=runner)
        log = (await store.open_log(GROUP, first_entry())).log
        append(log, 3)
        await store.writer.drain()
        runner.close()
        append(log, 3)
        await until(lambda: runner.waiting)
        log.truncate_from(3)
        assert log.durable_index == 2
        runner.let_go()
        await store.writer.drain()
        assert (log.durable_index, log.last_index) == (2, 2)
        await store.close()

    run(body())


def test_a_cold_read_of_what_is_truncated_meanwhile_is_no_damage() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        append(opened.log, 9, size=30)
        await store.close()
        runner = GateRunner()
        store = await open_store(files, runner=runner)
        log = (await store.open_log(GROUP, first_entry())).log
        runner.close()
        reading = asyncio.ensure_future(log.read(5, 1000))
        await until(lambda: runner.waiting)
        log.truncate_from(6)
        added = append(log, 2, size=700, term=9)
        runner.let_go()
        await store.writer.drain()
        assert (await reading)[0].index == 5
        assert (await everything(log))[5:] == added
        await store.close()

    run(body())
