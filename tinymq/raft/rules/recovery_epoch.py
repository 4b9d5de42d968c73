"""Which history continues after an operator has accepted loss (`tinymq cluster recover`). Pure.

A forced leadership raises the recovery epoch in CONFIG. Every Raft message carries the recovery epoch of the newest
CONFIG in its sender's log. The replicas that were away during the recovery may be many and elect one of themselves.
They must not change the replicas that continued. A replica that is merely behind has a lower recovery epoch, too, until
it has appended that CONFIG; its answers in our term count.
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
    """The verdict on a message of a replica whose recovery epoch may differ."""

    TAKE = "take"
    DROP = "drop"
    ABANDONED = "abandoned"  # our own history was given up


def judge_message(ours: int, theirs: int, our_term: int, message: Message) -> MessageVerdict:
    """Judge a message whose sender has the recovery epoch `theirs`, at a replica with `ours`."""
    if theirs < ours:
        answers = isinstance(message, AppendAck | InstallSnapshotAck | Vote) and message.term == our_term
        return MessageVerdict.TAKE if answers else MessageVerdict.DROP
    if theirs > ours and isinstance(message, Append | InstallSnapshot | SnapshotChunk) and message.term < our_term:
        return MessageVerdict.ABANDONED
    return MessageVerdict.TAKE
