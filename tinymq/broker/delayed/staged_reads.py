"""Reads of delayed batches from the log, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tinymq.base.errors import CorruptData
from tinymq.broker.state.delayed import DelayedBatch
from tinymq.format.delayed import STAGED_HEAD_SIZE, StagedHead, unpack_staged
from tinymq.format.entry import HEADER_SIZE, Entry, Kind

READ_BYTES_MAX = 1024 * 1024
GAP_MAX = 8  # other entries between two batches that one read takes along


class EntryReader(Protocol):
    """Reads of entries by index (tinymq.log.replica_log.reader)."""

    async def read(self, index: int, bytes_max: int) -> list[Entry]: ...


class StagedPayload(NamedTuple):
    """A delayed batch with its bytes."""

    head: StagedHead
    batch: bytes


async def read_staged(reader: EntryReader, wanted: Sequence[DelayedBatch]) -> dict[int, StagedPayload]:
    """Read batches, and return them by schedule id. Raises CorruptData; OffsetOutOfRange if an entry is gone."""
    found: dict[int, StagedPayload] = {}
    left = sorted(wanted, key=lambda batch: batch.entry_index, reverse=True)
    while left:
        first = left[-1].entry_index
        entries = await reader.read(first, _bytes_of_run(left))
        while left and left[-1].entry_index < first + len(entries):
            batch = left.pop()
            entry = entries[batch.entry_index - first]
            if entry.index != batch.entry_index or entry.header.kind != Kind.STAGED:
                raise CorruptData(f"entry {entry.index} is no delayed batch", index=entry.index)
            found[batch.schedule_id] = StagedPayload(*unpack_staged(entry.payload))
        if not entries:
            raise CorruptData(f"entry {first} is not in the log", index=first)
    return found


def _bytes_of_run(left: Sequence[DelayedBatch]) -> int:
    """How much to read for the last batch of `left`, and for those that lie shortly behind it."""
    size, before = 0, left[-1].entry_index
    for batch in reversed(left):
        if batch.entry_index > before + GAP_MAX or size >= READ_BYTES_MAX:
            break
        size += (batch.bytes + STAGED_HEAD_SIZE + HEADER_SIZE) * max(1, batch.entry_index - before)
        before = batch.entry_index
    return min(size, READ_BYTES_MAX)
