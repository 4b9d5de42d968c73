"""What a power cut would take back: a journal of changes to a data folder that are not synced, kept on the same disk.

    <data folder>/.unsynced/journal    a record before each change, and after each sync
                           /kept/<id>  another name of a file whose own was removed or replaced, until that is durable
                           /boot       which start of the machine this is: 16 bytes, once a power cut has made another

    # | length u32 | kind u8 | file u64 | a u64 | b u64 | c u64 | sequence u64 | payload |

The journal is written, never synced: like the page cache it outlives the process and not the machine, and a harness
has no real power cuts to fear. A record that is cut short is the last one, and its change was not begun.
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
    """What a record tells, and what its fields a, b, c and its payload are."""

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
"""Changes of names, which a sync of their folder makes durable."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    kind: ChangeKind
    sequence: int  # grows from record to record, with gaps
    file: int  # a number that means one file within one journal; 0: none
    a: int
    b: int
    c: int
    payload: bytes

    @property
    def path(self) -> str:
        """Of a name, or the old one of a rename."""
        return self.payload.decode().partition("\0")[0]

    @property
    def new_path(self) -> str:
        return self.payload.decode().partition("\0")[2]


class Journal:
    """Records in the order in which they were added. Not safe for two threads at once."""

    def __init__(self, data: Path) -> None:
        """Goes on where the last process ended."""
        self._folder = data / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "kept").mkdir(exist_ok=True)
        self.sequence = self.files = self.bytes = 0
        for record in read(data):
            self.sequence = record.sequence
            self.files = max(self.files, record.file)  # whose name a RENAME replaced has been in a record before
            self.bytes += _HEAD.size + len(record.payload)
        self._fd = os.open(self._folder / "journal", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, self.bytes)  # a record that was cut short

    def add(self, kind: ChangeKind, file: int = 0, a: int = 0, b: int = 0, c: int = 0, payload: bytes = b"") -> int:
        """The record's sequence number; the record outlives the process."""
        assert len(payload) < _PAYLOAD_BYTES_MAX, "a change of so many bytes cannot be taken back"
        self.sequence += 1
        head = _HEAD.pack(len(payload), kind, file, a, b, c, self.sequence)
        parts = [head, payload] if payload else [head]
        written, whole = os.pwritev(self._fd, parts, self.bytes), len(head) + len(payload)
        assert written == whole, "no room for the journal"
        self.bytes += whole
        return self.sequence

    def new_file(self) -> int:
        """A number that no file has."""
        self.files += 1
        return self.files

    def keep(self, path: Path, file: int) -> None:
        """Give the file at `path` another name, before it loses the one that it has."""
        kept = self._folder / "kept" / str(file)
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)

    def cut(self, size: int) -> None:
        """Take back what was added since the journal had so many bytes."""
        os.ftruncate(self._fd, size)
        self.bytes = size

    def clear(self) -> None:
        """Everything is durable, or taken for it."""
        self.cut(0)
        for kept in os.scandir(self._folder / "kept"):
            os.unlink(kept.path)

    def close(self) -> None:
        os.close(self._fd)


def read(data: Path) -> Iterator[JournalRecord]:
    """The journal of a data folder; nothing if there is none."""
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
    """After a power cut: what is on the disk is durable, and this is another start of the machine."""
    (data / FOLDER / "kept").mkdir(parents=True, exist_ok=True)
    for kept in (data / FOLDER / "kept").iterdir():
        kept.unlink()
    (data / FOLDER / "journal").write_bytes(b"")
    (data / FOLDER / "boot").write_bytes(boot)


def read_boot(data: Path) -> bytes:
    """b"": no power cut yet; the machine's own id holds."""
    try:
        return (data / FOLDER / "boot").read_bytes()
    except FileNotFoundError:
        return b""
