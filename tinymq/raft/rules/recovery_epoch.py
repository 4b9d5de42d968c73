"""Whose history goes on, once an operator has accepted loss (`tinymq cluster recover`). Pure.

A take-over raises the generation in CONFIG; every Raft message says that of the newest CONFIG in its sender's log.
Replicas that were away then may be many, and elect one another: they must not move those that went on. One that is
merely behind has a lower generation, too, until it has appended that CONFIG: what it answers in our term counts.
"""

from __future__ import annotations

from enum import Enum

from tinymq.raft.rules.messages import (
    Append,
    AppendAck,
    InstallSnapshot,
    InstallSnapshotAck,
    Message,
    SnapshotChunk,
    Vote,
)


class MessageVerdict(Enum):
    TAKE = "take"
    DROP = "drop"
    ABANDONED = "abandoned"  # it is our own history that does not go on


def judge_message(ours: int, theirs: int, our_term: int, message: Message) -> MessageVerdict:
    """What a message of a replica of generation `theirs` is to one of generation `ours`."""
    if theirs < ours:
        answers = isinstance(message, AppendAck | InstallSnapshotAck | Vote) and message.term == our_term
        return MessageVerdict.TAKE if answers else MessageVerdict.DROP
    if theirs > ours and isinstance(message, Append | InstallSnapshot | SnapshotChunk) and message.term < our_term:
        return MessageVerdict.ABANDONED
    return MessageVerdict.TAKE
