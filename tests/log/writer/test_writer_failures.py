"""Failed syncs, full disks and deleted logs: which logs stop, which continue, and what the disk has then."""

from __future__ import annotations

import asyncio

import pytest

from tests.log.gate import GateRunner, Reports, until
from tests.log.values import GROUP, OTHER, append, everything, faulty, first_entry, open_both, open_store, run
from tinymq.base.errors import Closed, DiskFull, StorageError, SyncFailed, TinymqError
from tinymq.base.types import GroupId
from tinymq.log.broker_files.durability_marks import load_marks
from tinymq.net import descriptors


def test_a_failed_sync_ends_every_log_that_took_part_and_is_never_repeated() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        log = opened.log
        other = (await store.open_log(OTHER, first_entry())).log
        reports = Reports(log, other)
        append(log, 2)
        await store.writer.drain()
        files.fail_sync("*/3/*.log")
        append(log, 2)
        append(other, 2)
        await store.writer.drain()
        assert [failed for failed, _ in reports.failed] == [log, other]
        assert all(isinstance(e, SyncFailed) for _, e in reports.failed)
        assert (log.durable_index, other.durable_index) == (3, 1)
        for failed in (log, other):
            with pytest.raises(SyncFailed):
                append(failed, 1)
            with pytest.raises(SyncFailed):
                failed.truncate_from(2)
        assert store.writer.failed is None
        store.votes.set(GROUP, 5, 1)
        await store.writer.drain()
        assert store.votes.durable(GROUP), "the hard state is unchanged"
        assert len(reports.failed) == 2
        await store.close()
        files.power_cut()
        store, opened = await open_both(files)
        assert opened.damage is None
        assert opened.log.last_index >= 3
        await store.close()

    run(body())


def test_entries_left_in_the_page_cache_by_a_failed_sync_are_written_again_at_opening() -> None:
    """The kernel marks the failed pages clean: reads return them, but they are not on the disk."""

    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        files.fail_sync("*.log")
        append(opened.log, 5)
        await store.writer.drain()
        assert opened.log.failed is not None
        await store.abandon()
        files.kill()
        store, opened = await open_both(files)
        assert opened.log.durable_index == 6
        await store.abandon()
        files.power_cut()
        store, opened = await open_both(files)
        assert opened.log.last_index == 6
        await store.close()

    run(body())


def test_an_applied_state_left_in_the_page_cache_is_written_again_before_it_counts() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        append(opened.log, 40)
        await store.writer.drain()
        end = opened.log.segments.bounds()[1][1]
        opened.log.note_applied(end)
        files.fail_sync("*.state")
        opened.log.save_snapshot(end, b"only in memory")
        await store.writer.drain()
        await store.abandon()
        files.kill()
        store, opened = await open_both(files)
        assert (opened.applied_index, opened.snapshot) == (end, b"only in memory")
        opened.log.remove_before(end + 1)
        assert opened.log.first_index == end + 1
        await store.close()
        files.power_cut()
        store, opened = await open_both(files)
        assert (opened.damage, opened.snapshot) == (None, b"only in memory")
        await store.close()

    run(body())


def test_hard_state_left_in_the_page_cache_is_written_again_before_it_counts() -> None:
    async def body() -> None:
        files = faulty()
        store, _ = await open_both(files)
        files.fail_sync("ballots-a")
        files.fail_sync("ballots-b")
        store.votes.set(GROUP, 7, 2)
        await store.writer.drain()
        assert not store.votes.durable(GROUP)
        await store.abandon()
        files.kill()
        store, _ = await open_both(files)
        assert store.votes.get(GROUP) == (7, 2)
        await store.abandon()
        files.power_cut()
        store, _ = await open_both(files)
        assert store.votes.get(GROUP) == (7, 2)
        await store.close()

    run(body())


@pytest.mark.parametrize("path", ["ballots-a", "ballots-b", "marks"])
def test_a_failed_sync_of_the_hard_state_or_marks_stops_the_broker(path: str) -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        heard: list[TinymqError] = []
        store.writer.on_failed = heard.append
        reports = Reports(opened.log)
        append(opened.log, 1)
        await store.writer.drain()
        files.fail_sync(path)
        store.votes.set(GROUP, 3, 2)
        append(opened.log, 1)
        await store.writer.drain()
        assert [type(e) for e in heard] == [SyncFailed]
        assert not store.votes.durable(GROUP)
        assert opened.log.durable_index == 2
        assert len(reports.failed) == 1
        store.votes.set(GROUP, 4, 2)
        await store.writer.drain()
        assert not store.votes.durable(GROUP)
        await store.close()

    run(body())


