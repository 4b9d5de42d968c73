"""Reads of batches without offsets from the log, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tinymq.base.errors import CorruptData
from tinymq.broker.state.delayed import DelayedBatch
from tinymq.format.delayed import STAGED_HEAD_SIZE, StagedHead, unpack_staged
from tinymq.format.entry import ENTRY_VERSION, HEADER_SIZE, Entry, Kind

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
    """Read delayed batches, and return them by schedule id. Raises CorruptData; OffsetOutOfRange if an entry is
    gone."""
    places = [(batch.entry_index, batch.bytes + STAGED_HEAD_SIZE + HEADER_SIZE) for batch in wanted]
    entries = await read_entries(reader, places)
    return {batch.schedule_id: staged_payload(entries[batch.entry_index]) for batch in wanted}


def staged_payload(entry: Entry) -> StagedPayload:
    """The delayed batch in an entry. Raises CorruptData."""
    if (entry.header.kind, entry.header.version) != (Kind.STAGED, ENTRY_VERSION):
        raise CorruptData(f"entry {entry.index} is no delayed batch", index=entry.index)
    return StagedPayload(*unpack_staged(entry.payload))


async def read_entries(reader: EntryReader, wanted: Iterable[tuple[int, int]]) -> dict[int, Entry]:
    """Read entries, each given as its index and the bytes of its frame, and return them by index. Raises CorruptData;
    OffsetOutOfRange if one is gone."""
    found: dict[int, Entry] = {}
    left = sorted(wanted, reverse=True)
    while left:
        first = left[-1][0]
        entries = await reader.read(first, _bytes_of_run(left))
        while left and left[-1][0] < first + len(entries):
            index, _ = left.pop()
            entry = entries[index - first]
            if entry.index != index:
                raise CorruptData(f"entry {entry.index} lies in the place of entry {index}", index=index)
            found[index] = entry
        if not entries:
            raise CorruptData(f"entry {first} is not in the log", index=first)
    return found


def _bytes_of_run(left: Sequence[tuple[int, int]]) -> int:
    """How many bytes to read for the last entry of `left` and the entries close behind it in the log."""
    size, before = 0, left[-1][0]
    for index, frame_bytes in reversed(left):
        if index > before + GAP_MAX or size >= READ_BYTES_MAX:
            break
        size += frame_bytes * max(1, index - before)
        before = index
    return min(size, READ_BYTES_MAX)
