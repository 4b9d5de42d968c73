"""Data directories with one damaged file: opened, read, written, and opened again. The directory was closed cleanly, so
everything was synced and marked. Whatever the damage, no read may return wrong data: it returns the original, or
reports the damage.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

from tests.fuzz import reseal
from tests.fuzz.driver import Target
from tests.log.values import GROUP, append, everything, faulty, first_entry, following, open_both, open_store
from tinymq.base.errors import CorruptData, StorageError, TinymqError
from tinymq.format.entry import Entry, Kind
from tinymq.log import OpenedLog, Store
from tinymq.log.broker_files import durability_marks, vote_store
from tinymq.simulation.faulty_files import FaultyFiles

HARD_STATE = (4, 1)
ROUND_FILE_BYTES = 1 << 12  # small files of marks and hard state: otherwise most damage would hit a megabyte of zeros
RECOVERY_BYTES_MAX = 8 << 20

Image = dict[str, bytes]


def small_round_files() -> None:
    """For the whole process: files of marks and hard state start small."""
    durability_marks.FILE_BYTES_MIN = vote_store.FILE_BYTES_MIN = ROUND_FILE_BYTES


@cache
def folder(trimmed: bool = False) -> tuple[Image, tuple[Entry, ...]]:
    """The files of a data directory with one log in several segments, and the log's entries."""
    small_round_files()
    files = faulty()

    async def fill() -> list[Entry]:
        store, opened = await open_both(files)
        log = opened.log
        store.votes.set(GROUP, 3, 2)
        append(log, 20, size=60)
        log.append([following(log, b"", kind=Kind.NOOP, term=2)])
        await store.writer.drain()
        append(log, 20, size=40, term=2, records=3, time_us=77)
        store.votes.set(GROUP, *HARD_STATE)
        await store.writer.drain()
        for index in range(1, log.last_index + 1):
            log.note_applied(index)
            if log.segments.end_at(index):
                log.save_snapshot(index, b"state at %d" % index)
        log.note_commit(30)
        await store.writer.drain()
        if trimmed:
            log.remove_before(25)
            assert log.first_index > 1
        held = await everything(log)
        await store.close()
        return held

    entries = asyncio.run(fill())
    return {path: files.content(path) for path in files.paths()}, tuple(entries)


def disk(image: Image) -> FaultyFiles:
    """A disk with these files, all durable."""
    files = FaultyFiles(random.Random(1))
    for path, content in image.items():
        parent = path.rpartition("/")[0]
        if parent:
            files.make_directory(parent)
        files.open(path, create=True)
        files.put(path, content)
        while parent:
            files.sync_directory(parent)
            parent = parent.rpartition("/")[0]
    files.sync_directory("")
    return files


async def _look(files: FaultyFiles, held: Sequence[Entry] | None) -> OpenedLog:
    """Open the directory, and compare it with its entries (None: it may return wrong data, but must not crash)."""
    store, opened = await open_both(files)
    try:
        log = opened.log
        if held is not None:
            await _check(store, opened, held)
        else:
            with suppress(TinymqError):
                await everything(log)
        if opened.damage is None:
            append(log, 2, term=max(9, log.last_term))
            await store.writer.drain()
            assert log.failed is not None or log.durable_index == log.last_index
        else:
            try:
                append(log, 1)
            except CorruptData:
                pass
            else:
                raise AssertionError("a damaged log takes entries")
    finally:
        with suppress(StorageError):
            await store.close()
    return opened


async def _check(store: Store, opened: OpenedLog, held: Sequence[Entry]) -> None:
    log = opened.log
    if opened.damage is None:
        assert (log.first_index, log.last_index) == (held[0].index, held[-1].index), "entries are gone, unseen"
    if opened.count == 0:
        assert store.votes.get(GROUP) == HARD_STATE, "a vote is forgotten, unseen"
    assert opened.applied_index == 0 or opened.snapshot == b"state at %d" % opened.applied_index
    known = {entry.index: entry for entry in held}
    index = log.first_index
    with suppress(CorruptData):  # damage in an older segment is found when it is read
        while index <= log.last_index and (entries := await log.reader.read(index, 1 << 16)):
            assert all(known[entry.index] == entry for entry in entries), "damage is served"
            index = entries[-1].index + 1
        assert index == log.last_index + 1


def parse(path: str, trimmed: bool, strict: bool, data: bytes) -> str:
    """Open a directory whose file at `path` is `data`, twice: the first time may have written."""
    image, held = folder(trimmed)
    files = disk({**image, path: data})
    opened = asyncio.run(_look(files, held if strict else None))
    files.power_cut()
    if strict and opened.damage is not None:
        again = asyncio.run(_look(files, held))
        assert again.damage is not None, "the damage is gone without a repair"
    else:
        asyncio.run(_open_only(files))
    return opened.damage or ""


async def _open_only(files: FaultyFiles) -> None:
    store = await open_store(files)
    try:
        await store.open_log(GROUP, first_entry())
    finally:
        await store.abandon()


def _target(name: str, find: Callable[[Image], str], fix: Callable[[bytes], bytes], trimmed: bool = False) -> Target:
    path = find(folder(trimmed)[0])
    return Target(
        name=f"folder.{name}",
        seeds=lambda: [folder(trimmed)[0][path]],
        parse=partial(parse, path, trimmed, True),
        reseals=(fix,),
        sealed=partial(parse, path, trimmed, False),
        bytes_max=RECOVERY_BYTES_MAX,
        cases=60,
    )


def _nth(suffix: str, which: int) -> Callable[[Image], str]:
    return lambda image: sorted(path for path in image if path.endswith(suffix))[which]


def targets() -> list[Target]:
    return [
        _target("segment.first", _nth(".log", 0), reseal.segment),
        _target("segment.older", _nth(".log", 1), reseal.segment),
        _target("segment.last", _nth(".log", -1), reseal.segment),
        _target("segment.trimmed", _nth(".log", 0), reseal.segment, trimmed=True),
        _target("index", _nth(".index", 1), reseal.index),
        _target("state", _nth(".state", -1), reseal.at_twelve),
        _target("state.trimmed", _nth(".state", 0), reseal.at_twelve, trimmed=True),
        _target("marks", _nth("marks", 0), reseal.rounds),
        _target("ballots.one", _nth("ballots-a", 0), reseal.rounds),
        _target("identity", _nth("broker.json", 0), reseal.identity),
    ]
