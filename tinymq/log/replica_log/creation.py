"""Creation of a log on disk: with a group's first entry, or behind a snapshot that stands for all entries before it.

A log that begins behind a snapshot replaces an older one in the same directory. The mark is the one switch:

    1. entries of the older log at or above the snapshot's index are cut away; they were never committed
    2. a segment without entries, and the snapshot, are written; both are named by the snapshot's index + 1. They are
       synced, and then their names
    3. the mark says that the log begins there, and is durable up to there
    4. the rest of the older log is removed

A start before step 3 is durable opens the older log. The new segment does not follow its last entry, so it is torn.
After step 3 it opens the new one, and removes everything below the log's first index.
"""

from __future__ import annotations

from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.durability_marks import DurabilityMark
from tinymq.log.files.files import File, Files
from tinymq.log.files.layout import (
    GROUPS,
    INDEX,
    SEGMENT,
    SNAPSHOT,
    count_name,
    first_index_of,
    group_directory,
    in_group,
    topic_directory,
)
from tinymq.log.replica_log.recovery import Recovered
from tinymq.log.segment.segment import Segment, SegmentHeader, pack_segment_header
from tinymq.log.segment.snapshot_files import Snapshot, StoredSnapshot, pack_snapshot


def create_log(files: Files, group: GroupId, first: Entry, count: int) -> Recovered:
    """Create a log that has only the entry `first`; durable. Everything in the group's directory is removed."""
    directory = group_directory(group)
    files.remove_tree(directory)  # left by a creation that was cut short, before any answer was given
    files.make_directory(directory)
    header = SegmentHeader(group, first_index=1, base_offset=first.header.base_offset, prev_term=0, prev_crc=0)
    segment = Segment(header, in_group(directory, 1, SEGMENT))
    written = [_written(files, segment.path, [pack_segment_header(header), first.head, first.payload])]
    if count:
        written.append(_written(files, f"{directory}/{count_name(count)}", []))
    _sync(files, written)
    sync_directories(files, group)
    segment.append(first.header)
    recovered = Recovered(segments=[segment])
    recovered.terms.note(first.index, first.term)
    return recovered


def begin_behind(files: Files, group: GroupId, snapshot: Snapshot) -> Recovered:
    """Step 2. The directory exists, and the log in it has no entry at or above the snapshot's index."""
    directory, first_index = group_directory(group), snapshot.index + 1
    header = SegmentHeader(
        group,
        first_index=first_index,
        base_offset=snapshot.next_offset,
        prev_term=snapshot.entry_term,
        prev_crc=snapshot.entry_crc,
    )
    segment = Segment(header, in_group(directory, first_index, SEGMENT))
    stored = StoredSnapshot(snapshot.index, snapshot.append_time_us, snapshot.entry_crc, snapshot.data)
    written = [
        _written(files, segment.path, [pack_segment_header(header)]),
        _written(files, in_group(directory, first_index, SNAPSHOT), [pack_snapshot(stored)]),
    ]
    _sync(files, written)
    files.sync_directory(directory)
    return Recovered(
        segments=[segment],
        snapshots={snapshot.index},
        applied_index=snapshot.index,
        snapshot=snapshot.data,
        base_time_us=snapshot.append_time_us,
    )


def mark_behind(group: GroupId, snapshot: Snapshot, count: int, fault_count: int | None) -> DurabilityMark:
    """Step 3: the mark that switches to the new log."""
    return DurabilityMark(
        group,
        count=count,
        crc=snapshot.entry_crc,
        first_index=snapshot.index + 1,
        index=snapshot.index,
        term=snapshot.entry_term,
        segment=snapshot.index + 1,
        position=0,
        commit=snapshot.index,
        snapshot_index=snapshot.index,
        fault_count=fault_count,
    )


def remove_below(files: Files, group: GroupId, first_index: int) -> None:
    """Step 4. It is not synced: a file that is back after a crash is removed when the log is opened."""
    directory = group_directory(group)
    for name in files.list(directory):
        firsts = [first for kind in (SEGMENT, INDEX, SNAPSHOT) if (first := first_index_of(name, kind)) is not None]
        if firsts and firsts[0] < first_index:
            files.remove(f"{directory}/{name}")


def sync_directories(files: Files, group: GroupId) -> None:
    """Make the names of the group's files durable, and those of the directories above."""
    for directory in (group_directory(group), topic_directory(group), GROUPS, ""):
        files.sync_directory(directory)


def _written(files: Files, path: str, chunks: list[bytes]) -> File:
    """An open file that holds the chunks and nothing else. It is not synced."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, chunks)
    except BaseException:
        file.close()
        raise
    return file


def _sync(files: Files, written: list[File]) -> None:
    try:
        files.sync(written)
    finally:
        for file in written:
            file.close()
