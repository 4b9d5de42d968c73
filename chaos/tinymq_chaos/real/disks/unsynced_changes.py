"""The changes that a power cut would take back: a journal of unsynced changes to a data directory, on the same disk.

    <data directory>/.unsynced/journal    a record before each change, and after each sync
                              /kept/<id>  another name of a file that was removed or replaced, until that is durable
                              /boot       the boot id: 16 bytes, once a power cut has made another one

    # | length u32 | kind u8 | file u64 | a u64 | b u64 | c u64 | sequence u64 | payload |

The journal is written and never synced. Like the page cache, it outlives the process and not the machine, and a harness
fears no real power cuts. A record that is cut short is the last one, and its change was not made.
"""

from __future__ import annotations

import contextlib
import enum
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = ".unsynced"
_HEAD = struct.Struct("<IBQQQQQ")
_PAYLOAD_BYTES_MAX = 1 << 31


class ChangeKind(enum.IntEnum):
    """The kinds of records, and the meaning of the fields a, b, c and the payload."""

    OPEN = 1  # the file has this name                                        payload: path
    CREATE = 2  # a file is made                                              payload: path
    MAKE_FOLDER = 3  #                                                        payload: path
    REMOVE = 4  # a file's name is removed                                    payload: path
    REMOVE_FOLDER = 5  # an empty one                                         payload: path
    RENAME = 6  # a: the file whose name is replaced, 0: none                 payload: old path, NUL, new path
    SYNCED_FOLDER = 7  # a: names that changed up to this record are durable  payload: path
    WRITE = 8  # a: position, b: length, c: size before                       payload: bytes before; none: zeros
    TRUNCATE = 9  # a: new size, c: size before                               payload: bytes that are cut off
    SYNCED = 10  # a: content up to this record is durable
    SYNC_FAILED = 11  # a: content up to this record is called durable, and is not


NAMES = frozenset(
    {ChangeKind.CREATE, ChangeKind.MAKE_FOLDER, ChangeKind.REMOVE, ChangeKind.REMOVE_FOLDER, ChangeKind.RENAME}
)
"""Changes of names, which a sync of their directory makes durable."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    kind: ChangeKind
    sequence: int  # grows from record to record, with gaps
    file: int  # a number for one file within one journal; 0: none
    a: int
    b: int
    c: int
    payload: bytes

    @property
    def path(self) -> str:
        """Return the path of a name, or the old path of a rename."""
        return self.payload.decode().partition("\0")[0]

    @property
    def new_path(self) -> str:
        return self.payload.decode().partition("\0")[2]


class Journal:
    """The records in the order in which they were added. Two threads must not use it at once."""

    def __init__(self, data: Path) -> None:
        """Continue the journal of the last process."""
        self._folder = data / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "kept").mkdir(exist_ok=True)
        self.sequence = self.files = self.bytes = 0
        for record in read(data):
            self.sequence = record.sequence
            self.files = max(self.files, record.file)  # record.a of a RENAME is in an earlier record
            self.bytes += _HEAD.size + len(record.payload)
        self._fd = os.open(self._folder / "journal", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, self.bytes)  # cut off an incomplete record

    def add(self, kind: ChangeKind, file: int = 0, a: int = 0, b: int = 0, c: int = 0, payload: bytes = b"") -> int:
        """Add a record, which outlives the process; return its sequence number."""
        assert len(payload) < _PAYLOAD_BYTES_MAX, "a change of this size cannot be taken back"
        self.sequence += 1
        head = _HEAD.pack(len(payload), kind, file, a, b, c, self.sequence)
        parts = [head, payload] if payload else [head]
        written, whole = os.pwritev(self._fd, parts, self.bytes), len(head) + len(payload)
        assert written == whole, "no room for the journal"
        self.bytes += whole
        return self.sequence

    def new_file(self) -> int:
        """Return a number that no file has."""
        self.files += 1
        return self.files

    def keep(self, path: Path, file: int) -> None:
        """Give the file at `path` another name, before it loses this one."""
        kept = self._folder / "kept" / str(file)
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)

    def cut(self, size: int) -> None:
        """Remove the records after the first `length` bytes."""
        os.ftruncate(self._fd, size)
        self.bytes = size

    def clear(self) -> None:
        """Remove all records: everything is durable, or counts as durable."""
        self.cut(0)
        for kept in os.scandir(self._folder / "kept"):
            os.unlink(kept.path)

    def close(self) -> None:
        os.close(self._fd)


def read(data: Path) -> Iterator[JournalRecord]:
    """Return the journal of a data directory; empty if there is none."""
    try:
        content = (data / FOLDER / "journal").read_bytes()
    except FileNotFoundError:
        return
    at = 0
    while at + _HEAD.size <= len(content):
        length, kind, file, a, b, c, sequence = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        if at + length > len(content):
            return
        yield JournalRecord(ChangeKind(kind), sequence, file, a=a, b=b, c=c, payload=content[at : at + length])
        at += length


def kept_path(data: Path, file: int) -> Path:
    return data / FOLDER / "kept" / str(file)


def forget(data: Path, boot: bytes) -> None:
    """After a power cut: everything on the disk is durable, and the machine has another boot id."""
    (data / FOLDER / "kept").mkdir(parents=True, exist_ok=True)
    for kept in (data / FOLDER / "kept").iterdir():
        kept.unlink()
    (data / FOLDER / "journal").write_bytes(b"")
    (data / FOLDER / "boot").write_bytes(boot)


def read_boot(data: Path) -> bytes:
    """Return the boot id; b"" before any power cut, when the machine's own id is right."""
    try:
        return (data / FOLDER / "boot").read_bytes()
    except FileNotFoundError:
        return b""