@pytest.mark.parametrize("path", ["ballots-a.new", "ballots-b.new"])
def test_hard_state_that_cannot_continue_in_a_new_file_is_not_durable(path: str) -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        heard: list[TinymqError] = []
        store.writer.on_failed = heard.append
        files.fail_sync(path)
        for term in range(1, 6000):
            store.votes.set(GROUP, term, None)
            await store.writer.drain()
            if heard:
                break
        assert not store.votes.durable(GROUP)
        append(opened.log, 1)
        await store.writer.drain()
        assert opened.log.failed is not None
        await store.abandon()
        files.power_cut()
        store, _ = await open_both(files)
        assert store.votes.get(GROUP)[0] >= term - 1
        await store.close()

    run(body())


def test_more_logs_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "OPEN_FILES_MAX", 4)

    async def body() -> None:
        files = faulty()
        store = await open_store(files)
        groups = [GroupId(GROUP.topic_id, i) for i in range(11)]
        logs = [(await store.open_log(group, first_entry())).log for group in groups]
        expected = {}
        for count in (3, 20):
            for log in logs:
                append(log, count)
            await store.writer.drain()
            assert all(log.durable_index == log.last_index for log in logs)
        expected = {log.group: await everything(log) for log in logs}
        files.fail_sync("*/2/*.log")
        for log in logs:
            append(log, 1)
        await store.writer.drain()
        assert all(isinstance(log.failed, SyncFailed) for log in logs)
        await store.abandon()
        files.power_cut()
        store = await open_store(files)
        for group in groups:
            found = await everything((await store.open_log(group, first_entry())).log)
            assert found[: len(expected[group])] == expected[group]
        await store.close()

    run(body())


def test_a_full_disk_stops_only_its_log_and_loses_nothing() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        log = opened.log
        other = (await store.open_log(OTHER, first_entry())).log
        append(log, 3)
        await store.writer.drain()
        reports = Reports(log, other)
        files.disk_full(700)
        append(other, 1)
        append(log, 8, size=200)
        await store.writer.drain()
        assert [(failed, type(e)) for failed, e in reports.failed] == [(log, DiskFull)]
        assert (log.durable_index, other.durable_index) == (4, 2)
        await store.close()
        files.disk_full(None)
        store, opened = await open_both(files)
        assert opened.damage is None
        assert 4 <= opened.log.last_index < 12
        append(opened.log, 8, size=200)
        await store.writer.drain()
        await store.close()

    run(body())


def test_a_log_writes_no_entry_that_arrived_during_its_failed_sync() -> None:
    async def body() -> None:
        files = faulty()
        runner = GateRunner()
        store = await open_store(files, runner=runner)
        log = (await store.open_log(GROUP, first_entry())).log
        runner.close()
        files.fail_sync("*.log")
        append(log, 2)
        await until(lambda: runner.waiting)
        append(log, 2)
        runner.let_go()
        await store.writer.drain()
        assert (log.durable_index, type(log.failed)) == (1, SyncFailed)
        await store.close()
        assert load_marks(files).marks[GROUP].index == 1

    run(body())


def test_a_caller_that_waits_for_the_writer_may_be_cancelled() -> None:
    async def body() -> None:
        runner = GateRunner()
        store = await open_store(faulty(), runner=runner)
        runner.close()
        opening = asyncio.ensure_future(store.writer.run_exclusive(lambda: 1))
        await until(lambda: runner.waiting)
        opening.cancel()
        runner.let_go()
        await store.writer.drain()
        assert await store.writer.run_exclusive(lambda: 2) == 2
        with pytest.raises(ZeroDivisionError):
            await store.writer.run_exclusive(lambda: 1 // 0)
        await store.close()

    run(body())


def test_a_log_deleted_during_a_sync_batch_gets_no_callback() -> None:
    async def body() -> None:
        runner = GateRunner()
        store = await open_store(faulty(), runner=runner)
        log = (await store.open_log(GROUP, first_entry())).log
        reports = Reports(log)
        log.on_durable = lambda: reports.failed.append((log, Closed()))
        runner.close()
        append(log, 40)
        log.note_applied(20)
        log.save_snapshot(log.segments.bounds()[0][1], b"state")
        await until(lambda: runner.waiting)
        append(log, 5)
        deleting = asyncio.ensure_future(store.delete_log(GROUP))
        await asyncio.sleep(0)
        runner.let_go()
        await deleting
        await store.writer.drain()
        assert reports.failed == []
        assert store.writer.failed is None
        with pytest.raises(Closed):
            append(log, 1)
        await store.close()

    run(body())


def test_a_broken_invariant_in_the_writer_stops_all_logs_and_is_reported() -> None:
    async def body() -> None:
        files = faulty()
        store, opened = await open_both(files)
        heard: list[TinymqError] = []
        store.writer.on_failed = heard.append
        reports = Reports(opened.log)

        def broken(*_: object) -> None:
            raise AssertionError("broken")

        files.sync = broken  # type: ignore[method-assign, assignment]
        append(opened.log, 1)
        with pytest.raises(AssertionError):
            await store.writer.drain()
        assert [type(e) for e in heard] == [StorageError]
        assert len(reports.failed) == 1

    run(body())
