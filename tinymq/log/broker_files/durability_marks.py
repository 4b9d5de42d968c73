"""Durability marks: how far each Raft group's log is known to be durable, in one file per broker.

    offset size field
         0   16 topic id        bytes  all zero for the metadata group
        16    4 partition       u32
        20    4 count           u32    incarnation count of this group on this broker (docs/raft.md, 22)
        24    1 flags           u8     1 suspect, 2 tail lost, 4 forgotten, 8 being deleted,
                               16 being quarantined, 32 damaged, 64 lazy, 128 risks are counted
        25    3 risks           u24    how many of the latest raises of the count were due to risks that the topic
                               accepts; no meaning without flag 128, which earlier versions do not set
        28    4 crc             u32    header_crc of the marked entry
        32    8 first_index     u64    the log begins with this entry
        40    8 index           u64    the marked entry: it and all before it are durable; 0: nothing yet
        48    8 term            u64
        56    8 segment         u64    first index of the segment that has the marked entry
        64    8 position        u64    of its frame in that segment
        72    8 commit          u64    commit index when the mark was made
        80    8 snapshot_index  u64    last entry of the newest durable snapshot; 0: none

The invariant of a durable mark: whichever records of this file survive a crash, the newest surviving mark of each group
is true:

1. The marked entry and all before it are on the disk. So a mark is written after the sync that it describes, and a
   later sync makes it durable: it may lag behind the log, but never leads it. Before an entry at or below the mark is
   cut away, the mark is lowered, and the lowered mark is synced.
2. If an entry counts before it is on the disk (sync=<ms>), the mark says LAZY. No caller decides on that flag: a mark
   may be noted while everything is synced, and written when the topic's setting has changed and entries count unsynced.
   `expose` is called before the first unsynced entry counts, and `cover` after the sync that includes the last one.
   `write`, through which every mark reaches the file, adds LAZY to every mark in between.

Why a count was raised decides whether the group may later recover its quorum by itself, so the same record has the
count and the reason. Either the topic's setting accepted the risk (memory; a power cut or a failed sync under LAZY), or
there was a fault, which no setting accepts (`fault_count`).

The file lists every group ever opened here until the group is deleted. So a directory that is lost differs from one
that was never made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from tinymq.base.errors import DiskFull
from tinymq.base.types import GroupId, TopicId
from tinymq.base.value import value
from tinymq.log.files.files import File, Files
from tinymq.log.files.layout import MARKS
from tinymq.log.files.record_file import COMPLETE, RecordFile, parse_records, read_whole

MAGIC = int.from_bytes(b"tqmk", "little")
FILE_BYTES_MIN = 1 << 20

SUSPECT = 1  # a damaged part of the file may have had a newer mark of this group
TAIL_LOST = 2  # the marked entry was missing or damaged at opening, and the count was raised because of that
FORGOTTEN = 4  # the group was deleted
DELETING = 8  # its directory is being removed and no longer counts
QUARANTINING = 16  # its directory no longer counts, and is being moved to quarantine (damaged_logs.py)
DAMAGED = 32  # a read found damage, which opening the log might not find again
LAZY = 64  # entries above the mark may be acknowledged, and in the page cache alone (boot_id.py)
_RISKS_COUNTED = 128  # in the file only: see `fault_count`
_FLAG_BITS, _RISKS_MAX = 8, (1 << 24) - 1

_RECORD = struct.Struct("<16sIIIIQQQQQQQ")
RECORD_SIZE = 88
assert _RECORD.size == RECORD_SIZE


@value
class DurabilityMark:
    """One group's record, with the fields of the drawing."""

    group: GroupId
    count: int = 0
    flags: int = 0
    crc: int = 0
    first_index: int = 1
    index: int = 0
    term: int = 0
    segment: int = 0
    position: int = 0
    commit: int = 0
    snapshot_index: int = 0
    # The count to which the last fault has raised it; None: an earlier version wrote the mark, and does not say.
    # invariant: fault_count <= count. If an identity with a count of at least fault_count ended, only risks ended it.
    fault_count: int | None = 0

    def lowered_to(self, other: DurabilityMark) -> DurabilityMark:
        """Return a mark with the lower end and the higher beginning of the two, and with this mark's flags."""
        lower = other if other.index < self.index else self
        return replace(
            lower, first_index=max(self.first_index, other.first_index), flags=self.flags, fault_count=self.fault_count
        )

    def raised_by_fault(self, *, flags: int = 0) -> DurabilityMark:
        """Return a new identity, with `flags` added, because entries of this one may be lost although no setting allows
        that."""
        return replace(self, count=self.count + 1, flags=self.flags | flags, fault_count=self.count + 1)


@value
class LoadedMarks:
    """The content of the file at opening."""

    marks: dict[GroupId, DurabilityMark]
    number: int  # of the last record
    complete: bool  # nothing but a torn end was unreadable; otherwise marks of groups on disk may be missing


def pack_mark(mark: DurabilityMark) -> bytes:
    flags = mark.flags
    if mark.fault_count is not None:
        flags |= _RISKS_COUNTED | min(mark.count - mark.fault_count, _RISKS_MAX) << _FLAG_BITS
    fields = (  # in the order of the drawing
        mark.group.topic_id,
        mark.group.partition,
        mark.count,
        flags,  # and in its upper 24 bits the risks
        mark.crc,
        mark.first_index,
        mark.index,
        mark.term,
        mark.segment,
        mark.position,
        mark.commit,
        mark.snapshot_index,
    )
    return _RECORD.pack(*fields)


