"""A follower's side of replication, purely: what an Append means for the log that is here.

Hazard 2: entries that match are skipped, and only a conflict truncates. Hazard 11: a conflict is answered so
that one round trip repairs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tinymq.base.errors import BrokenInvariant
from tinymq.base.value import value
from tinymq.format.entry import Entry
from tinymq.raft.rules.messages import Append, AppendAck


class LogView(Protocol):
    """What these decisions need to know of a log."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    def term_at(self, index: int) -> int | None:
        """None where the log cannot say (before its first entry but one, or after its last)."""
        ...


@value
class Conflict:
    """The entry before does not match: the leader goes on at `next`, or, if its term there is not
    `next_term`, after our commit index, up to which all logs agree."""

    next: int
    next_term: int


@value
class Match:
    """It matches. `truncate_from`: drop our entries from there first. `verified`: the last index shown to match."""

    truncate_from: int | None
    entries: Sequence[Entry]
    verified: int


def receive(log: LogView, commit: int, message: Append) -> Conflict | Match:
    """Decide on an Append of the current term. Raises BrokenInvariant for a conflict at or below `commit`: one of the
    two logs has lost what was committed, or comes from before a loss was accepted."""
    prev = message.prev_index
    entries = message.entries
    if prev < log.first_index - 1:
        # Entries that retention removed here were committed: they match, whatever they are.
        gone = log.first_index - 1 - prev
        if gone > len(entries):
            return Match(None, (), prev + len(entries))
        entries = entries[gone:]
        prev = log.first_index - 1
    elif log.term_at(prev) != message.prev_term:
        next_index = min(prev, log.last_index + 1)
        if prev <= log.last_index:
            next_index = min(prev, commit + 1)
        return Conflict(next_index, log.term_at(next_index - 1) or 0)
    verified = prev + len(entries)
    for i, entry in enumerate(entries):
        ours = log.term_at(entry.index)
        if ours == entry.term:
            continue
        if ours is None:
            return Match(None, entries[i:], verified)
        if entry.index <= commit:
            what = f"entry {entry.index} of term {entry.term} conflicts with one committed here ({commit})"
            raise BrokenInvariant(what)
        return Match(entry.index, entries[i:], verified)
    return Match(None, (), verified)


def next_after_conflict(log: LogView, ack: AppendAck) -> int:
    """Where the leader goes on after a conflict answer."""
    if ack.next_term == log.term_at(ack.next - 1):
        return ack.next
    return min(ack.next, ack.commit + 1)
