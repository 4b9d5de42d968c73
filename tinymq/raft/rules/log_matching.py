"""A follower's side of replication: the effect of an Append on its log. Pure.

Hazard 2: entries that match are skipped, and only a conflict truncates. Hazard 11: the answer to a conflict lets one
round trip repair it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tinymq.base.errors import BrokenInvariant
from tinymq.base.value import value
from tinymq.format.entry import Entry
from tinymq.raft.rules.messages import Append, AppendAck


class LogView(Protocol):
    """The part of a log that these decisions read."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, or of the one before the first. None: the log does not know it."""
        ...


@value
class Conflict:
    """The entry before the new ones does not match.

    The leader continues at `next`. If its entry before `next` is not of `next_term`, it continues after our commit
    index, up to which all logs agree.
    """

    next: int
    next_term: int


@value
class Match:
    """The entry before the new ones matches."""

    truncate_from: int | None  # drop our entries from there first
    entries: Sequence[Entry]  # to append; those that are here already are left out
    verified: int  # the last index that the message shows to match


def receive(log: LogView, commit: int, message: Append) -> Conflict | Match:
    """Decide on an Append of the current term.

    Raises BrokenInvariant for a conflict at or below `commit`: one of the two logs has lost committed entries, or is
    from before a loss was accepted.
    """
    prev = message.prev_index
    entries = message.entries
    if prev < log.first_index - 1:
        # Retention removes only committed entries. So the removed entries match.
        gone = log.first_index - 1 - prev
        if gone > len(entries):
            return Match(None, (), prev + len(entries))
        entries = entries[gone:]
        prev = log.first_index - 1
    elif log.term_at(prev) != message.prev_term:
        # Our log ends before `prev`, or has another entry there. In the second case all of our entries above the commit
        # index are in doubt, so the leader begins right after it.
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
    """Return the index at which the leader continues after a conflict."""
    if ack.next_term == log.term_at(ack.next - 1):
        return ack.next
    return min(ack.next, ack.commit + 1)
