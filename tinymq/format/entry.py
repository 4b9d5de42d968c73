"""One Raft log entry as bytes: the same on the leader's disk, between brokers, and to readers.

    offset size field
         0    4 header_crc       u32  crc32c of bytes 4 to 64
         4    4 payload_crc      u32  crc32c of the payload
         8    4 prev_crc         u32  header_crc of the entry before; 0 for index 1
        12    4 length           u32  bytes of payload
        16    1 kind             u8   see Kind
        17    1 version          u8   of this kind's payload
        18    2 reserved         u16  0
        20    8 index            u64  Raft index, from 1
        28    8 term             u64  Raft term of the leader that appended it
        36    8 base_offset      u64  offset of its first record, or of the next record if it has none
        44    4 record_count     u32  records that take offsets: of DATA and PUBLISH
        48    8 append_time_us   i64  the leader's append clock
        56    8 max_timestamp_us i64  greatest record timestamp; append_time_us if it has no record
        64    … payload

header_crc covers payload_crc, and prev_crc chains the headers: if two replicas have the same header_crc at an index,
they agree on every byte up to it. A frame is stored as the leader packed it: followers copy it, and never encode it
again. All numbers are little-endian. Index, term and offsets stay below 2^63.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import TypeVar

import google_crc32c

from tinymq.base.errors import CorruptData, UnsupportedVersion
from tinymq.base.types import PAYLOAD_BYTES_MAX
from tinymq.base.value import value
from tinymq.format.delayed import PUBLISHED_VERSION, unpack_published
from tinymq.format.transactional import COPIED_VERSION, MADE_VERSION, TRANSACTIONAL_VERSION

HEADER = struct.Struct("<IIIIBBHQQQIqq")
HEADER_SIZE = 64
ENTRY_VERSION = 1
assert HEADER.size == HEADER_SIZE

Buffer = TypeVar("Buffer", bytes, memoryview)

_COVERED = struct.Struct("<IIIBBHQQQIqq")  # all of HEADER but header_crc


class Kind(IntEnum):
    """The kind of an entry. A replica that meets an unknown kind or version stops with an error."""

    NOOP = 1  # a leader's first entry of its term
    CONFIG = 2  # peer.proto Config: replicas and their incarnations
    DATA = 3  # one record batch (tinymq/format/batch.py), which takes offsets. Version 2: of delayed batches
    COMMAND = 4  # of a state machine: registry commands, or a partition's commands on channels and holds
    STAGED = 5  # a batch without offsets: delayed (tinymq/format/delayed.py) or, versions 2 and 3, of a transaction
    PUBLISH = 6  # gives the batches of a transaction their offsets where they lie
    DISCARD = 7  # drops staged batches


def crc32c(data: bytes | memoryview, seed: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, continuing from `seed`."""
    return int(google_crc32c.extend(seed, data))


def crc32c_of(part: memoryview) -> int:
    """CRC-32C of a part of a larger buffer, without a copy. The C code accepts no memoryview, but an Arrow buffer."""
    import pyarrow as pa  # here, because the command line imports this module and starts without Arrow

    return int(google_crc32c.value(pa.py_buffer(part)))


@value
class NewEntry:
    """The fields of an entry that a proposer sets. The leader adds where the entry lies and when it was appended."""

    kind: int
    payload: bytes
    record_count: int = 0
    max_timestamp_us: int | None = None  # greatest record timestamp; None: no record, so the append time is stored
    payload_crc: int | None = None  # crc32c of `payload` if the caller has verified it already; None: not known
    version: int = ENTRY_VERSION

    @property
    def crc(self) -> int:
        """crc32c of `payload`."""
        return crc32c(self.payload) if self.payload_crc is None else self.payload_crc


@value
class EntryHeader:
    """The 64 bytes before a payload, unpacked: the fields in the order of the drawing, with its units."""

    header_crc: int
    payload_crc: int
    prev_crc: int
    length: int
    kind: int
    version: int
    reserved: int  # invariant: 0
    index: int  # invariant: >= 1
    term: int
    base_offset: int
    record_count: int
    append_time_us: int
    max_timestamp_us: int

    @property
    def next_offset(self) -> int:
        """The base offset of the entry after this one."""
        return self.base_offset + self.record_count

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_SIZE + self.length


_fields_of = attrgetter(*EntryHeader.__match_args__)  # all of them, in the order of the drawing


@value
class Entry:
    """A whole frame in memory. Immutable; `head` is exactly HEADER_SIZE bytes and matches `header`."""

    header: EntryHeader
    head: bytes
    payload: bytes

    @property
    def index(self) -> int:
        return self.header.index

    @property
    def term(self) -> int:
        return self.header.term

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.header.length

    @property
    def batch(self) -> bytes:
        """The record batch of a DATA entry, as `batch_in` finds it."""
        return batch_in(self.header, self.payload)