def unpack_marks(content: bytes) -> Iterable[DurabilityMark]:
    """The marks in the content of one record."""
    for topic, partition, count, flags, *rest in _RECORD.iter_unpack(content):
        faults = max(0, count - (flags >> _FLAG_BITS)) if flags & _RISKS_COUNTED else None
        mark = DurabilityMark(GroupId(TopicId(topic), partition), count, flags & _RISKS_COUNTED - 1, *rest)
        yield mark if mark.fault_count == faults else replace(mark, fault_count=faults)


def load_marks(files: Files) -> LoadedMarks:
    """Read the file. Damage is no error here: the marks that it puts in doubt get the flag SUSPECT."""
    data = read_whole(files, MARKS)
    if data is None:
        return LoadedMarks({}, 0, complete=False)
    marks: dict[GroupId, DurabilityMark] = {}
    last: int | None = None  # number of the last record read; None before the first complete one
    complete = True
    for record in parse_records(data, MAGIC, RECORD_SIZE):
        if record.kind == COMPLETE:
            marks.clear()
        elif last is None or record.number != last + 1:
            # A record is missing in the middle. Any group may have had a newer mark in it.
            complete = False
            marks = {group: replace(mark, flags=mark.flags | SUSPECT) for group, mark in marks.items()}
        last = record.number
        _apply(marks, unpack_marks(record.content))
    return LoadedMarks(marks, last or 0, complete=complete and last is not None)


class DurabilityMarks:
    """The file while the broker runs. Owned by opening, and then by the writer job."""

    def __init__(self, files: Files, loaded: LoadedMarks) -> None:
        """Replace the file by a fresh one and sync it: the bytes read may exist only in the page cache."""
        self._files = files
        self._marks = dict(loaded.marks)
        self._number = loaded.number
        self._records = self._replace(self._marks)
        self._noted: dict[GroupId, DurabilityMark] = {}  # the next `flush` writes them
        self._exposed: set[GroupId] = set()  # groups with unsynced entries that count, or are about to count
        self._dirty = False  # appended to since its last sync

    def get(self, group: GroupId) -> DurabilityMark | None:
        """The mark in the file."""
        return self._marks.get(group)

    def groups(self) -> list[GroupId]:
        """Every group ever opened here and not deleted since."""
        return list(self._marks)

    def note(self, mark: DurabilityMark) -> None:
        """Let the next `flush` write the mark. The entries that it covers are durable. `write` decides on LAZY."""
        self._noted[mark.group] = mark

    def expose(self, group: GroupId) -> None:
        """From now on entries of the group count before their sync. Before the caller writes the first of them, it
        makes a mark durable that says so."""
        self._exposed.add(group)

    def cover(self, group: GroupId) -> None:
        """End `expose`: every entry that counts is synced, or the group's log was released, so no new entry counts
        under this mark."""
        self._exposed.discard(group)

    def note_commits(self, known: Mapping[GroupId, int]) -> None:
        """Note the commit indexes of these groups, each at most as high as the mark's own index."""
        for group, commit in known.items():
            mark = self._noted.get(group) or self._marks.get(group)
            if mark is not None and mark.commit < min(commit, mark.index):
                self.note(replace(mark, commit=min(commit, mark.index)))

    def unnote(self, group: GroupId) -> None:
        """Forget the noted mark of the group, which is no longer true."""
        self._noted.pop(group, None)

    def flush(self) -> list[File]:
        """Write the noted marks. Returns the files whose sync makes them durable. If the disk has no room for a new
        file, the marks wait: a mark that rises may lag."""
        with suppress(DiskFull):
            self.write(list(self._noted.values()))
        return [self._records.file] if self._dirty else []

    def write(self, changed: list[DurabilityMark]) -> None:
        """Append the marks to the file. One with FORGOTTEN removes its group. Raises DiskFull with nothing changed."""
        if not changed:
            return
        changed = [replace(m, flags=m.flags | LAZY) if m.group in self._exposed else m for m in changed]
        content = b"".join(map(pack_mark, changed))
        if self._records.has_room(len(content)):
            self._records.append(self._number + 1, content)
            self._number += 1
            self._dirty = True
            _apply(self._marks, changed)
        else:
            after = dict(self._marks)
            _apply(after, changed)
            records = self._replace(after)
            self._records.file.close()
            self._records, self._marks, self._dirty = records, after, False
        for mark in changed:
            self._noted.pop(mark.group, None)

    def sync(self) -> None:
        """Make durable everything that was written. Raises SyncFailed."""
        if self._dirty:
            self._files.sync([self._records.file])
            self._dirty = False

    def synced(self) -> None:
        """The files that `flush` named were synced."""
        self._dirty = False

    def close(self) -> None:
        self._records.file.close()

    def _replace(self, marks: dict[GroupId, DurabilityMark]) -> RecordFile:
        content = b"".join(map(pack_mark, marks.values()))
        records = RecordFile.replace(self._files, MARKS, MAGIC, self._number, content, FILE_BYTES_MIN)
        self._files.sync_directory("")
        return records


def _apply(marks: dict[GroupId, DurabilityMark], changed: Iterable[DurabilityMark]) -> None:
    for mark in changed:
        if mark.flags & FORGOTTEN:
            marks.pop(mark.group, None)
        else:
            marks[mark.group] = mark
