"""When a segment is full, by size or by age, and which segments a trim below an offset removes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.log.opened import settle
from tests.log.values import GROUP, LIMITS, append, everything, faulty, first_entry, open_store, run
from tinymq.base.config import Limits
from tinymq.base.topic_config import Storage, TopicConfig
from tinymq.log import DISK, LogConfig, Store, log_config
from tinymq.log.replica_log.log import Log
from tinymq.log.segment import segment

HOURLY = replace(DISK, segment_us=3600)  # an hour of a clock that counts seconds


def firsts(log: Log) -> list[int]:
    return [first for first, *_ in log.segments.bounds()]


async def opened(store: Store, config: LogConfig = HOURLY) -> Log:
    return (await store.open_log(GROUP, first_entry(), config)).log


def test_an_entry_that_arrives_too_late_starts_a_segment() -> None:
    async def body() -> None:
        store = await open_store(faulty(), limits=Limits())
        log = await opened(store)  # its first entry is of second 1
        append(log, 2, time_us=3600)
        assert firsts(log) == [1]
        append(log, 1, time_us=3601)
        append(log, 1, time_us=3601)
        assert firsts(log) == [1, 4]
        append(log, 1, time_us=9000)
        assert firsts(log) == [1, 4, 6]
        await store.close()

    run(body())


@pytest.mark.parametrize("applied_first", [True, False])
def test_the_state_at_the_end_of_a_late_segment_is_stored(applied_first: bool) -> None:
    async def body() -> None:
        files = faulty()
        store = await open_store(files, limits=Limits())
        log = await opened(store)
        append(log, 2, time_us=5)
        if applied_first:
            assert not log.wants_snapshot(3)
        append(log, 2, time_us=5000)
        assert log.wants_snapshot(3)
        log.save_snapshot(3, b"state at 3")
        assert not log.wants_snapshot(3)
        await store.writer.drain()
        assert not log.wants_snapshot(3)
        log.remove_before_offset(2)
        assert log.first_index == 4
        await store.close()
        again = await open_store(files, limits=Limits())
        reopened = await again.open_log(GROUP, first_entry(), HOURLY)
        assert (reopened.applied_index, reopened.snapshot) == (3, b"state at 3")
        assert [e.index for e in await everything(reopened.log)] == [4, 5]
        await again.close()

    run(body())


def test_a_reopened_log_continues_with_its_segments_age() -> None:
    async def body() -> None:
        files = faulty()
        store = await open_store(files, limits=Limits())
        append(await opened(store), 2, time_us=100)
        await store.close()
        store = await open_store(files, limits=Limits())
        log = await opened(store)
        append(log, 1, time_us=3600)
        assert firsts(log) == [1]
        append(log, 1, time_us=3601)
        assert firsts(log) == [1, 5]
        log.truncate_from(5)  # the removed segment was the young one
        append(log, 1, time_us=3599, term=2)
        assert firsts(log) == [1, 5]
        await store.close()

    run(body())


def test_an_open_log_accepts_new_bounds() -> None:
    async def body() -> None:
        store = await open_store(faulty(), limits=Limits())
        log = await opened(store, DISK)
        append(log, 20)
        assert firsts(log) == [1]
        store.configure(GROUP, replace(DISK, segment_bytes=500))
        append(log, 5)
        assert len(firsts(log)) == 3
        store.configure(GROUP, DISK)
        append(log, 20)
        assert len(firsts(log)) == 3 + (log.segments.bounds()[2][1] < log.last_index)
        await store.close()

    run(body())


def test_the_number_of_entries_in_a_segment_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ENTRIES_MAX", 8)

    async def body() -> None:
        files = faulty()
        store = await open_store(files, limits=Limits())
        log = await opened(store, DISK)
        append(log, 6)
        assert firsts(log) == [1]
        append(log, 14)
        assert firsts(log) == [1, 9, 17]
        await store.close()

        monkeypatch.setattr(segment, "ENTRIES_MAX", 4)  # it was written under a larger limit
        store = await open_store(files, limits=Limits())
        log = await opened(store, DISK)
        assert firsts(log) == [1, 9, 17]
        append(log, 5)
        assert firsts(log) == [1, 9, 17, 22, 26]
        await store.close()

    run(body())


def test_no_topic_has_larger_segments_than_its_broker_allows() -> None:
    async def body() -> None:
        store = await open_store(faulty(), limits=LIMITS)
        log = await opened(store, DISK)
        append(log, 40)
        assert all(size < LIMITS.segment_bytes + 200 for _, _, size, _ in log.segments.bounds())
        assert len(firsts(log)) > 2
        await store.close()

    run(body())


def test_removing_below_an_offset_keeps_every_record_from_there_on() -> None:
    async def body() -> None:
        store = await open_store(faulty())
        log = await opened(store, DISK)
        append(log, 60)
        await settle(store, log)
        starts = [log.log_start_offset]
        for offset in range(log.next_offset + 2):
            log.remove_before_offset(offset)
            assert log.log_start_offset <= offset
            if log.log_start_offset != starts[-1]:
                starts.append(log.log_start_offset)
                assert log.log_start_offset == offset, "a segment goes with its last record, not later"
        assert len(starts) > 3
        assert len(log.segments.bounds()) == 1
        await store.close()

    run(body())


@pytest.mark.parametrize(
    ("config", "segment_bytes", "segment_ms"),
    [
        (TopicConfig(retention_ms=None), 128 << 20, 7 * 86_400_000),
        (TopicConfig(segment_bytes=100_000, segment_ms=5000), 100_000, 5000),
        (TopicConfig(retention_ms=60_000), 128 << 20, 60_000),
        (TopicConfig(retention_bytes=8 << 20), 1 << 20, 7 * 86_400_000),
        (TopicConfig(max_bytes=80 << 20, retention_bytes=800 << 20), 10 << 20, 7 * 86_400_000),
        (TopicConfig(max_bytes=1000), 64 * 1024, 7 * 86_400_000),
    ],
)
def test_segments_are_small_enough_for_the_bounds_of_the_topic(
    config: TopicConfig, segment_bytes: int, segment_ms: int
) -> None:
    assert log_config(config, Limits()) == LogConfig(Storage.DISK, 0.0, segment_bytes, segment_ms * 1000)


def test_a_topics_storage_and_sync_are_its_logs() -> None:
    kept = log_config(TopicConfig(storage=Storage.MEMORY, max_bytes=1 << 20), Limits())
    assert kept.storage is Storage.MEMORY
    assert log_config(TopicConfig(sync_interval_ms=250), Limits()).sync_interval_s == 0.25
