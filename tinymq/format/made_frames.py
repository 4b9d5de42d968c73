"""Frames that are made for readers: a published batch, which lies in a STAGED entry, under a header for its offsets."""

from __future__ import annotations

from tinymq.format.entry import EntryHeader, Kind, crc32c, pack_header
from tinymq.format.transactional import MADE_VERSION, Item


def made_head(publish: EntryHeader, item: Item) -> bytes:
    """The 64 bytes in front of a published batch on its way to readers: a DATA entry in the place of its records.

    Index, term and append time are those of the PUBLISH entry, and the header belongs to no chain: `prev_crc` is 0.
    """
    made = EntryHeader(
        header_crc=0,
        payload_crc=item.batch_crc,
        prev_crc=0,
        length=item.length,
        kind=Kind.DATA,
        version=MADE_VERSION,
        reserved=0,
        index=publish.index,
        term=publish.term,
        base_offset=publish.base_offset + item.first,
        record_count=item.record_count,
        append_time_us=publish.append_time_us,
        max_timestamp_us=item.max_timestamp_us,
    )
    covered = pack_header(made)[4:]
    return crc32c(covered).to_bytes(4, "little") + covered
