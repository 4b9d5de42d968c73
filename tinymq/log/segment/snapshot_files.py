"""Snapshots on disk: the state machine's dump where a segment begins, kept as long as that segment.

offset size field
     0    8 magic         bytes "tinymqst"
     8    2 version       u16   1
    10    2 reserved      u16   0
    12    4 crc           u32   crc32c of everything else
    16    8 applied_index u64   the last entry that the snapshot includes
    24    8 append_time   i64   that entry's append time, in microseconds
    32    4 entry_crc     u32   its header_crc: the snapshot belongs to a log that holds this very entry
    36    4 reserved      u32   0
    40    … state
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tinymq.base.errors import CorruptData
from tinymq.format.entry import crc32c
from tinymq.log.files.file_version import newer_version
from tinymq.log.files.files import Files
from tinymq.log.files.layout import SNAPSHOT, group_directory, in_group
from tinymq.log.segment.segment import SegmentHeader

MAGIC = b"tinymqst"
VERSION = 1
_HEADER = struct.Struct("<8sHHIQqII")
HEADER_SIZE = 40
assert _HEADER.size == HEADER_SIZE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine's dump after the entry `index`, and the facts that a log needs to begin behind that entry."""

    index: int
    entry_term: int
    entry_crc: int  # header_crc of the entry, to which the next one chains
    next_offset: int
    append_time_us: int
    data: bytes = field(repr=False)
    data_crc: int  # crc32c of data


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The content of one snapshot file."""

    applied_index: int
    append_time_us: int
    entry_crc: int
    state: bytes = field(repr=False)


def pack_snapshot(stored: StoredSnapshot) -> bytes:
    fields = (stored.applied_index, stored.append_time_us, stored.entry_crc, 0)
    packed = _HEADER.pack(MAGIC, VERSION, 0, 0, *fields)
    crc = crc32c(stored.state, crc32c(packed[:12] + packed[16:]))
    return _HEADER.pack(MAGIC, VERSION, 0, crc, *fields) + stored.state


def parse_snapshot(head: bytes, state: bytes) -> StoredSnapshot:
    """Parse a file's first HEADER_SIZE bytes, and the rest. Raises CorruptData, or UnsupportedVersion if the file is
    whole but newer."""
    if len(head) < HEADER_SIZE:
        raise CorruptData("truncated snapshot")
    magic, version, _, crc, applied_index, append_time_us, entry_crc, _ = _HEADER.unpack(head)
    if magic != MAGIC or crc32c(state, crc32c(head[:12] + head[16:])) != crc:
        raise CorruptData("snapshot checksum mismatch")
    if version != VERSION:
        raise newer_version("a snapshot", version, VERSION)
    return StoredSnapshot(applied_index, append_time_us, entry_crc, state)


def read_snapshot(files: Files, path: str, applied_index: int, entry_crc: int) -> StoredSnapshot:
    """Read the file at `path`, whose last entry must have this index and checksum. Raises CorruptData. Blocks."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        raise CorruptData(f"{path} is missing", path=path) from None
    try:
        # Two reads: cutting a large dump out of one read would copy it, and hold the loop up, too.
        stored = parse_snapshot(file.read(0, HEADER_SIZE), file.read(HEADER_SIZE, max(0, file.size() - HEADER_SIZE)))
    except CorruptData as error:
        raise CorruptData(f"{path}: {error.message}", path=path) from error
    finally:
        file.close()
    if (stored.applied_index, stored.entry_crc) != (applied_index, entry_crc):
        raise CorruptData(f"{path}: it is the snapshot of another entry {stored.applied_index}", path=path)
    return stored


def read_base_snapshot(files: Files, first: SegmentHeader) -> Snapshot:
    """Read the snapshot of everything before this segment. Raises CorruptData. Blocks."""
    path = in_group(group_directory(first.group), first.first_index, SNAPSHOT)
    stored = read_snapshot(files, path, first.first_index - 1, first.prev_crc)
    return Snapshot(
        index=stored.applied_index,
        entry_term=first.prev_term,
        entry_crc=first.prev_crc,
        next_offset=first.base_offset,
        append_time_us=stored.append_time_us,
        data=stored.state,
        data_crc=crc32c(stored.state),
    )
