"""Compares the records read with the flights sent. Pure: records in, a verdict out.

Three facts together say "each exactly once": every acknowledged flight is read, byte for byte, at exactly the partition
and offset of its acknowledgement; every record read is a flight; no flight is read twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from examples.flights.source import Flight

EXAMPLES_MAX = 10  # examples of differences; the counts are complete

Place = tuple[int, int]  # partition, offset


@dataclass(frozen=True, slots=True)
class Verdict:
    """The number of differences of each kind. `examples` describes the first few."""

    flights: int
    acknowledged: int
    read: int
    lost: int  # acknowledged, and not read back
    twice: int  # read more than once
    foreign: int  # read, and no such flight was sent: other bytes
    misplaced: int  # read elsewhere than acknowledged
    retimed: int  # read with another timestamp
    disordered: int  # read before an earlier flight of its key, or in another partition than it
    gaps: int  # offsets that are not dense
    examples: tuple[str, ...]

    @property
    def same(self) -> bool:
        """True if every flight was acknowledged and read exactly once, at its place, in order, with its
        bytes and time.
        """
        wrong = (self.lost, self.twice, self.foreign, self.misplaced, self.retimed, self.disordered, self.gaps)
        return self.acknowledged == self.read == self.flights and not any(wrong)


class Comparison:
    """Compares records in the order in which each partition returns them."""

    def __init__(self, flights: Sequence[Flight], places: Sequence[Place | None]) -> None:
        """`places[i]` is the acknowledged place of flight i; None if it was not acknowledged."""
        assert len(flights) == len(places)
        self._flights = flights
        self._places = places
        self._index = {(flight.key, flight.value): i for i, flight in enumerate(flights)}
        assert len(self._index) == len(flights), (
            "two flights have the same key and bytes, so the comparison cannot distinguish them"
        )
        self._times_read = bytearray(len(flights))
        self._latest: dict[bytes, tuple[int, int]] = {}  # key -> partition, flight
        self._next_offset: dict[int, int] = {}
        self._counts = dict.fromkeys(("read", "foreign", "misplaced", "retimed", "disordered", "gaps"), 0)
        self._examples: list[str] = []

    def add(self, partition: int, offset: int, key: bytes | None, value: bytes | None, timestamp_us: int) -> None:
        """One record that was read."""
        self._counts["read"] += 1
        if offset != self._next_offset.get(partition, 0):
            self._note("gaps", partition, offset, f"expected offset {self._next_offset.get(partition, 0)}")
        self._next_offset[partition] = offset + 1
        if key is None or value is None or (i := self._index.get((key, value))) is None:
            self._note("foreign", partition, offset, f"no such flight: key {key!r}, value {(value or b'')[:60]!r}")
            return
        self._times_read[i] = min(self._times_read[i] + 1, 255)
        if self._places[i] is not None and self._places[i] != (partition, offset):
            self._note("misplaced", partition, offset, f"flight {i} was acknowledged at {self._places[i]}")
        if timestamp_us != self._flights[i].timestamp_us:
            self._note("retimed", partition, offset, f"flight {i} has time {timestamp_us} us")
        before = self._latest.get(key)
        if before is not None and (before[0] != partition or before[1] >= i):
            self._note("disordered", partition, offset, f"flight {i} comes after flight {before[1]} of {before[0]}")
        self._latest[key] = (partition, i)

    def verdict(self) -> Verdict:
        """Return the differences in all records so far."""
        lost = [i for i, times in enumerate(self._times_read) if times == 0 and self._places[i] is not None]
        twice = [i for i, times in enumerate(self._times_read) if times > 1]
        examples = [f"lost: flight {i}, acknowledged at {self._places[i]}" for i in lost[:EXAMPLES_MAX]]
        examples += [f"read {self._times_read[i]} times: flight {i}" for i in twice[:EXAMPLES_MAX]]
        return Verdict(
            flights=len(self._flights),
            acknowledged=sum(place is not None for place in self._places),
            lost=len(lost),
            twice=len(twice),
            examples=(*examples, *self._examples),
            **self._counts,
        )

    def _note(self, kind: str, partition: int, offset: int, what: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= EXAMPLES_MAX:
            self._examples.append(f"{kind}: partition {partition} offset {offset}: {what}")
