"""Where reading starts and ends: the application's position, as an offset or as a request to a broker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition
from tinymq.base.types import Offset
from tinymq.client.common.argument_checks import OFFSET_MAX, check_count, check_partition
from tinymq.client.common.values import check_timestamp

Place = Literal["earliest", "latest"] | Offset | datetime
"""The first record that is kept; the end, after the last record; an offset; the first record at or after a time."""

OffsetLike = Offset | int
"""An offset, in calls that take nothing else. A `Place` may also be a time, so it accepts no plain int."""

Places = Place | Mapping[int, Place]
"""One place for all partitions, or one for each."""

END, EARLIEST, MAX_TIMESTAMP = -1, -2, -3  # OffsetQuery.timestamp_us


@dataclass(frozen=True, slots=True)
class KnownOffset:
    """An offset that the application named. No broker has to be asked."""

    offset: int


@dataclass(frozen=True, slots=True)
class OffsetQuestion:
    """A place that only a broker knows, as ListOffsets asks for it."""

    timestamp_us: int  # or END, EARLIEST


def read_place(place: object) -> KnownOffset | OffsetQuestion:
    """Read a place. Raises InvalidRequest for a value that is not a start position, OffsetOutOfRange for a negative
    offset."""
    match place:
        case "earliest":
            return OffsetQuestion(EARLIEST)
        case "latest":
            return OffsetQuestion(END)
        case Offset(value=value):
            if isinstance(value, int) and value < 0:
                raise OffsetOutOfRange(f"offset {value} is negative")
            return KnownOffset(check_count("Offset", value, 0, most=OFFSET_MAX))
        case datetime():
            return OffsetQuestion(
                max(0, check_timestamp(place))
            )  # numbers below 0 have other meanings; no log is that old
    raise InvalidRequest(
        f"{place!r} is not a place to read from", hint="pass 'earliest', 'latest', Offset(5) or a datetime with a zone"
    )


def read_offset(offset: object, name: str = "offset") -> int:
    """Read the number of an Offset or an int. Raises InvalidRequest, OffsetOutOfRange (negative)."""
    plain = isinstance(offset, int) and not isinstance(offset, bool)
    place = read_place(Offset(offset) if plain else offset) if plain or isinstance(offset, Offset) else None  # type: ignore[arg-type]
    if not isinstance(place, KnownOffset):
        raise InvalidRequest(f"{name}={offset!r} is not an offset", hint="pass an int, or tinymq.Offset(5)")
    return place.offset


def check_range(start: object, end: object | None) -> None:
    """Check start and end before any broker is asked. Raises InvalidRequest, OffsetOutOfRange."""
    starts = _each(start)
    ends = _each(end) if end is not None else {}
    for p in {*starts, *ends}:
        first, last = starts.get(p, starts.get(None)), ends.get(p, ends.get(None))
        if first is not None and last is not None and _contrary(first, last):
            where = f"partition {p}: " if p is not None else ""
            raise InvalidRequest(
                f"{where}start={_place_of(start, p)!r} lies behind end={_place_of(end, p)!r}",
                hint="end is the first place that is not read: pass a later one, or leave it out",
            )


def _each(places: object) -> dict[int | None, KnownOffset | OffsetQuestion]:
    """The places by partition. A single place for all partitions has the key None."""
    if isinstance(places, Mapping):
        return {check_partition(p): read_place(place) for p, place in places.items()}
    return {None: read_place(places)}


def _place_of(places: object, partition: int | None) -> object:
    return places.get(partition) if isinstance(places, Mapping) else places


def _contrary(start: KnownOffset | OffsetQuestion, end: KnownOffset | OffsetQuestion) -> bool:
    if isinstance(start, KnownOffset):
        return isinstance(end, KnownOffset) and start.offset > end.offset
    return isinstance(end, OffsetQuestion) and 0 <= end.timestamp_us < start.timestamp_us


def by_partition(places: object, partitions: tuple[int, ...]) -> dict[int, KnownOffset | OffsetQuestion]:
    """The place of each partition. A mapping has to name all of them, and no others. Raises as `read_place`, and
    UnknownPartition."""
    if not isinstance(places, Mapping):
        place = read_place(places)
        return dict.fromkeys(partitions, place)
    unknown = [p for p in places if p not in partitions]
    missing = [p for p in partitions if p not in places]
    if unknown or missing:
        raise UnknownPartition(
            f"places are given for partitions {sorted(places)}, but the reader has partitions {list(partitions)}",
            hint="name every partition that is read, and no other",
        )
    return {p: read_place(places[p]) for p in partitions}
