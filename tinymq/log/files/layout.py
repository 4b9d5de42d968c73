"""The names in a data directory. No other module makes or parses a path.

LOCK                                     locked while a broker has the directory open
broker.json                              identity.py
ballots-a, ballots-b                     vote_store.py
marks                                    durability_marks.py
boot                                     boot_id.py; missing until a group is synced at intervals
groups/<topic id, hex>/<partition>/      one Raft group
    <first index, 20 digits>.log         segment.py
    <first index, 20 digits>.index       index.py, for full segments
    <first index, 20 digits>.state       snapshot_files.py: the snapshot where that segment begins
    <count, 10 digits>.count             empty: the incarnation count that this log began with, if it is not 0
aside/<topic id, hex>-<partition>/       damaged_logs.py: a damaged log in quarantine, until its replica is a member
    <commit index, 20 digits>.commit     empty: that log was known to be committed up to this index
"""

from __future__ import annotations

from tinymq.base.types import GroupId, TopicId

LOCK = "LOCK"
IDENTITY = "broker.json"
REGISTRY = "registry"
VOTES = ("ballots-a", "ballots-b")
MARKS = "marks"
BOOT = "boot"
GROUPS = "groups"
QUARANTINE = "aside"

SEGMENT = ".log"
INDEX = ".index"
SNAPSHOT = ".state"
COUNT = ".count"
COMMIT = ".commit"


def group_directory(group: GroupId) -> str:
    return f"{topic_directory(group)}/{group.partition}"


def topic_directory(group: GroupId) -> str:
    return f"{GROUPS}/{group.topic_id.hex()}"


def quarantine_directory(group: GroupId) -> str:
    return f"{QUARANTINE}/{group.topic_id.hex()}-{group.partition}"


def in_group(directory: str, first_index: int, kind: str) -> str:
    """Path of the segment, index or snapshot file of the segment that begins with `first_index`."""
    return f"{directory}/{first_index:020d}{kind}"


def first_index_of(name: str, kind: str) -> int | None:
    """The first index in a file's name; None if the name is not of that kind."""
    return _number_of(name, kind, 20)


def count_name(count: int) -> str:
    return f"{count:010d}{COUNT}"


def count_of(name: str) -> int | None:
    """The count in a file's name; None if it is no such name."""
    return _number_of(name, COUNT, 10)


def commit_name(commit: int) -> str:
    return f"{commit:020d}{COMMIT}"


def commit_of(name: str) -> int | None:
    """The count in a file's name; None if it is no such name."""
    return _number_of(name, COMMIT, 20)


def _number_of(name: str, kind: str, length: int) -> int | None:
    digits = name.removesuffix(kind)
    if digits == name or len(digits) != length or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def group_of(topic: str, partition: str) -> GroupId | None:
    """The group of `groups/<topic>/<partition>`; None if these are no such names."""
    try:
        topic_id = bytes.fromhex(topic)
    except ValueError:
        return None
    if len(topic_id) != 16 or not (partition.isascii() and partition.isdigit()):
        return None
    return GroupId(TopicId(topic_id), int(partition))
