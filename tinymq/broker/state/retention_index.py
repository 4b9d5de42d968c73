"""What the log holds below some of its offsets: sparse marks by which records are removed by age and by bytes.

A mark is put before a batch that would make the run since the last mark longer than 1/256 of what is kept, in bytes
or in time; a run is shorter than that, or a single batch. When there are too many, every second one goes. All of it
follows from the log alone: no setting of the topic's has a say, for replicas learn of those at different times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tinymq.base.errors import CorruptData
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: brokers that differed here would differ in state.
UNKNOWN_US = (1 << 63) - 1  # the append time of records whose leader did not know the time: they count as new
MILESTONES_MAX = 1024
RUNS = 256  # that what is kept is divided into, about


class IndexMark(NamedTuple):
    """One mark."""

    offset: int
    bytes: int  # of all records below it, since the partition began
    append_us: int  # of the last record below it, maybe UNKNOWN_US; of the first mark, where what is kept begins


class RetentionIndex:
    """The marks of one log, by offset; the first one is at or below the log start."""

    __slots__ = ("_marks", "bytes_due", "last_append_us", "us_due")

    def __init__(self) -> None:
        self._marks: list[IndexMark] = []
        self.last_append_us = 0  # of the newest record; invariant: at or after that of every mark
        self.bytes_due = self.us_due = -1  # the run may go on up to here
        self._plan()

    @property
    def time_is_unknown(self) -> bool:
        """Is the time unknown at the end of the log? If so, append times may be too early until `find_time` is
        called."""
        return self.last_append_us == UNKNOWN_US

    @property
    def marks(self) -> Sequence[IndexMark]:
        return self._marks

    @property
    def start_bytes(self) -> int:
        """Bytes of records below the log start: no more than there are, and by less than a run less."""
        return self._marks[0].bytes if self._marks else 0

    def note(self, offset: int, below: int, size: int, append_us: int) -> None:
        """A batch of `size` bytes comes at `offset`, with `below` bytes of records before it. It may be left out when
        it is within both of what is due, but for `last_append_us`."""
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
        """From `end` on the append times of records are unknown."""
        if self._marks and self._marks[-1].offset < end and not self.time_is_unknown:
            self._append(end, end_bytes)
        self.last_append_us = UNKNOWN_US
        self._plan()

    def find_time(self, append_us: int) -> None:
        """The time is known again, and it is `append_us` now: no earlier record was appended later than this."""
        if self.time_is_unknown:
            self._marks = [m._replace(append_us=min(m.append_us, append_us)) for m in self._marks]
            self.last_append_us = append_us
            self._plan()

    def _append(self, offset: int, below: int) -> None:
        self._marks.append(IndexMark(offset, below, self.last_append_us))
        if len(self._marks) > MILESTONES_MAX:
            del self._marks[1::2]

    def _plan(self) -> None:
        """Of the marks alone, so that whoever loads them goes on alike."""
        if not self._marks:
            self.bytes_due = self.us_due = -1
            return
        first, last = self._marks[0], self._marks[-1]
        self.bytes_due = last.bytes + (last.bytes - first.bytes) // RUNS
        self.us_due = last.append_us + max(0, last.append_us - first.append_us) // RUNS

    def start_at(self, offset: int, end: int, end_bytes: int) -> None:
        """The log starts at `offset` now, and ends at `end`, with `end_bytes` of records below that."""
        if offset == end:
            self._marks = [IndexMark(end, end_bytes, self.last_append_us)]
        else:
            del self._marks[: max(0, bisect_right(self._marks, offset, key=_offset) - 1)]
        self._plan()

    # ---- what may go

    def older_than(self, cutoff_us: int, end: int) -> int:
        """The greatest known offset below which every record was appended before `cutoff_us`; 0: none is known."""
        if self.last_append_us < cutoff_us:
            return end
        at = bisect_left(self._marks, cutoff_us, lo=min(1, len(self._marks)), key=_append_us)
        return self._marks[at - 1].offset if at > 1 else 0

    def with_at_most(self, below: int) -> int:
        """The greatest known offset that has at most `below` bytes of records below it; 0: none is known."""
        at = bisect_right(self._marks, below, key=_bytes)
        return self._marks[at - 1].offset if at else 0

    def with_at_least(self, below: int) -> IndexMark | None:
        """The first mark that has at least `below` bytes of records below it."""
        at = bisect_left(self._marks, below, key=_bytes)
        return self._marks[at] if at < len(self._marks) else None

    def below(self, offset: int) -> int:
        """Bytes of records below `offset`: no more than there are, and by less than a run less."""
        at = bisect_right(self._marks, offset, key=_offset)
        return self._marks[at - 1].bytes if at else 0

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        state.last_append_us = self.last_append_us
        state.milestones.extend(
            [pb.Milestone(offset=m.offset, bytes=m.bytes, append_us=m.append_us) for m in self._marks]
        )

    @classmethod
    def load(cls, state: pb.State, end: int, end_bytes: int) -> RetentionIndex:
        """The inverse of `dump`. Raises CorruptData for what it did not make."""
        made = cls()
        made._marks = marks = [IndexMark(m.offset, m.bytes, m.append_us) for m in state.milestones]
        made.last_append_us = state.last_append_us
        if marks:
            rising = all(
                a.offset < b.offset and a.bytes <= b.bytes and a.append_us <= b.append_us for a, b in pairwise(marks)
            )
            starts = marks[0].offset <= state.log_start and all(m.offset > state.log_start for m in marks[1:2])
            ends = marks[-1].offset <= end and marks[-1].bytes <= end_bytes
            bounded = len(marks) <= MILESTONES_MAX and marks[-1].append_us <= state.last_append_us
            if not (rising and starts and ends and bounded):
                raise CorruptData("the applied state's milestones are out of range")
        elif state.log_start:
            raise CorruptData("the applied state's milestones are missing")
        made._plan()
        return made


def _offset(mark: IndexMark) -> int:
    return mark.offset


def _bytes(mark: IndexMark) -> int:
    return mark.bytes


def _append_us(mark: IndexMark) -> int:
    return mark.append_us
