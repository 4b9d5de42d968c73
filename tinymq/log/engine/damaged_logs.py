"""Setting a damaged log aside: its files are moved out of the way and kept until its replica is a member again.

What may be its group's last copy is not removed by a machine. Each step is durable before the next one:

    1. the aside folder, and in it how far the log was known to be committed
    2. the mark: count + 1, nothing durable, QUARANTINING, and no fault: the leader has granted this with a
       majority of other replicas, so the group does not need what this replica held (raft/host/repair.py). From here
       on the log no longer counts
    3. its files, one by one; a file of an earlier time that is there already stays, and the newer one goes
    4. the mark without QUARANTINING; then an empty folder, in which a log can begin

After a crash, QUARANTINING in the mark says that step 3 has to be repeated. If an earlier log of the group is still
aside, the new one is removed instead (DELETING): its replica was no member since, so the earlier log holds more.
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
    """Whether an earlier log of the group is kept."""
    return any(first_index_of(name, SEGMENT) is not None for name in files.list(quarantine_directory(group)))


def quarantined_commit(files: Files, group: GroupId) -> int:
    """How far the log that is kept was known to be committed; 0 when there is none."""
    return max((c for name in files.list(quarantine_directory(group)) if (c := commit_of(name)) is not None), default=0)


def prepare_quarantine(files: Files, group: GroupId, commit: int) -> None:
    """Step 1; whatever else is there goes."""
    folder = quarantine_directory(group)
    files.remove_tree(folder)
    files.make_directory(folder)
    file = files.open(f"{folder}/{commit_name(commit)}", create=True)
    try:
        files.sync([file])
    finally:
        file.close()
    for changed in (folder, QUARANTINE, ""):
        files.sync_directory(changed)


def move_to_quarantine(files: Files, group: GroupId) -> None:
    """Step 3. Doing it again goes on where it was."""
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
    """It is needed no more; durable."""
    if files.exists(quarantine_directory(group)):
        files.remove_tree(quarantine_directory(group))
        files.sync_directory(QUARANTINE)


def count_on_disk(files: Files, group: GroupId) -> int:
    """The greatest count that logs of the group were begun with, as far as their folders tell: for when the marks,
    which know better, are lost. A count that came twice would let what one log acknowledged count for another."""
    names = (*files.list(group_directory(group)), *files.list(quarantine_directory(group)))
    return max((count for name in names if (count := count_of(name)) is not None), default=0)


def settle(files: Files, mark: DurabilityMark, put_mark: Callable[[DurabilityMark], None]) -> DurabilityMark:
    """A group's mark, once what it says is still to be done is done."""
    group = mark.group
    if mark.flags & SUSPECT:  # a lost mark may have said more
        known = max(mark.count, count_on_disk(files, group))
        faults = known if known > mark.count else mark.fault_count
        mark = replace(mark, count=known + 1 if mark.flags & QUARANTINING else known, fault_count=faults)
    if mark.flags & DELETING:
        files.remove_tree(group_directory(group))
    if mark.flags & QUARANTINING:
        move_to_quarantine(files, group)
        mark = DurabilityMark(group, count=mark.count)
        put_mark(mark)  # before a log begins there, which a crash would have moved, too
    return mark
