"""What an engine promises (tinymq/log/engine/storage_engine.py), for logs on the disk and in memory alike.

They differ in one capability, `outlives`: whether logs survive the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.log.gate import until
from tests.log.opened import settle
from tests.log.values import GROUP, LIMITS, OTHER, append, everything, faulty, first_entry, open_store, run
from tinymq.base.errors import Closed, CorruptData, QuotaExceeded
from tinymq.base.topic_config import Storage
from tinymq.format.entry import Kind
from tinymq.log import DISK, Log, LogConfig, OpenedLog, Store
from tinymq.log.engine.memory_engine import FULL_RETRY_MS
from tinymq.log.files.layout import MARKS, group_directory
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.simulation.faulty_files import Crash, FaultyFiles

MEMORY = LogConfig(storage=Storage.MEMORY)
OUTLIVES = {DISK: True, MEMORY: False}


@pytest.fixture(params=[DISK, MEMORY], ids=["disk", "memory"])
def config(request: pytest.FixtureRequest) -> LogConfig:
    kept: LogConfig = request.param
    return kept


async def opened(store: Store, config: LogConfig, group: object = GROUP) -> OpenedLog:
    return await store.open_log(group, first_entry(), config)  # type: ignore[arg-type]


async def durable(log: Log) -> None:
    await until(lambda: log.durable_index == log.last_index)


async def trimmed(store: Store, log: Log) -> None:
    """Apply everything, and remove the segments that may be removed."""
    await settle(store, log)
    await until(lambda: log.segments.bounds()[-2][1] in log.snapshots.durable)
    log.remove_before_offset(log.next_offset)
    assert len(log.segments.bounds()) == 1


def with_store(body: Callable[[Store], Awaitable[None]], files: FaultyFiles | None = None) -> None:
    async def whole() -> None:
        store = await open_store(files or faulty())
        await body(store)
        await store.close()

    run(whole())


def test_appends_become_durable_after_a_while_and_never_at_once(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        log = (await opened(store, config)).log
        heard: list[int] = []
        log.on_durable = lambda: heard.append(log.durable_index)
        entries = append(log, 7)
        assert (log.durable_index, heard) == (1, [])
        await durable(log)
        assert heard == [8]
        assert (await everything(log))[1:] == entries
        assert await log.reader.read_from_offset(3, 5, 1 << 20) == b"".join(e.head + e.payload for e in entries[3:5])

    with_store(body)


def test_a_truncation_removes_the_tail_and_keeps_the_rest(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        log = (await opened(store, config)).log
        kept = append(log, 60)[:20]
        await durable(log)
        log.truncate_from(22)
        entries = append(log, 30, term=2)
        await durable(log)
        assert (await everything(log))[1:] == [*kept, *entries]
        await store.close_log(GROUP)
        again = await opened(store, config)
        assert (await everything(again.log))[1:] == [*kept, *entries]

    with_store(body)


def test_a_reopened_log_keeps_its_identity(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        first = await opened(store, config)
        entries = append(first.log, 30)
        await durable(first.log)
        await settle(store, first.log)
        await until(lambda: first.log.segments.bounds()[-2][1] in first.log.snapshots.durable)
        await store.close_log(GROUP)
        with pytest.raises(Closed):
            append(first.log, 1)
        again = await opened(store, config)
        assert (again.count, again.damage, again.log.durable_index) == (first.count, None, 31)
        assert (again.applied_index, again.snapshot) == (
            max(again.log.snapshots.durable),
            b"state at %d" % again.applied_index,
        )
        assert (await everything(again.log))[1:] == entries

    with_store(body)


def test_removed_segments_free_their_space(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        log = (await opened(store, config)).log
        append(log, 100)
        await durable(log)
        full = store.memory_bytes
        assert (full > 100 * 100) is (config is MEMORY)
        await trimmed(store, log)
        append(log, 1)
        await durable(log)
        if config is MEMORY:
            assert store.memory_bytes < full / 8
        assert (await everything(log))[-1].index == 102
        await store.delete_log(GROUP)
        assert store.memory_bytes == 0

    with_store(body)


def test_a_snapshot_replaces_a_log(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        log = (await opened(store, config)).log
        append(log, 20)
        await durable(log)
        applied = Snapshot(
            index=500,
            entry_term=3,
            entry_crc=12345,
            next_offset=900,
            append_time_us=77_000,
            data=b"the state",
            data_crc=0,
        )
        installed = await store.install(GROUP, applied)
        with pytest.raises(Closed):
            append(log, 1)
        assert (installed.applied_index, installed.snapshot, installed.count) == (500, b"the state", 0)
        new = installed.log
        assert (new.first_index, new.last_index, new.durable_index, new.next_offset) == (501, 500, 500, 900)
        entries = append(new, 30, term=3, time_us=80_000)
        await durable(new)
        await store.close_log(GROUP)
        again = await opened(store, config)
        assert (again.log.first_index, again.snapshot) == (501, b"the state")
        assert await everything(again.log) == entries

    with_store(body)


def test_another_count_keeps_what_the_log_holds(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        first = await opened(store, config)
        entries = append(first.log, 5)
        await store.raise_count(GROUP, 7)
        again = await opened(store, config)
        assert (again.count, again.log.count) == (7, 7)
        assert (await everything(again.log))[1:] == entries

    with_store(body)


def test_a_quarantined_log_does_not_count(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        first = await opened(store, config)
        append(first.log, 5)
        await durable(first.log)
        store.votes.set(GROUP, 4, 2)
        await store.mark_damaged(first.log, CorruptData("a read found the damage"))
        assert first.log.failed is not None
        await store.quarantine(GROUP)
        assert store.votes.get(GROUP) == (0, None)
        again = await opened(store, config)
        assert again.count > first.count
        assert (again.damage, again.log.last_index) == (None, 1)
        assert await store.remove_quarantined(GROUP, 1 << 60)
        assert not store.has_quarantined(GROUP)

    with_store(body)


def test_damage_found_by_a_read_is_remembered(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        first = await opened(store, config)
        append(first.log, 5)
        await durable(first.log)
        await store.mark_damaged(first.log, CorruptData("a read found the damage"))
        await store.close_log(GROUP)
        again = await opened(store, config)
        assert again.damage is not None
        assert isinstance(again.log.failed, CorruptData)

    with_store(body)


def test_a_deleted_group_leaves_nothing(config: LogConfig) -> None:
    async def body(store: Store) -> None:
        append((await opened(store, config)).log, 5)
        store.votes.set(GROUP, 4, 2)
        await store.delete_log(GROUP)
        assert store.groups_ever_opened == store.list_groups() == []
        assert store.votes.get(GROUP) == (0, None)
        again = await opened(store, config)
        assert (again.count, again.log.last_index) == (0, 1)

    with_store(body)


@pytest.mark.parametrize("end", ["close", "abandon", "power cut"])
def test_the_end_of_the_process(config: LogConfig, end: str) -> None:
    """The one capability in which engines differ."""

    async def body() -> None:
        files, counts, ends = faulty(), [], []
        for _ in range(3):
            store = await open_store(files)
            assert store.list_groups() == ([GROUP] if counts else [])
            opening = await opened(store, config)
            counts.append(opening.count)
            ends.append(opening.log.last_index)
            append(opening.log, 3)
            await durable(opening.log)
            store.votes.set(GROUP, len(counts), 1)
            await store.writer.drain()
            await (store.close() if end == "close" else store.abandon())
            files.power_cut() if end == "power cut" else files.kill()
        if OUTLIVES[config]:
            assert (counts, ends) == ([0, 0, 0], [1, 4, 7])
        else:
            assert (counts, ends) == ([0, 1, 2], [1, 1, 1])
        again = await open_store(files)
        assert again.votes.get(GROUP) == (3, 1), "votes are on the disk with either engine"
        await again.close()

    run(body())


def test_a_count_is_never_reused_wherever_the_machine_stops() -> None:
    """In memory: otherwise the acknowledgements of one log would count for another."""
    for crash_at in count():
        acknowledged: list[int] = []

        async def body(crash_at: int, acknowledged: list[int]) -> bool:
            files, whole = faulty(crash_at), True
            for life in range(4):
                if life == 1:
                    files.crash_after(crash_at)
                store = None
                try:
                    store = await open_store(files)
                    log = (await opened(store, MEMORY)).log
                    assert log.count not in acknowledged
                    append(log, 1)
                    await durable(log)
                    acknowledged.append(log.count)
                    await store.close()
                except Crash:
                    whole = False
                files.power_cut()
            return whole

        if run(body(crash_at, acknowledged)):
            break
    assert crash_at > 10
    assert acknowledged == [0, 1, 2, 3]


def test_counts_of_logs_in_memory_survive_the_loss_of_the_marks() -> None:
    async def body() -> None:
        files = faulty()
        for expected in (0, 1, 2):
            store = await open_store(files)
            assert (await opened(store, MEMORY)).count == expected
            await store.close()
        files.remove(MARKS)
        files.sync_directory("")
        store = await open_store(files)
        assert (await opened(store, MEMORY)).count == 3
        await store.close()
        assert len(files.list(group_directory(GROUP))) == 1

    run(body())


def test_a_full_memory_refuses_only_records_and_a_trim_frees_space() -> None:
    async def body() -> None:
        limits = replace(LIMITS, memory_storage_bytes_max=20_000)
        store = await open_store(faulty(), limits=limits)
        full, beside = [(await opened(store, MEMORY, group)).log for group in (GROUP, OTHER)]

        def fill() -> None:
            for _ in range(100):
                full.check_quota(1000)
                append(full, 1, 936)

        with pytest.raises(QuotaExceeded) as raised:
            fill()
        assert raised.value.detail["retry_after_ms"] == str(FULL_RETRY_MS)
        assert 10 < full.next_offset <= 20, "also the appends of one turn of the loop"
        await durable(full)
        with pytest.raises(QuotaExceeded):
            beside.check_quota(1000)
        append(full, 1, kind=Kind.COMMAND)
        await trimmed(store, full)
        await until(lambda: store.memory_bytes < 15_000)
        beside.check_quota(1000)
        assert store.memory_bytes <= limits.memory_storage_bytes_max
        await store.close()

    run(body())


def test_logs_on_the_disk_have_no_such_bound() -> None:
    async def body(store: Store) -> None:
        (await opened(store, DISK)).log.check_quota(1 << 60)

    with_store(body)