def batch_in(header: EntryHeader, payload: Buffer) -> Buffer:
    """Return the record batch in a DATA entry's payload. All code that reads records gets them here.

    A payload of version 1 is the batch, and so is one of version 3, which is made for readers of a PUBLISH entry. One
    of version 2 names the delayed batches that it publishes before the batch.
    Raises UnsupportedVersion for an entry that this build cannot read, CorruptData for one that is damaged.
    """
    if header.kind == Kind.DATA:
        if header.version in (ENTRY_VERSION, MADE_VERSION):
            return payload
        if header.version == PUBLISHED_VERSION:
            return unpack_published(payload)[1]
    raise UnsupportedVersion(f"an entry of kind {header.kind}, version {header.version}")


def takes_producer_numbers(header: EntryHeader) -> bool:
    """Does the batch of this entry take its producer's sequence numbers? All code that follows producers asks here.

    A delayed batch takes them where it is stored first, in a STAGED entry whose `schedule_id` is 0, and not where it is
    published. A transaction numbers its batches itself. Raises UnsupportedVersion for a DATA or STAGED entry of a
    version that is not in the table: a new one has to state it.
    """
    takes = _TAKES_NUMBERS.get((header.kind, header.version))
    if takes is None and header.kind in (Kind.DATA, Kind.STAGED):
        raise UnsupportedVersion(f"an entry of kind {header.kind}, version {header.version}")
    return takes is True


_TAKES_NUMBERS: Mapping[tuple[int, int], bool] = {  # by kind and version, of entries with a batch
    (Kind.DATA, ENTRY_VERSION): True,
    (Kind.DATA, PUBLISHED_VERSION): False,
    (Kind.STAGED, ENTRY_VERSION): True,
    (Kind.STAGED, TRANSACTIONAL_VERSION): False,
    (Kind.STAGED, COPIED_VERSION): False,
}


def make_entry(new: NewEntry, *, index: int, term: int, prev_crc: int, base_offset: int, append_time_us: int) -> Entry:
    """Pack `new` as the entry at `index`. `prev_crc` is the header_crc of the entry before it."""
    payload, max_timestamp_us = new.payload, new.max_timestamp_us
    fields = (  # all but header_crc, which covers them
        new.crc,
        prev_crc,
        len(payload),
        new.kind,
        new.version,
        0,  # reserved
        index,
        term,
        base_offset,
        new.record_count,
        append_time_us,
        append_time_us if max_timestamp_us is None else max_timestamp_us,
    )
    covered = _COVERED.pack(*fields)
    header_crc = crc32c(covered)
    return Entry(EntryHeader(header_crc, *fields), header_crc.to_bytes(4, "little") + covered, payload)


def pack_header(header: EntryHeader) -> bytes:
    """Return the 64 bytes from which `parse_header` made `header`."""
    return HEADER.pack(*_fields_of(header))


def parse_header(data: bytes | memoryview, position: int = 0) -> EntryHeader:
    """Unpack and verify the header at `position`. Raises CorruptData; the payload is not looked at."""
    if len(data) - position < HEADER_SIZE:
        raise CorruptData("truncated entry header", position=position)
    header = EntryHeader(*HEADER.unpack_from(data, position))
    if crc32c(bytes(data[position + 4 : position + HEADER_SIZE])) != header.header_crc:
        raise CorruptData("entry header checksum mismatch", position=position)
    # A correct checksum proves only that the header is as it was packed. A value out of range would still lead a
    # reader astray: a length makes it allocate, and signed 64-bit integers take no index, term or offset of 2^63.
    largest = max(header.index, header.term, header.base_offset + header.record_count)
    if header.length > PAYLOAD_BYTES_MAX or header.reserved or not header.index or largest >> 63:
        raise CorruptData("entry header out of range", position=position)
    return header


def parse_entry(data: bytes | memoryview, position: int = 0) -> Entry:
    """Unpack and verify header and payload. Raises CorruptData, also if the payload is cut short."""
    header = parse_header(data, position)
    start = position + HEADER_SIZE
    payload = bytes(data[start : start + header.length])
    if len(payload) != header.length:
        raise CorruptData("truncated entry payload", position=position, index=header.index)
    if crc32c(payload) != header.payload_crc:
        raise CorruptData("entry payload checksum mismatch", position=position, index=header.index)
    return Entry(header, bytes(data[position:start]), payload)


def iter_entries(data: bytes | memoryview) -> Iterator[Entry]:
    """All frames of `data`, verified one by one. Raises CorruptData unless `data` ends with a frame."""
    position = 0
    while position < len(data):
        entry = parse_entry(data, position)
        yield entry
        position += entry.size
