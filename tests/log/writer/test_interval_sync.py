"""Logs synced at intervals: when entries count, what a crash leaves, and when a replica gets another identity."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.log.gate import until
from tests.log.values import GROUP, LIMITS, OTHER, append, everything, faulty, first_entry, run
from tinymq.base.errors import SyncFailed
from tinymq.log import DISK, InlineRunner, Log, LogConfig, Store
from tinymq.log.broker_files.boot_id import read_boot
from tinymq.log.broker_files.durability_marks import LAZY, load_marks
from tinymq.simulation.faulty_files import FaultyFiles

EVERY_100_MS = replace(DISK, sync_interval_s=0.1)
EVERY_SECOND = replace(DISK, sync_interval_s=1.0)


class Place:
    """A data directory, its clock, and the process that has it open."""

    def __init__(self, seed: int = 1) -> None:
        self.files = faulty(seed)
        self.clock = ManualClock()
        self.store: Store

    async def start(self) -> None:
        self.store = await Store.open(
            self.files, InlineRunner(), self.clock, broker_id=1, limits=LIMITS, rng=random.Random(1), mark_every_s=0
        )

    async def log(self, config: LogConfig = EVERY_100_MS, group: object = GROUP) -> Log:
        return (await self.store.open_log(group, first_entry(), config)).log  # type: ignore[arg-type]

    async def written(self, log: Log) -> None:
        """Wait until the appended entries may be acknowledged."""
        await until(lambda: log.durable_index == log.last_index)

    def syncs(self) -> int:
        return sum(step.startswith("sync ") and "groups/" in step for step in self.files.trace)


def placed(body: Callable[[Place], Awaitable[None]], seed: int = 1) -> None:
    async def whole() -> None:
        place = Place(seed)
        await place.start()
        await body(place)

    run(whole())


def test_written_entries_count_and_are_synced_within_the_interval() -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        heard: list[int] = []
        log.on_durable = lambda: heard.append(log.durable_index)
        before = place.syncs()
        append(log, 3)
        await place.written(log)
        assert heard == [4]
        assert (log.synced_index, place.syncs()) == (1, before)
        place.clock.advance(0.05)
        append(log, 2)
        await place.written(log)
        assert log.synced_index == 1
        place.clock.advance(0.051)
        await until(lambda: log.synced_index == 6)
        assert place.syncs() == before + 1, "one sync for both batches"
        place.clock.advance(5.0)
        assert place.syncs() == before + 1, "and no sync without new entries"
        await place.store.close()

    placed(body)


def test_logs_with_sync_always_do_not_sync_interval_logs() -> None:
    async def body(place: Place) -> None:
        lazy, always = await place.log(), await place.log(DISK, OTHER)
        append(lazy, 2)
        await place.written(lazy)
        append(always, 2)
        await place.written(always)
        assert (always.synced_index, lazy.synced_index) == (3, 1)
        await place.store.close()

    placed(body)


def test_one_timer_serves_all_and_each_in_time() -> None:
    async def body(place: Place) -> None:
        slow, quick = await place.log(EVERY_SECOND), await place.log(EVERY_100_MS, OTHER)
        append(slow, 1)
        await place.written(slow)
        append(quick, 1)
        await place.written(quick)
        place.clock.advance(0.101)
        await until(lambda: quick.synced_index == 2)
        assert slow.synced_index == 1
        place.clock.advance(0.9)
        await until(lambda: slow.synced_index == 2)
        await place.store.close()

    placed(body)


def test_a_kill_loses_nothing_and_changes_no_identity() -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        append(log, 5)
        await place.written(log)
        await place.store.abandon()
        place.files.kill()
        await place.start()
        opened = await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)
        assert (opened.count, opened.damage, opened.log.last_index, opened.log.synced_index) == (0, None, 6, 6)
        await place.store.close()

    placed(body)


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_the_replica_has_another_identity(seed: int) -> None:
    """It may lack acknowledged entries, so it must not count, even when by chance it lacks none."""

    async def body(place: Place) -> None:
        log = await place.log()
        append(log, 3)
        await place.store.writer.drain()
        synced = log.synced_index
        append(log, 5)
        await place.written(log)
        await place.store.abandon()
        place.files.power_cut()
        await place.start()
        opened = await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)
        assert (opened.count, opened.damage) == (1, None)
        assert synced <= opened.log.last_index
        await everything(opened.log)
        await place.store.abandon()
        place.files.kill()
        await place.start()
        assert (await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)).count == 1, "once per power cut"
        await place.store.close()

    placed(body, seed)


@pytest.mark.parametrize("how", ["closed", "folder closed", "always from then on"])
def test_after_a_clean_stop_a_power_cut_changes_no_identity(how: str) -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        append(log, 5)
        await place.written(log)
        if how == "closed":
            await place.store.close_log(GROUP)
            await place.store.writer.barrier()
            append(await place.log(DISK, OTHER), 1)  # whose sync batch includes the marks
            await place.store.writer.drain()
        elif how == "always from then on":
            place.store.configure(GROUP, DISK)
            await until(lambda: log.synced_index == 6)
            append(log, 1)
            await place.store.writer.drain()
            place.clock.advance(0.2)
            await until(lambda: not load_marks(place.files).marks[GROUP].flags)
        await (place.store.close() if how == "folder closed" else place.store.abandon())
        place.files.power_cut()
        await place.start()
        opened = await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)
        assert opened.count == 0
        assert opened.log.last_index >= 6
        await place.store.close()

    placed(body)


def test_the_mark_is_stored_before_the_first_write_counts() -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        assert not load_marks(place.files).marks[GROUP].flags
        assert read_boot(place.files) == b"", "not needed yet"
        append(log, 1)
        await place.written(log)
        place.files.power_cut()
        assert load_marks(place.files).marks[GROUP].flags & LAZY
        assert read_boot(place.files) == bytes(16)

    placed(body)


@pytest.mark.parametrize("end", [FaultyFiles.kill, FaultyFiles.power_cut])
def test_a_log_without_interval_writes_keeps_its_identity(end: Callable[[FaultyFiles], None]) -> None:
    """It never acknowledged an unsynced entry, although its commit index was marked. `boot` is missing, or from an
    earlier start.
    """

    async def body(place: Place) -> None:
        log = await place.log()
        log.note_commit(1)
        for _ in range(2):
            place.clock.advance(0.2)
            await place.store.writer.drain()
        assert load_marks(place.files).marks[GROUP].commit == 1
        await place.store.abandon()
        end(place.files)
        await place.start()
        assert (await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)).count == 0
        await place.store.close()

    placed(body)


def test_a_failed_sync_stops_acknowledged_logs_too() -> None:
    """The machine keeps running, but pages that it calls clean may not be on the disk, so the replica gets another
    identity.
    """

    async def body(place: Place) -> None:
        log = await place.log()
        append(log, 3)
        await place.written(log)
        place.files.fail_sync("groups/*")
        place.clock.advance(0.2)
        await until(lambda: log.failed is not None)
        assert isinstance(log.failed, SyncFailed)
        await place.store.abandon()
        place.files.kill()
        await place.start()
        assert (await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)).count == 1
        await place.store.close()

    placed(body)


def test_a_machine_without_boot_ids_counts_as_new_each_time() -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        append(log, 3)
        await place.written(log)
        await place.store.abandon()
        place.files.kill()
        await place.start()
        assert (await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)).count == 1
        await place.store.close()

    def nameless(self: FaultyFiles) -> bytes:
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FaultyFiles, "boot_id", nameless)
        placed(body)


def test_segments_are_removed_only_when_later_entries_are_synced() -> None:
    async def body(place: Place) -> None:
        log = await place.log()
        append(log, 40)
        await place.written(log)
        for index in range(1, log.last_index + 1):
            log.note_applied(index)
            if log.wants_snapshot(index):
                log.save_snapshot(index, b"state at %d" % index)
        log.remove_before_offset(log.next_offset)
        assert log.first_index == 1
        await place.store.writer.drain()
        await place.store.writer.drain()
        log.remove_before_offset(log.next_offset)
        assert len(log.segments.bounds()) == 1
        await place.store.writer.drain()
        await place.store.close()

    placed(body)


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_appends_truncations_and_power_cuts_leaves_one_chain(seed: int) -> None:
    """The remaining log is complete: it has every synced entry that was not truncated, and no invented one."""

    async def body(place: Place) -> None:
        rng = random.Random(seed)
        for _ in range(6):
            opened = await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)
            log = opened.log
            assert opened.damage is None
            kept = log.reader.crc_at(log.last_index)
            at = log.last_index
            for _ in range(rng.randrange(12)):
                if rng.random() < 0.2 and log.last_index > 2:
                    cut = rng.randint(2, log.last_index)
                    log.truncate_from(cut)
                    if cut <= at:
                        at = cut - 1
                        kept = log.reader.crc_at(at)
                append(log, rng.randrange(1, 6), term=log.last_term + rng.randrange(2))
                if rng.random() < 0.5:
                    await place.written(log)
                if rng.random() < 0.3:
                    await place.written(log)
                    place.clock.advance(0.2)
                    await until(lambda log=log: log.synced_index == log.last_index)  # type: ignore[misc]
                    at, kept = log.last_index, log.reader.crc_at(log.last_index)
            await place.store.abandon()
            power = rng.random() < 0.6
            (place.files.power_cut if power else place.files.kill)()
            await place.start()
            found = (await place.store.open_log(GROUP, first_entry(), EVERY_100_MS)).log
            assert found.last_index >= at
            assert found.reader.crc_at(at) == kept, "synced entries are there"
            await everything(found)
            await place.store.close_log(GROUP)
        await place.store.close()

    placed(body, seed)
