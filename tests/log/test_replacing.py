"""Replacing a log: by a snapshot, or by an empty log when the old one is damaged. A crash at any operation leaves one
of the two, complete, and never reuses a count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.log.values import GROUP, append, everything, faulty, first_entry, following, open_both, open_store, run
from tinymq.base.errors import CorruptData
from tinymq.format.entry import crc32c
from tinymq.log import Log, OpenedLog, Store
from tinymq.log.engine.damaged_logs import has_quarantined
from tinymq.log.files.layout import SNAPSHOT, group_directory, in_group, quarantine_directory
from tinymq.log.segment.segment import SegmentHeader, pack_segment_header
from tinymq.log.segment.snapshot_files import Snapshot, StoredSnapshot, pack_snapshot
from tinymq.simulation.faulty_files import Crash, FaultyFiles

INDEX = 25
DATA = b"state at %d" % INDEX
APPLIED = Snapshot(
    index=INDEX,
    entry_term=3,
    entry_crc=0xC0FFEE,
    next_offset=900,
    append_time_us=77_000,
    data=DATA,
    data_crc=crc32c(DATA),
)
CRASHES = ["power_cut", "kill", "kill, then power_cut"]


def crash(files: FaultyFiles, how: str) -> None:
    if how == "power_cut":
        files.power_cut()
    else:
        files.kill()


async def old_log(files: FaultyFiles, entries: int) -> tuple[Store, Log]:
    """A log of several segments, committed up to entry 10; the rest is of an old term."""
    store, opened = await open_both(files)
    append(opened.log, entries - 1)
    opened.log.note_commit(10)
    await store.writer.drain()
    await store.writer.close()
    store._lock.close()
    store, opened = await open_both(files)
    return store, opened.log


async def installed(store: Store) -> Log:
    opened = await store.install(GROUP, APPLIED)
    assert (opened.applied_index, opened.snapshot, opened.damage, opened.count) == (INDEX, APPLIED.data, None, 0)
    return opened.log


def check_base(log: Log) -> None:
    """The log's knowledge of the entry before its first."""
    assert (log.first_index, log.log_start_offset) == (INDEX + 1, APPLIED.next_offset)
    assert (log.term_at(INDEX), log.reader.crc_at(INDEX)) == (APPLIED.entry_term, APPLIED.entry_crc)


@pytest.mark.parametrize("entries", [5, INDEX - 1, INDEX, INDEX + 1, 60])
def test_an_empty_log_starts_behind_a_snapshot(entries: int) -> None:
    files = faulty()

    async def body() -> None:
        store, log = await old_log(files, entries)
        log = await installed(store)
        for _ in range(3):
            check_base(log)
            assert (log.last_index, log.last_term, log.last_crc) == (INDEX, APPLIED.entry_term, APPLIED.entry_crc)
            assert (log.next_offset, log.durable_index, log.last_append_time_us) == (900, INDEX, 77_000)
            assert await log.reader.read(INDEX + 1, 100) == []
            assert await log.reader.read_base_snapshot() == APPLIED
            await store.close()
            files.power_cut()
            store, opened = await open_both(files)
            assert (opened.applied_index, opened.snapshot, opened.damage) == (INDEX, APPLIED.data, None)
            log = opened.log
            assert log.recovered_commit == INDEX
        await store.close()

    run(body())


def test_a_log_truncated_to_nothing_accepts_entries() -> None:
    files = faulty()

    async def body() -> None:
        store, log = await old_log(files, 60)
        log = await installed(store)
        append(log, 40, term=4)
        await store.writer.drain()
        log.truncate_from(INDEX + 1)
        check_base(log)
        assert (log.last_index, log.last_crc, log.last_append_time_us) == (INDEX, APPLIED.entry_crc, 77_000)
        await store.writer.drain()
        await store.abandon()
        files.power_cut()
        store, opened = await open_both(files)
        assert (opened.damage, opened.log.last_index) == (None, INDEX)
        log = opened.log
        append(log, 40, term=5)
        await store.writer.drain()
        assert [e.index for e in await everything(log)] == list(range(INDEX + 1, INDEX + 41))
        assert log.term_at(INDEX + 1) == 5
        await store.abandon()
        files.power_cut()
        store, opened = await open_both(files)
        assert (opened.damage, opened.log.last_index, opened.log.last_term) == (None, INDEX + 40, 5)
        await store.close()

    run(body())


def test_a_trimmed_log_can_be_truncated_at_its_first_entry() -> None:
    """A leader sends the first entry behind the removed part, and the next leader has another entry there."""

    async def body() -> None:
        store, log = await old_log(faulty(), 60)
        log = await installed(store)
        log.append([following(log, term=4)])
        log.truncate_from(log.first_index)
        log.append([following(log, term=5)])
        assert log.term_at(INDEX + 1) == 5
        await store.close()

    run(body())


