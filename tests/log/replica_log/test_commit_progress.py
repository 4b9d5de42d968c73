"""A commit index that a disk is to know soon: when it does, and what a crash leaves of it."""

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
    """Entries up to 6, of which 5 is known to be committed, and no mark says so yet."""
    log = await place.log(config)
    append(log, 5)
    await place.written(log)
    log.note_commit(5)
    return log


def known(place: Place, log: Log) -> int:
    """By the file, as it is read."""
    mark = place.store._marks.get(log.group)
    assert mark is not None
    return mark.commit


async def again(place: Place, config: LogConfig = DISK) -> int:
    """How far the log is known to be committed when it is opened after a power cut."""
    await place.store.abandon()
    place.files.power_cut()
    await place.start()
    return (await place.log(config)).recovered_commit


@pytest.mark.parametrize("config", [DISK, EVERY_SECOND, replace(DISK, storage=Storage.MEMORY)])
def test_it_presses_from_when_it_is_known_until_it_is_kept(config: LogConfig) -> None:
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
def test_a_power_cut_leaves_it(config: LogConfig, seed: int) -> None:
    """Also of a log that would be synced a second later."""

    async def body(place: Place) -> None:
        log = await filled(place, config)
        log.sync_commit(5)
        await until(lambda: log.commit.durable == 5)
        assert await again(place, config) == 5

    placed(body, seed)


def test_others_that_write_all_the_time_do_not_keep_it_from_the_disk() -> None:
    """They keep marks that wait for a quiet moment from it: the clock stands still."""

    async def body(place: Place) -> None:
        log = await filled(place)
        other = await place.log(DISK, OTHER)
        append(other, 1)
        await place.store.writer.drain()
        assert known(place, log) == 0, "else this shows nothing"
        log.sync_commit(5)
        append(other, 1)
        await place.store.writer.drain()
        assert (known(place, log), log.commit.durable) == (5, 5)

    placed(body)


def test_it_says_no_more_than_is_durable() -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        append(log, 3)
        log.note_commit(9)  # a leader says so, of what is not synced here
        log.sync_commit(9)
        works = place.store.writer._batches
        works.marks.note_commits({log.group: 9})
        works.marks.flush()
        assert known(place, log) == 6
        await until(lambda: log.commit.durable == 9)

    placed(body)


def test_a_sync_that_fails_keeps_nothing_and_ends_the_broker() -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        place.files.fail_sync(MARKS)
        log.sync_commit(5)
        await place.store.writer.drain()
        assert isinstance(place.store.writer.failed, SyncFailed)
        assert log.commit.durable == 0
        await place.store.abandon()

    placed(body)


def test_without_room_for_marks_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_who_is_closed_presses_no_more() -> None:
    async def body(place: Place) -> None:
        log = await filled(place)
        log.sync_commit(5)
        await place.store.close_log(log.group)
        assert not place.store.writer._urgent_commits
        await place.store.close()

    placed(body)


def test_what_is_known_only_rises() -> None:
    commit = CommitProgress(4)
    assert [commit.advance(3), commit.advance(6), commit.advance(6)] == [False, True, False]
    commit.require(5)
    commit.require(2)
    assert commit.urgent
    assert [commit.synced(4), commit.synced(5), commit.synced(1)] == [False, True, False]
    assert (commit.known, commit.durable, commit.urgent) == (6, 5, False)
