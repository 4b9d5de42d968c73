"""Beginning a log on disk: with a group's first entry, or behind an applied state that stands for all before it.

A log that begins behind a state takes the place of an older one in the same folder, by one switch, the mark:

    1. what the older one holds at or above the state's index is cut away; it was never committed
    2. a segment without entries and the state, both of the state's index + 1; synced, and then their names
    3. the mark: the log begins there, and is durable up to there
    4. what the older one left is removed

Before 3 opening finds the older log, with a segment behind it that does not follow and is torn; after it, the new
one, and leftovers below where the log begins.
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
)  # fmt: skip
from tinymq.log.replica_log.recovery import Recovered
from tinymq.log.segment.segment import Segment, SegmentHeader, pack_segment_header
from tinymq.log.segment.snapshot_files import Snapshot, StoredSnapshot, pack_snapshot


def create_log(files: Files, group: GroupId, first: Entry, count: int) -> Recovered:
    """A log that holds `first` alone; durable. Whatever is in its folder goes."""
    folder = group_directory(group)
    files.remove_tree(folder)  # of a creation that was cut short, before anything was answered
    files.make_directory(folder)
    header = SegmentHeader(group, 1, first.header.base_offset, 0, 0)
    segment = Segment(header, in_group(folder, 1, SEGMENT))
    written = [_written(files, segment.path, [pack_segment_header(header), first.head, first.payload])]
    if count:
        written.append(_written(files, f"{folder}/{count_name(count)}", []))
    _sync(files, written)
    sync_directories(files, group)
    segment.append(first.header)
    recovered = Recovered(segments=[segment])
    recovered.terms.note(first.index, first.term)
    return recovered


def begin_behind(files: Files, group: GroupId, applied: Snapshot) -> Recovered:
    """Step 2. The folder is there, and the log in it holds nothing at or above the state's index."""
    folder, first_index = group_directory(group), applied.index + 1
    header = SegmentHeader(group, first_index, applied.next_offset, applied.entry_term, applied.entry_crc)
    segment = Segment(header, in_group(folder, first_index, SEGMENT))
    state = pack_snapshot(StoredSnapshot(applied.index, applied.append_time_us, applied.entry_crc, applied.data))
    written = [
        _written(files, segment.path, [pack_segment_header(header)]),
        _written(files, in_group(folder, first_index, SNAPSHOT), [state]),
    ]
    _sync(files, written)
    files.sync_directory(folder)
    return Recovered(
        segments=[segment], snapshots={applied.index}, applied_index=applied.index, snapshot=applied.data,
        base_time_us=applied.append_time_us,
    )  # fmt: skip


def mark_behind(group: GroupId, applied: Snapshot, count: int, fault_count: int | None) -> DurabilityMark:
    """Step 3: the switch."""
    return DurabilityMark(
        group, count, 0, applied.entry_crc, applied.index + 1, applied.index, applied.entry_term, applied.index + 1, 0,
        applied.index, applied.index, fault_count,
    )  # fmt: skip


def remove_below(files: Files, group: GroupId, first_index: int) -> None:
    """Step 4. Not synced: what comes back after a crash is removed when the log is opened."""
    folder = group_directory(group)
    for name in files.list(folder):
        at = [at for kind in (SEGMENT, INDEX, SNAPSHOT) if (at := first_index_of(name, kind)) is not None]
        if at and at[0] < first_index:
            files.remove(f"{folder}/{name}")


def sync_directories(files: Files, group: GroupId) -> None:
    """Make the names of the group's files durable, and those of the folders that they are in."""
    for folder in (group_directory(group), topic_directory(group), GROUPS, ""):
        files.sync_directory(folder)


def _written(files: Files, path: str, chunks: list[bytes]) -> File:
    """A file that holds the chunks and nothing else, open and not synced."""
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
