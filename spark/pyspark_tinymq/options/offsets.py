"""Offsets as text: the Kafka connector's JSON for where to start and end, and a stream's own offsets. Pure.

    {"flights": {"0": 23, "1": -2}, "orders": {"0": -1}}       -1: latest, -2: earliest

A stream's offset has the same shape, canonical (topics and partitions in order, so that equal offsets are equal
texts: Spark compares texts), and beside the topics, under names that no topic can have:

    "@from": {...}   in the end of a query's first batch: where it began. Spark asks for the initial offset anew when
                     that batch is run again, and "latest" would be another place by then.
    "@ids": {...}    the topics' ids: a topic that was deleted and made again is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

LATEST, EARLIEST = -1, -2
OFFSET_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
FROM, IDS, INITIAL = "@from", "@ids", "@initial"
_OFFSETS_EXAMPLE = 'such as {"flights":{"0":23,"1":-2}}: -1 is latest, -2 earliest'


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Offsets = Mapping[Partition, int]
Place = str | Offsets
"""EARLIEST_TEXT, LATEST_TEXT, or an offset (or LATEST, EARLIEST) for each partition."""

EARLIEST_TEXT, LATEST_TEXT = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Up to where a stream has come, and what must be known to go on."""

    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)  # topic -> id, as hexadecimal digits
    first: Offsets | None = None  # in the end of the first batch: where that began
    initial: bool = False  # nothing was planned before it

    def write(self) -> dict[str, Any]:
        """As Spark keeps it."""
        written: dict[str, Any] = _nested(self.offsets)
        if self.ids:
            written[IDS] = {topic: self.ids[topic] for topic in sorted(self.ids)}
        if self.first is not None:
            written[FROM] = _nested(self.first)
        if self.initial:
            written[INITIAL] = True
        return written

    def following(self, offsets: Offsets, ids: Mapping[str, str]) -> StreamOffset:
        """The end of a batch that begins here; this one if it is no further, to the letter. The first one always is:
        Spark keeps ends alone, so that only a batch, be it empty, keeps where a query began."""
        if offsets == self.offsets and not self.initial:
            return self
        return StreamOffset(offsets, ids, first=self.offsets if self.initial else None)


def read_stream(written: Mapping[str, Any]) -> StreamOffset:
    """What `StreamOffset.write` made. Raises ValueError for anything else. No partition may be there: nothing matches
    yet, or all are gone."""
    there = _flat(written)
    first = _flat(written[FROM]) if FROM in written else None
    ids = {str(topic): str(number) for topic, number in written.get(IDS, {}).items()}
    return replace(StreamOffset(there, ids, first), initial=bool(written.get(INITIAL, False)))


def initial(offsets: Offsets, ids: Mapping[str, str]) -> StreamOffset:
    """Where a query begins; nowhere yet, before that was looked for."""
    return StreamOffset(offsets, ids, initial=True)


def read_assignment(text: str) -> tuple[Partition, ...]:
    """{"topic": [0, 1]} as partitions, in order. Raises ValueError."""
    found: list[Partition] = []
    for topic, numbers in _object(text, 'such as {"flights":[0,1]}').items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic!r} has no list of partitions")
        found += [Partition(topic, _partition(number)) for number in numbers]
    if len(set(found)) != len(found) or not found:
        raise ValueError("name each partition once, and one at least")
    return tuple(sorted(found))


def read_place(text: str) -> Place:
    """ "earliest", "latest" or an offset for each partition. Raises ValueError."""
    if text.lower() in (EARLIEST_TEXT, LATEST_TEXT):
        return text.lower()
    if not text.startswith("{"):
        raise ValueError
    found = _some(_flat(_object(text, _OFFSETS_EXAMPLE)))
    for at, offset in found.items():
        if offset < EARLIEST:
            raise ValueError(f"{at}: {offset} is no offset; -1 is latest, -2 earliest")
    return found


def read_times(text: str) -> Offsets:
    """Milliseconds since 1970 for each partition. Raises ValueError."""
    found = _some(_flat(_object(text, 'such as {"flights":{"0":1700000000000}}')))
    for at, time_ms in found.items():
        if not 0 <= time_ms <= OFFSET_MAX // 1000:
            raise ValueError(f"{at}: {time_ms} is no time in milliseconds since 1970")
    return found


def write_offsets(offsets: Offsets) -> str:
    """As `startingOffsets` takes them."""
    return json.dumps(_nested(offsets))


def some(partitions: Iterable[Partition], most: int = 5) -> str:
    """Partitions in order, as a person writes them: a few, and how many more."""
    ordered = sorted(partitions)
    named = ", ".join(str(at) for at in ordered[:most])
    return named + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def _nested(offsets: Offsets) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for at in sorted(offsets):
        written.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return written


def _flat(nested: Mapping[str, Any]) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for topic, offsets in nested.items():
        if topic.startswith("@"):  # of a stream's offset, copied from its progress
            continue
        if not isinstance(offsets, dict) or not offsets:
            raise ValueError(f"{topic!r} has no partitions with numbers: {_OFFSETS_EXAMPLE}")
        for number, offset in offsets.items():
            if isinstance(offset, bool) or not isinstance(offset, int) or offset > OFFSET_MAX:
                raise ValueError(f"{topic}/{number}: {offset!r:.60} is no whole number")
            found[Partition(topic, _partition(number))] = offset
    return found


def _some(found: dict[Partition, int]) -> dict[Partition, int]:
    """What was found, if anything was."""
    if not found:
        raise ValueError(f"no partition is named: {_OFFSETS_EXAMPLE}")
    return found


def _partition(number: object) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit() and str(int(number)) == number:
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= PARTITION_MAX:
        raise ValueError(f"{number!r:.60} is no partition's number")
    return number


def _object(text: str, example: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name is there twice")
        return made

    try:
        found = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError(example) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}: {example}") from None
    if not isinstance(found, dict):
        raise ValueError(example)
    return found
