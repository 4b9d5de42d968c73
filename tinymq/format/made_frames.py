"""Frames that are made for readers: a published batch, which lies in a STAGED entry, under a header for its offsets."""

from __future__ import annotations

from collections.abc import Iterator

from tinymq.base.errors import CorruptData
from tinymq.format.entry import HEADER, EntryHeader, Kind, crc32c, crc32c_of
from tinymq.format.transactional import MADE_VERSION, STAGED_HEAD_SIZE, Item, PublishedItems, is_transactional


def made_head(publish: EntryHeader, item: Item) -> bytes:
    """The 64 bytes in front of a published batch on its way to readers: a DATA entry in the place of its records.

    Index, term and append time are those of the PUBLISH entry, and the header belongs to no chain: `prev_crc` is 0.
    """
    covered = HEADER.pack(  # the fields in the order of the header's drawing; the first one covers the others
        0,
        item.batch_crc,
        0,
        item.length,
        Kind.DATA,
        MADE_VERSION,
        0,
        publish.index,
        publish.term,
        publish.base_offset + item.first,
        item.record_count,
        publish.append_time_us,
        item.max_timestamp_us,
    )[4:]
    return crc32c(covered).to_bytes(4, "little") + covered


def published_items(publish: EntryHeader, payload: bytes | memoryview, offset: int, end_offset: int) -> Iterator[Item]:
    """The items of a PUBLISH entry for a reader: the first one holds `offset`, and none begins at `end_offset` or
    above. All items if `offset` is below the entry. Raises CorruptData.
    """
    items = PublishedItems(payload)
    record = max(0, offset - publish.base_offset)
    number = max(0, items.number_at(record)) if record else 0
    upto = record  # the first item may begin earlier
    for item in items.behind(number):
        before, upto = upto, item.first + item.record_count
        if item.first > before or not before < upto <= publish.record_count or item.entry_index >= publish.index:
            raise CorruptData("a PUBLISH entry contradicts itself", index=publish.index)
        if publish.base_offset + item.first >= end_offset:
            return
        yield item


def misfit(item: Item, staged: EntryHeader, batch: bytes | memoryview | None = None) -> str | None:
    """Why `staged` is not the header of the entry that `item` names, or `batch` not its batch; None: both are.

    Without `batch`, only the header is compared.
    """
    stages = staged.kind == Kind.STAGED and is_transactional(staged.version)
    if not stages or staged.index != item.entry_index or staged.length != item.length + STAGED_HEAD_SIZE:
        return "it is not the batch that a PUBLISH entry names"
    if batch is not None and crc32c_of(memoryview(batch)) != item.batch_crc:
        return "published batch checksum mismatch"
    return None
