"""Quarantine of a damaged log: its files are moved out of the way, and kept until its replica is a member again.

They may be the group's last copy, which no machine removes. Each step is durable before the next one:

    1. the quarantine directory is made, with a file that says how far the log was known to be committed
    2. the mark says count + 1, nothing durable, QUARANTINING, and no fault: the leader has granted this with a
       majority of other replicas, so the group does not need what this replica held (raft/host/repair.py). From here
       on the log no longer counts
    3. its files are moved, one by one; an earlier file of the same name stays there, and the newer one is removed
    4. the mark drops QUARANTINING, and a log can begin in the empty directory

After a crash, QUARANTINING in the mark says that step 3 has to be repeated. If an earlier log of the group is still in
quarantine, the new one is removed instead (DELETING): its replica was no member since, so the earlier log has more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinymq.base.types import GroupId
from tinymq.log.broker_files.durability_marks import DELETING, QUARANTINING, SUSPECT, DurabilityMark
from tinymq.log.files.files import Files
from tinymq.log.files.layout import (
    QUARANTINE,
    SEGMENT,
    commit_name,
    commit_of,
    count_of,
    first_index_of,
    group_directory,
    quarantine_directory,
)  # fmt: skip


def has_quarantined(files: Files, group: GroupId) -> bool:
    """Whether an earlier log of the group is in quarantine."""
    return any(first_index_of(name, SEGMENT) is not None for name in files.list(quarantine_directory(group)))


def quarantined_commit(files: Files, group: GroupId) -> int:
    """The last known commit index of the log in quarantine; 0 if there is none."""
    return max((c for name in files.list(quarantine_directory(group)) if (c := commit_of(name)) is not None), default=0)


def prepare_quarantine(files: Files, group: GroupId, commit: int) -> None:
    """Step 1. Anything else in the quarantine directory is removed."""
    directory = quarantine_directory(group)
    files.remove_tree(directory)
    files.make_directory(directory)
    file = files.open(f"{directory}/{commit_name(commit)}", create=True)
    try:
        files.sync([file])
    finally:
        file.close()
    for changed in (directory, QUARANTINE, ""):
        files.sync_directory(changed)


def move_to_quarantine(files: Files, group: GroupId) -> None:
    """Step 3. It can be repeated after a crash, and continues where it was."""
    source, target = group_directory(group), quarantine_directory(group)
    files.make_directory(target)
    for name in files.list(source):
        if files.exists(f"{target}/{name}"):
            files.remove(f"{source}/{name}")
        else:
            files.rename(f"{source}/{name}", f"{target}/{name}")
    for changed in (target, QUARANTINE, ""):
        files.sync_directory(changed)
    if files.exists(source):
        files.sync_directory(source)


def remove_quarantined(files: Files, group: GroupId) -> None:
    """Remove the log in quarantine, if there is one; durable."""
    if files.exists(quarantine_directory(group)):
        files.remove_tree(quarantine_directory(group))
        files.sync_directory(QUARANTINE)


def count_on_disk(files: Files, group: GroupId) -> int:
    """The greatest count with which a log of the group began, according to the files in its directories.

    The marks know it exactly; this is for the case that they are lost. If a count came twice, entries that one log has
    acknowledged would count for another.
    """
    names = (*files.list(group_directory(group)), *files.list(quarantine_directory(group)))
    return max((count for name in names if (count := count_of(name)) is not None), default=0)


def settle(files: Files, mark: DurabilityMark, put_mark: Callable[[DurabilityMark], None]) -> DurabilityMark:
    """Finish the steps that the mark names as unfinished, and return the resulting mark."""
    group = mark.group
    if mark.flags & SUSPECT:  # the mark that was lost may have had a higher count, which the disk shows
        known = max(mark.count, count_on_disk(files, group))
        faults = known if known > mark.count else mark.fault_count
        mark = replace(mark, count=known + 1 if mark.flags & QUARANTINING else known, fault_count=faults)
    if mark.flags & DELETING:
        files.remove_tree(group_directory(group))
    if mark.flags & QUARANTINING:
        move_to_quarantine(files, group)
        mark = DurabilityMark(group, count=mark.count)
        # The mark is written before a log begins in the directory: with the old mark, a start after a crash would
        # quarantine the new log, too.
        put_mark(mark)
    return mark
