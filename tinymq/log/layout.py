"""Names in a data folder. Nothing else makes or takes apart a path.

LOCK                                     held while a broker has the folder open
broker.json                              identity.py
ballots-a, ballots-b                     ballots.py
marks                                    marks.py
groups/<topic id, hex>/<partition>/      one Raft group
    <first index, 20 digits>.log         segment.py
    <first index, 20 digits>.index       index.py, for segments that are full
    <first index, 20 digits>.state       states.py: the applied state where that segment begins
"""

from __future__ import annotations

from tinymq.types import GroupId, TopicId

LOCK = "LOCK"
IDENTITY = "broker.json"
BALLOTS = ("ballots-a", "ballots-b")
MARKS = "marks"
GROUPS = "groups"

SEGMENT = ".log"
INDEX = ".index"
STATE = ".state"


def group_folder(group: GroupId) -> str:
    return f"{topic_folder(group)}/{group.partition}"


def topic_folder(group: GroupId) -> str:
    return f"{GROUPS}/{group.topic_id.hex()}"


def in_group(folder: str, first_index: int, kind: str) -> str:
    """Path of the segment, index or state file that belongs to `first_index`."""
    return f"{folder}/{first_index:020d}{kind}"


def first_index_of(name: str, kind: str) -> int | None:
    """The inverse, for a file's name; None when it is not of that kind."""
    digits = name.removesuffix(kind)
    if digits == name or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def group_of(topic: str, partition: str) -> GroupId | None:
    """The group of `groups/<topic>/<partition>`; None when these are not such names."""
    try:
        topic_id = bytes.fromhex(topic)
    except ValueError:
        return None
    if len(topic_id) != 16 or not (partition.isascii() and partition.isdigit()):
        return None
    return GroupId(TopicId(topic_id), int(partition))
