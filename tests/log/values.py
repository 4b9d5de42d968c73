"""Entries and data directories for the tests of the log room."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from tests.fakes.manual_clock import ManualClock
from tinymq.base.config import Limits
from tinymq.base.types import GroupId, TopicId
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log import Files, InlineRunner, Log, OpenedLog, Runner, Store
from tinymq.simulation.faulty_files import FaultyFiles

T = TypeVar("T")

GROUP = GroupId(TopicId(b"0123456789abcdef"), 3)
OTHER = GroupId(TopicId(b"0123456789abcdef"), 4)
SEGMENT_BYTES = 2000  # a few entries fill one
LIMITS = replace(Limits(), segment_bytes=SEGMENT_BYTES)


def run(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)


def first_entry() -> Entry:
    return make_entry(
        NewEntry(Kind.CONFIG, b"three replicas"), index=1, term=0, prev_crc=0, base_offset=0, append_time_us=1
    )


def following(
    log: Log, payload: bytes = b"payload", *, term: int = 1, records: int = 1, kind: Kind = Kind.DATA, time_us: int = 5
) -> Entry:
    """Return the entry that continues `log`."""
    return make_entry(
        NewEntry(kind, payload, record_count=records if kind == Kind.DATA else 0),
        index=log.last_index + 1,
        term=max(term, log.last_term),
        prev_crc=log.last_crc,
        base_offset=log.next_offset,
        append_time_us=time_us,
    )


def append(log: Log, count: int, size: int = 100, **values: Any) -> list[Entry]:
    """Append `count` entries of `size` bytes of payload, each one different."""
    added = []
    for _ in range(count):
        payload = (b"%d." % (log.last_index + 1) * size)[:size]
        added.append(following(log, payload, **values))
        log.append(added[-1:])
    return added


async def everything(log: Log) -> list[Entry]:
    """Return all entries, with cold reads for those not in memory."""
    found: list[Entry] = []
    index = log.first_index
    while entries := await log.reader.read(index, 1 << 16):
        found += entries
        index = entries[-1].index + 1
    return found


async def open_store(
    files: Files, *, broker_id: int = 1, limits: Limits = LIMITS, runner: Runner | None = None, seed: int = 1
) -> Store:
    return await Store.open(
        files, runner or InlineRunner(), ManualClock(), broker_id=broker_id, limits=limits, rng=random.Random(seed),
        mark_every_s=0,
    )  # fmt: skip


async def open_both(files: Files, *, limits: Limits = LIMITS) -> tuple[Store, OpenedLog]:
    store = await open_store(files, limits=limits)
    return store, await store.open_log(GROUP, first_entry())


def faulty(seed: int = 1) -> FaultyFiles:
    return FaultyFiles(random.Random(seed))