def test_a_snapshot_of_another_entry_at_the_same_index_is_refused() -> None:
    """Without a sync a truncated entry may come back, below a state that does not include it."""
    files = faulty()

    async def body() -> None:
        store, log = await old_log(files, 60)
        at = log.segments.bounds()[0][1]
        await store.close()
        path = in_group(group_directory(GROUP), at + 1, SNAPSHOT)
        state = StoredSnapshot(at, 5, log.reader.crc_at(at) or 0, b"state")
        for stored, found in ((state, at), (replace(state, entry_crc=1), 0)):
            files.open(path, create=True)
            files.put(path, pack_snapshot(stored))
            store, opened = await open_both(files)
            assert (opened.damage, opened.applied_index) == (None, found)
            await store.close()

    run(body())


@pytest.mark.parametrize("whole", [True, False])
def test_a_base_that_contradicts_its_mark_is_damage(whole: bool) -> None:
    files = faulty()

    async def body() -> None:
        store, _ = await old_log(files, 5)
        await installed(store)
        await store.close()
        (path,) = [p for p in files.paths() if p.endswith(".log")]
        if whole:
            header = SegmentHeader(GROUP, INDEX + 1, APPLIED.next_offset, APPLIED.entry_term, APPLIED.entry_crc ^ 1)
            files.put(path, pack_segment_header(header))
        else:
            files.flip_bit(path, 40)
        store, opened = await open_both(files)
        assert opened.damage is not None
        assert (opened.count, opened.tail_intact) == (1, False)
        await store.close()

    run(body())


async def install_life(files: FaultyFiles, facts: dict[str, int]) -> None:
    store, log = await old_log(files, 60)
    facts["old"] = INDEX - 1  # entries above it were never committed
    log = await installed(store)
    facts["new"] = INDEX
    added = append(log, 30, term=4)
    await store.writer.drain()
    facts["new"] = added[-1].index
    facts["new"] = INDEX
    log.truncate_from(INDEX + 1)
    append(log, 5, term=6)
    await store.writer.drain()
    facts["new"] = INDEX + 5
    await store.close()


async def check_install(files: FaultyFiles, facts: dict[str, int]) -> tuple[int, int]:
    store, opened = await open_both(files)
    log = opened.log
    assert (opened.damage, opened.count) == (None, 0)
    assert [e.index for e in await everything(log)] == list(range(log.first_index, log.last_index + 1))
    if log.first_index == 1:
        assert "new" not in facts
        assert log.last_index >= facts.get("old", 0)
        assert opened.snapshot is None
        await store.abandon()
        return 1, 0  # truncated entries may come back: the truncation was not acknowledged
    check_base(log)
    assert "old" in facts
    assert log.last_index >= facts.get("new", INDEX)
    assert (opened.applied_index, opened.snapshot) == (INDEX, APPLIED.data)
    await store.abandon()
    return log.first_index, log.last_index


def crash_everywhere(
    life: Callable[[FaultyFiles, dict[str, int]], Awaitable[None]],
    check: Callable[[FaultyFiles, dict[str, int]], Awaitable[object]],
    how: str,
) -> int:
    async def whole(files: FaultyFiles, facts: dict[str, int]) -> None:
        await life(files, facts)

    async def look(files: FaultyFiles, facts: dict[str, int]) -> object:
        return await check(files, facts)

    files = faulty()
    run(whole(files, {}))
    for after in range(files.operations):
        files, facts = faulty(after), {}
        files.crash_after(after, bytes_written=(after * 97) % 700)
        with pytest.raises(Crash):
            run(whole(files, facts))
        crash(files, how)
        found = run(look(files, facts))
        files.power_cut()
        assert run(look(files, facts)) == found, after
    return files.operations


@pytest.mark.parametrize("how", CRASHES[:2])
def test_a_crash_after_every_operation_of_an_install(how: str) -> None:
    assert crash_everywhere(install_life, check_install, how) > 40


# ---- damaged logs -------------------------------------------------------------------------------------------


def damage(files: FaultyFiles) -> None:
    path = next(p for p in files.paths() if p.endswith(".log") and p.startswith("groups"))
    files.flip_bit(path, 20)


async def damaged_log(files: FaultyFiles) -> tuple[Store, OpenedLog]:
    store, _ = await old_log(files, 60)
    await store.close()
    damage(files)
    store, opened = await open_both(files)
    assert opened.damage is not None
    return store, opened


def kept(files: FaultyFiles) -> dict[str, bytes]:
    folder = quarantine_directory(GROUP) + "/"
    return {p.removeprefix(folder): files.content(p) for p in files.paths() if p.startswith(folder)}


