"""A commit index that must reach the disk soon: when it is durable, and what a crash leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.log.gate import until
from tests.log.values import OTHER, append
from tests.log.writer.test_interval_sync import EVERY_SECOND, Place, placed
from tinymq.base.errors import DiskFull, SyncFailed
from tinymq.base.topic_config import Storage
from tinymq.log import DISK, Log, LogConfig
from tinymq.log.broker_files.durability_marks import DurabilityMark, DurabilityMarks
from tinymq.log.files.layout import MARKS
from tinymq.log.replica_log.commit_progress import CommitProgress


async def filled(place: Place, config: LogConfig = DISK) -> Log:
    """A log of entries up to 6. Entry 5 is known to be committed, but no mark has stored that yet."""
    log = await place.log(config)
    append(log, 5)
    await place.written(log)
    log.note_commit(5)
    return log


def known(place: Place, log: Log) -> int:
    """Return the commit index in the file."""
    mark = place.store._marks.get(log.group)
    assert mark is not None
    return mark.commit


async def again(place: Place, config: LogConfig = DISK) -> int:
    """Return the commit index that the log knows when it opens after a power cut."""
    await place.store.abandon()
    place.files.power_cut()
    await place.start()
    return (await place.log(config)).recovered_commit


@pytest.mark.parametrize("config", [DISK, EVERY_SECOND, replace(DISK, storage=Storage.MEMORY)])
def test_a_commit_stays_urgent_until_it_is_stored(config: LogConfig) -> None:
    async def body(place: Place) -> None:
        log = await filled(place, config)
        heard: list[int] = []
        log.sync_commit(6)
        log.on_durable = lambda: heard.append(log.commit.durable)
        await place.store.writer.drain()
        assert (log.commit.durable, log.commit.urgent) == (0, False), "it is not known that 6 is committed"
        log.note_commit(6)
        assert log.commit.urgent
        await until(lambda: log.commit.durable == 6)
        assert heard[-1] == 6
        assert not log.commit.urgent
        await place.store.close()

    placed(body)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("config", [DISK, EVERY_SECOND])
def test_a_stored_commit_survives_a_power_cut(config: LogConfig, seed: int) -> None:
    """Also for a log that is due for a sync a second later."""

    async def body(place: Place) -> None:
        log = await filled(place, config)
        log.sync_commit(5)
        await until(lambda: log.commit.durable == 5)
        assert await again(place, config) == 5

    placed(body, seed)


def test_busy_logs_do_not_delay_an_urgent_commit() -> None:
    """The clock stands still, so marks that wait for an idle moment are not written."""

    async def body(place: Place) -> None:
        log = await filled(place)
        other = await place.log(DISK, OTHER)
        append(other, 1)
        await place.store.writer.drain()
        assert known(place, log) == 0, "otherwise the test proves nothing"
        log.sync_commit(5)
        append(other, 1)
        await place.store.writer.drain()
        assert (known(place, log), log.commit.durable) == (5, 5)

    placed(body)


def test_the_stored_commit_never_exceeds_the_durable_index() -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        append(log, 3)
        log.note_commit(9)  # a leader announces the commit of entries that are not synced here
        log.sync_commit(9)
        works = place.store.writer._batches
        works.marks.note_commits({log.group: 9})
        works.marks.flush()
        assert known(place, log) == 6
        await until(lambda: log.commit.durable == 9)

    placed(body)


def test_a_failed_sync_stores_nothing_and_stops_the_broker() -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        place.files.fail_sync(MARKS)
        log.sync_commit(5)
        await place.store.writer.drain()
        assert isinstance(place.store.writer.failed, SyncFailed)
        assert log.commit.durable == 0
        await place.store.abandon()

    placed(body)


def test_without_space_for_marks_the_write_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        write, tries = DurabilityMarks.write, 0

        def refuse(self: DurabilityMarks, changed: list[DurabilityMark]) -> None:
            nonlocal tries
            tries += 1
            raise DiskFull("no room for marks")

        monkeypatch.setattr(DurabilityMarks, "write", refuse)
        log.sync_commit(5)
        await place.store.writer.drain()
        assert (tries, log.commit.durable) == (1, 0), "and not without a pause"
        for _ in range(4):
            place.clock.advance(0.1)
            await place.store.writer.drain()
        assert 3 <= tries <= 5, "after each pause"
        assert log.failed is None
        monkeypatch.setattr(DurabilityMarks, "write", write)
        place.clock.advance(0.1)
        await until(lambda: log.commit.durable == 5)
        await place.store.close()

    placed(body)


def test_a_closed_log_has_no_urgent_commit() -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        log.sync_commit(5)
        await place.store.close_log(log.group)
        assert not place.store.writer._urgent_commits
        await place.store.close()

    placed(body)


def test_the_known_commit_only_rises() -> None:
    commit = CommitProgress(4)
    assert [commit.advance(3), commit.advance(6), commit.advance(6)] == [False, True, False]
    commit.require(5)
    commit.require(2)
    assert commit.urgent
    assert [commit.synced(4), commit.synced(5), commit.synced(1)] == [False, True, False]
    assert (commit.known, commit.durable, commit.urgent) == (6, 5, False)
