"""A small file of numbered records, appended in place. Durability marks and votes are stored in such files.

    offset size field
         0    4 crc     u32  crc32c of bytes 4 to 24 + length
         4    4 length  u32  bytes of content
         8    4 magic   u32  tells marks from votes
        12    2 version u16  1
        14    2 kind    u16  1 changes, 2 complete (everything up to and including this record)
        16    8 number  u64  one more than that of the changes before; a complete record repeats the last number
        24    … content, then zeros up to a multiple of 8

A file begins with a complete record. Zeros fill it up to its size; they are written and synced beforehand, so that an
append changes no metadata, and its sync is a single write to the disk. A record is read whole or not at all, whichever
of its sectors a power cut has kept. When no room is left, a new file with a fresh complete record takes the place of
the old one: sync, rename, sync of the directory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tinymq.format.entry import crc32c
from tinymq.log.files.file_version import newer_version
from tinymq.log.files.files import File, Files

CHANGES = 1
COMPLETE = 2
VERSION = 1

_HEADER = struct.Struct("<IIIHHQ")
HEADER_SIZE = 24
_TAIL = struct.Struct("<IIHHQ")
assert _HEADER.size == HEADER_SIZE


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One record, as read back."""

    number: int
    kind: int
    content: bytes


def pack_record(magic: int, number: int, kind: int, content: bytes) -> bytes:
    """One record, padded."""
    rest = _TAIL.pack(len(content), magic, VERSION, kind, number) + content
    packed = crc32c(rest).to_bytes(4, "little") + rest
    return packed + bytes(-len(packed) % 8)


def parse_records(data: bytes, magic: int, record_bytes: int) -> Iterator[FileRecord]:
    """All whole records in `data`, in order; other bytes are skipped. The content of each is a multiple of
    `record_bytes`. Raises UnsupportedVersion for one of a newer version."""
    mark = magic.to_bytes(4, "little")
    position = 0
    while (at := data.find(mark, position + 8)) >= 0:
        position = at - 8
        if position % 8 == 0 and (found := _parse(data, position, magic, record_bytes)) is not None:
            yield found
            position += _padded(len(found.content))
        else:
            position += 1


def _padded(length: int) -> int:
    return (HEADER_SIZE + length + 7) // 8 * 8


def _parse(data: bytes, position: int, magic: int, record_bytes: int) -> FileRecord | None:
    if position + HEADER_SIZE > len(data):
        return None
    crc, length, found, version, kind, number = _HEADER.unpack_from(data, position)
    end = position + HEADER_SIZE + length
    if found != magic or end > len(data) or crc32c(data[position + 4 : end]) != crc:
        return None
    if version != VERSION:
        raise newer_version("a file of records", version, VERSION)
    if length % record_bytes:
        return None
    return FileRecord(number, kind, data[position + HEADER_SIZE : end])


class RecordFile:
    """A file of records, open for appending. Used by one thread at a time."""

    def __init__(self, file: File, magic: int, size: int, position: int) -> None:
        self._magic = magic
        self._size = size  # zeros are written and synced up to here
        self._position = position  # end of the last record
        self.file = file

    @classmethod
    def replace(cls, files: Files, path: str, magic: int, number: int, content: bytes, size_min: int) -> RecordFile:
        """Put a new file in the place of `path`, with one complete record. Its content is durable, its name is not: the
        caller syncs the directory before it relies on the file. Raises StorageError, with the old file in place."""
        complete = pack_record(magic, number, COMPLETE, content)
        size = max(size_min, 4 * len(complete))
        new = path + ".new"
        files.remove(new)
        file = files.open(new, create=True)
        try:
            file.write(0, [complete, bytes(size - len(complete))])
            files.sync([file])
        finally:
            file.close()
        files.rename(new, path)
        return cls(files.open(path), magic, size, len(complete))

    def has_room(self, length: int) -> bool:
        """Whether a record with `length` bytes of content still fits."""
        return self._position + _padded(length) <= self._size

    def append(self, number: int, content: bytes) -> None:
        """Write a record of changes; it is durable after `Files.sync` of `file`. Asserts that it fits."""
        assert self.has_room(len(content))
        packed = pack_record(self._magic, number, CHANGES, content)
        self.file.write(self._position, [packed])
        self._position += len(packed)


def read_whole(files: Files, path: str) -> bytes | None:
    """All bytes of a small file; None if it does not exist."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()
