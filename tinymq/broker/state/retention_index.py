"""Retention index: sparse marks of a log, which tell how many bytes lie below an offset and how old those are.

A run is the part of the log between two marks. A mark is set before a batch that would make the run since the last mark
longer than 1/256 of the kept records, in bytes or in time. A run is therefore shorter than that, or a single batch.
When there are too many marks, every second one goes. The index depends on the log alone and on no setting of the topic,
because replicas learn of a changed setting at different times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tinymq.base.errors import CorruptData
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
UNKNOWN_US = (1 << 63) - 1  # append time of records whose leader did not know the time; they count as new
MARKS_MAX = 1024
RUNS = 256  # about so many runs divide the kept records


class IndexMark(NamedTuple):
    """An offset, and what lies below it."""

    offset: int
    bytes: int  # of all records below the offset, since the partition began
    append_us: int  # of the last record below the offset, or UNKNOWN_US; for the first mark, of the first kept record


class RetentionIndex:
    """The marks of one log, by offset; the first one is at or below the log start."""

    __slots__ = ("_marks", "bytes_due", "last_append_us", "us_due")

    def __init__(self) -> None:
        self._marks: list[IndexMark] = []
        self.last_append_us = 0  # of the newest record; invariant: at or after that of every mark
        # The run may grow up to these bytes and this time, which follow from the marks; -1: the next batch gets a mark.
        self.bytes_due = self.us_due = -1
        self._plan()

    @property
    def time_is_unknown(self) -> bool:
        """Whether the time is unknown at the end of the log. Append times may be too early until `find_time`."""
        return self.last_append_us == UNKNOWN_US

    @property
    def marks(self) -> Sequence[IndexMark]:
        return self._marks

    @property
    def start_bytes(self) -> int:
        """Bytes of records below the log start: never more than there are, and less by less than one run."""
        return self._marks[0].bytes if self._marks else 0

    def note(self, offset: int, below: int, size: int, append_us: int) -> None:
        """Note a batch of `size` bytes at `offset`, with `below` bytes of records before it.

        For a batch within both `bytes_due` and `us_due`, the caller may set `last_append_us` instead.
        """
        if self.time_is_unknown:
            append_us = UNKNOWN_US
        if below + size > self.bytes_due or append_us > self.us_due:
            self._mark(offset, below, append_us)
        if append_us > self.last_append_us:
            self.last_append_us = append_us

    def _mark(self, offset: int, below: int, append_us: int) -> None:
        marks = self._marks
        if not marks or (len(marks) == 1 and marks[0].offset == offset):
            self._marks = [IndexMark(offset, below, append_us)]
        elif marks[-1].offset < offset:
            self._append(offset, below)
        self._plan()

    def lose_time(self, end: int, end_bytes: int) -> None:
        """Note that the append times of records are unknown from `end` on."""
        if self._marks and self._marks[-1].offset < end and not self.time_is_unknown:
            self._append(end, end_bytes)
        self.last_append_us = UNKNOWN_US
        self._plan()

    def find_time(self, append_us: int) -> None:
        """Note that the time is known again and is `append_us` now: every earlier record was appended before it."""
        if self.time_is_unknown:
            self._marks = [m._replace(append_us=min(m.append_us, append_us)) for m in self._marks]
            self.last_append_us = append_us
            self._plan()

    def _append(self, offset: int, below: int) -> None:
        self._marks.append(IndexMark(offset, below, self.last_append_us))
        if len(self._marks) > MARKS_MAX:
            del self._marks[1::2]

    def _plan(self) -> None:
        """Compute the bounds of the present run from the marks alone, so that a replica that loads a snapshot sets the
        same next marks."""
        if not self._marks:
            self.bytes_due = self.us_due = -1
            return
        first, last = self._marks[0], self._marks[-1]
        self.bytes_due = last.bytes + (last.bytes - first.bytes) // RUNS
        self.us_due = last.append_us + max(0, last.append_us - first.append_us) // RUNS

    def start_at(self, offset: int, end: int, end_bytes: int) -> None:
        """Move the log start to `offset`, in a log that ends at `end` with `end_bytes` of records below."""
        if offset == end:
            self._marks = [IndexMark(end, end_bytes, self.last_append_us)]
        else:
            # Keep the last mark at or below the start: it bounds the bytes and the age of the first kept run.
            del self._marks[: max(0, bisect_right(self._marks, offset, key=_offset) - 1)]
        self._plan()

    # ---- lookups

    def older_than(self, cutoff_us: int, end: int) -> int:
        """The greatest offset below which all records are known to be appended before `cutoff_us`; 0: none."""
        if self.last_append_us < cutoff_us:
            return end
        # The first mark is the start itself: nothing below it is left to remove.
        place = bisect_left(self._marks, cutoff_us, lo=min(1, len(self._marks)), key=_append_us)
        return self._marks[place - 1].offset if place > 1 else 0

    def with_at_most(self, below: int) -> int:
        """The greatest marked offset with at most `below` bytes of records below it; 0: none."""
        place = bisect_right(self._marks, below, key=_bytes)
        return self._marks[place - 1].offset if place else 0

    def with_at_least(self, below: int) -> IndexMark | None:
        """The first mark that has at least `below` bytes of records below it."""
        place = bisect_left(self._marks, below, key=_bytes)
        return self._marks[place] if place < len(self._marks) else None

    def appended_by(self, offset: int) -> int:
        """A time by which the record at `offset` was appended: later than that by less than one run."""
        place = bisect_right(self._marks, offset, key=_offset)
        return self._marks[place].append_us if place < len(self._marks) else self.last_append_us

    def below(self, offset: int) -> int:
        """Bytes of records below `offset`: never more than there are, and less by less than one run."""
        place = bisect_right(self._marks, offset, key=_offset)
        return self._marks[place - 1].bytes if place else 0

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        state.last_append_us = self.last_append_us
        state.retention_marks.extend(
            [pb.RetentionMark(offset=m.offset, bytes=m.bytes, append_us=m.append_us) for m in self._marks]
        )

    @classmethod
    def load(cls, state: pb.State, end: int, end_bytes: int) -> RetentionIndex:
        """The inverse of `dump`. Raises CorruptData for anything that `dump` cannot write."""
        index = cls()
        index._marks = marks = [IndexMark(m.offset, m.bytes, m.append_us) for m in state.retention_marks]
        index.last_append_us = state.last_append_us
        if marks:
            rising = all(
                a.offset < b.offset and a.bytes <= b.bytes and a.append_us <= b.append_us for a, b in pairwise(marks)
            )
            starts = marks[0].offset <= state.log_start and all(m.offset > state.log_start for m in marks[1:2])
            ends = marks[-1].offset <= end and marks[-1].bytes <= end_bytes
            bounded = len(marks) <= MARKS_MAX and marks[-1].append_us <= state.last_append_us
            if not (rising and starts and ends and bounded):
                raise CorruptData("the applied state's retention marks are out of range")
        elif state.log_start:
            raise CorruptData("the applied state's retention marks are missing")
        index._plan()
        return index


def _offset(mark: IndexMark) -> int:
    return mark.offset


def _bytes(mark: IndexMark) -> int:
    return mark.bytes


def _append_us(mark: IndexMark) -> int:
    return mark.append_us