def test_a_damaged_log_moves_to_quarantine_and_an_empty_one_starts() -> None:
    files = faulty()

    async def body() -> None:
        store, opened = await damaged_log(files)
        before = {p.rpartition("/")[2]: files.content(p) for p in files.paths() if p.endswith((".log", ".index"))}
        store.votes.set(GROUP, 7, 2)
        await store.quarantine(GROUP)
        opened = await store.open_log(GROUP, first_entry())
        assert (opened.damage, opened.count, opened.log.last_index, opened.log.recovered_commit) == (None, 1, 1, 0)
        assert store.votes.get(GROUP) == (0, None), "another identity: the previous one's votes do not bind it"
        assert before.items() <= kept(files).items()
        assert store.has_quarantined(GROUP)
        assert not await store.remove_quarantined(GROUP, commit=9)
        append(opened.log, 3)
        await store.close()
        files.power_cut()
        store, opened = await open_both(files)
        assert (opened.damage, opened.count, opened.log.last_index) == (None, 1, 4)
        assert await store.remove_quarantined(GROUP, commit=10)
        assert not store.has_quarantined(GROUP)
        files.power_cut()
        assert not kept(files)

    run(body())


def test_of_two_damaged_logs_the_older_one_is_kept() -> None:
    """The second log did not belong to a member, so it has less."""
    files = faulty()

    async def body() -> None:
        store, opened = await damaged_log(files)
        await store.quarantine(GROUP)
        opened = await store.open_log(GROUP, first_entry())
        await store.mark_damaged(opened.log, CorruptData("again"))
        before = kept(files)
        await store.quarantine(GROUP)
        opened = await store.open_log(GROUP, first_entry())
        assert (opened.damage, opened.count, kept(files)) == (None, 2, before)
        await store.close()

    run(body())


def test_damage_that_a_read_found_is_known_after_a_restart() -> None:
    files = faulty()

    async def body() -> None:
        store, log = await old_log(files, 60)
        found: list[CorruptData] = []
        log.reader.on_damage = found.append
        files.flip_bit(log.segments.first.path, 200)  # an older segment, which opening does not read
        with pytest.raises(CorruptData):
            await log.reader.read(2, 100)
        await store.mark_damaged(log, found[0])
        with pytest.raises(CorruptData):
            append(log, 1)
        await store.close()
        for _ in range(2):
            files.power_cut()
            store, opened = await open_both(files)
            assert opened.damage is not None
            assert (opened.tail_intact, opened.count) == (True, 0)
            await store.close()

    run(body())


def test_counts_are_known_without_the_marks() -> None:
    """A reused count would let the acknowledgements of a lost log count for its successor."""
    files = faulty()

    async def body() -> None:
        store, _ = await damaged_log(files)
        for _ in range(3):
            await store.quarantine(GROUP)
            opened = await store.open_log(GROUP, first_entry())
        await store.close()
        files.put("marks", b"")
        store, opened = await open_both(files)
        assert (opened.damage, opened.count) == (None, 3)
        damage(files)
        await store.close()
        store, opened = await open_both(files)
        await store.quarantine(GROUP)
        await store.abandon()
        files.put("marks", b"")
        store, opened = await open_both(files)
        assert opened.count > 3
        await store.close()

    run(body())


async def aside_life(files: FaultyFiles, facts: dict[str, int]) -> None:
    store, _ = await damaged_log(files)
    facts["damaged"] = 60
    await store.quarantine(GROUP)
    facts["aside"] = 1
    opened = await store.open_log(GROUP, first_entry())
    facts["begun"] = 1
    append(opened.log, 3, term=5)
    await store.writer.drain()
    facts["begun"] = 4
    await store.quarantine(GROUP)
    facts["again"] = 1
    opened = await store.open_log(GROUP, first_entry())
    append(opened.log, 4, term=6)
    await store.writer.drain()
    facts["whole"] = 5
    await store.remove_quarantined(GROUP, 10)
    facts["done"] = 1
    await store.close()


async def check_aside(files: FaultyFiles, facts: dict[str, int]) -> tuple[int, int]:
    store = await open_store(files)
    if "damaged" not in facts:
        await store.abandon()
        return 0, 0
    opened = await store.open_log(GROUP, first_entry())
    log, aside = opened.log, has_quarantined(files, GROUP)
    if "done" in facts:
        assert not aside
    if opened.damage is not None:
        assert "aside" not in facts
        assert not aside
        assert len([p for p in files.paths() if p.startswith("groups") and p.endswith(".log")]) > 3
    else:
        assert opened.count == (2 if "again" in facts else 1) or (opened.count == 2 and facts.get("begun") == 4)
        if opened.count == 1:
            assert log.last_index >= facts.get("begun", 1)
        assert log.last_index >= facts.get("whole", 1)
        if "whole" not in facts:
            assert aside
            assert len([p for p in kept(files) if p.endswith(".log")]) > 3
    await store.abandon()
    return opened.count, log.last_index


@pytest.mark.parametrize("how", CRASHES[:2])
def test_a_crash_after_every_operation_of_a_quarantine(how: str) -> None:
    assert crash_everywhere(aside_life, check_aside, how) > 60
