"""Which entries the log must keep for batches that a PUBLISH entry gave their offsets. Pure, and replicated.

A published batch lies in its STAGED entry, in front of the PUBLISH entry, and readers need it until its records are
below the log start. So a part of the log is remembered for each PUBLISH entry: from the first STAGED entry that it
names until its last record. Of two such parts that lie next to each other, one is enough if they begin close together:
closer than 1/128 of the entries from the first part to the end of the log. The number of parts is then at most
128 * (1 + ln(entries / 128)), about 2,200 for a billion entries. Packed, little-endian:

    offset size field
         0    8 lowest_index     u64  of the STAGED entries; rises from part to part
         8    8 end_offset       u64  after the last record; rises, too
"""

from __future__ import annotations

import struct
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from tinymq.base.errors import CorruptData

# Part of the replicated behaviour, not a setting: replicas with different values would compute different states.
PARTS = 128  # about so many parts divide the entries

_PART = struct.Struct("<QQ")


class PublishedPart(NamedTuple):
    """A part of the log with published batches."""

    lowest_index: int  # of the entries that have them
    end_offset: int  # after the last of their records


class PublishedEntries:
    """The parts of one log. In their order, both numbers rise: a part that begins later and ends earlier than another
    one keeps nothing."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts = deque[PublishedPart]()

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def lowest_index(self) -> int | None:
        """The lowest Raft index of an entry with published records that may be read; None: there are none."""
        return self._parts[0].lowest_index if self._parts else None

    def publish(self, lowest_index: int, entry_index: int, end_offset: int) -> None:
        """Apply the PUBLISH entry at `entry_index`: its records end at `end_offset`, and lie in entries from
        `lowest_index` on."""
        parts = self._parts
        while parts and parts[-1].lowest_index >= lowest_index:
            parts.pop()
        if parts and lowest_index - parts[-1].lowest_index <= (entry_index - parts[0].lowest_index) // PARTS:
            lowest_index = parts.pop().lowest_index
        parts.append(PublishedPart(lowest_index, end_offset))

    def start_at(self, offset: int) -> None:
        """Forget what lies below the log start."""
        while self._parts and self._parts[0].end_offset <= offset:
            self._parts.popleft()

    # ---- as bytes

    def dump(self) -> bytes:
        """The parts, as drawn above."""
        return b"".join([_PART.pack(*part) for part in self._parts])

    @classmethod
    def load(cls, packed: bytes, applied_index: int, log_start: int, end: int) -> PublishedEntries:
        """The inverse of `dump`, for a log with these bounds. Raises CorruptData for anything that `dump` cannot
        write."""
        loaded = cls()
        if len(packed) % _PART.size:
            raise CorruptData("the applied state's published entries are cut short")
        parts = [PublishedPart(*fields) for fields in _PART.iter_unpack(packed)]
        rising = all(a.lowest_index < b.lowest_index and a.end_offset < b.end_offset for a, b in pairwise(parts))
        bounded = not parts or (
            parts[0].lowest_index > 0
            and parts[0].end_offset > log_start
            and parts[-1].lowest_index < applied_index
            and parts[-1].end_offset <= end
        )
        if not (rising and bounded):
            raise CorruptData("the applied state's published entries are out of range")
        loaded._parts.extend(parts)
        return loaded
