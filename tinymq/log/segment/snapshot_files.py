"""Applied states: what the state machine knew where a segment begins, kept as long as that segment.

offset size field
     0    8 magic         bytes "tinymqst"
     8    2 version       u16   1
    10    2 reserved      u16   0
    12    4 crc           u32   crc32c of everything else
    16    8 applied_index u64   the last entry that the state includes
    24    8 append_time   i64   that entry's append time, in microseconds
    32    4 entry_crc     u32   its header_crc: the state belongs to a log that holds this very entry
    36    4 reserved      u32   0
    40    … state
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tinymq.base.errors import CorruptData, UnsupportedVersion
from tinymq.format.entry import crc32c
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
    """What was applied up to and including the entry `index`, and what a log that begins behind it must know of it."""

    index: int
    entry_term: int
    entry_crc: int  # its header_crc, which the next entry chains to
    next_offset: int
    append_time_us: int
    data: bytes = field(repr=False)
    data_crc: int  # crc32c of data


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """One file, as read back."""

    applied_index: int
    append_time_us: int
    entry_crc: int
    state: bytes = field(repr=False)


def pack_snapshot(stored: StoredSnapshot) -> bytes:
    def head(crc: int) -> bytes:
        return _HEADER.pack(
            MAGIC, VERSION, 0, crc, stored.applied_index, stored.append_time_us, stored.entry_crc, 0
        )  # fmt: skip

    packed = head(0)
    return head(crc32c(stored.state, crc32c(packed[:12] + packed[16:]))) + stored.state


def parse_snapshot(head: bytes, state: bytes) -> StoredSnapshot:
    """From a file's first HEADER_SIZE bytes, and the rest. Raises CorruptData, or UnsupportedVersion when it is whole
    but newer."""
    if len(head) < HEADER_SIZE:
        raise CorruptData("truncated applied state")
    magic, version, _, crc, applied_index, append_time_us, entry_crc, _ = _HEADER.unpack(head)
    if magic != MAGIC or crc32c(state, crc32c(head[:12] + head[16:])) != crc:
        raise CorruptData("applied state checksum mismatch")
    if version != VERSION:
        raise UnsupportedVersion(f"an applied state of version {version}; this build reads {VERSION}")
    return StoredSnapshot(applied_index, append_time_us, entry_crc, state)


def read_state(files: Files, path: str, applied_index: int, entry_crc: int) -> StoredSnapshot:
    """The file at `path`, which is to hold the state at this very entry. Raises CorruptData. Blocks."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        raise CorruptData(f"{path} is missing", path=path) from None
    try:  # two reads: to cut a large state from what is before it would copy it, and hold the loop up, too
        stored = parse_snapshot(file.read(0, HEADER_SIZE), file.read(HEADER_SIZE, max(0, file.size() - HEADER_SIZE)))
    except CorruptData as error:
        raise CorruptData(f"{path}: {error.message}", path=path) from error
    finally:
        file.close()
    if (stored.applied_index, stored.entry_crc) != (applied_index, entry_crc):
        raise CorruptData(f"{path}: it is the state at another entry {stored.applied_index}", path=path)
    return stored


def read_base_snapshot(files: Files, first: SegmentHeader) -> Snapshot:
    """What was applied where this segment begins. Raises CorruptData. Blocks."""
    path = in_group(group_directory(first.group), first.first_index, SNAPSHOT)
    stored = read_state(files, path, first.first_index - 1, first.prev_crc)
    return Snapshot(
        stored.applied_index, first.prev_term, first.prev_crc, first.base_offset, stored.append_time_us, stored.state,
        crc32c(stored.state),
    )  # fmt: skip
