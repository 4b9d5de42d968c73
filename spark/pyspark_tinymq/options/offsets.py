"""Reads and writes offsets as text: the Kafka connector's JSON for starts and ends, and a stream's own offsets. Pure.

    {"flights": {"0": 23, "1": -2}, "orders": {"0": -1}}       -1: latest, -2: earliest

A stream's offset has the same shape. Topics and partitions are in order, because Spark compares offsets as texts. The
offset also has members under names that no topic can have:

    "@from": {...}   in the end offset of a query's first batch: where the query began. When Spark runs that batch
                     again it asks for a new initial offset, and "latest" may be another offset by then.
    "@ids": {...}    the ids of the topics: a topic that was deleted and created again has another id.
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
    """How far a stream has read, and the facts that it needs to continue."""

    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)  # topic -> id, as hexadecimal digits
    first: Offsets | None = None  # only in the end offset of the first batch: where that batch began
    initial: bool = False  # no batch was planned before this offset

    def write(self) -> dict[str, Any]:
        """Return the offset as Spark stores it."""
        written: dict[str, Any] = _nested(self.offsets)
        if self.ids:
            written[IDS] = {topic: self.ids[topic] for topic in sorted(self.ids)}
        if self.first is not None:
            written[FROM] = _nested(self.first)
        if self.initial:
            written[INITIAL] = True
        return written

    def following(self, offsets: Offsets, ids: Mapping[str, str]) -> StreamOffset:
        """Return the end of a batch that begins at this offset: this very offset if the batch is empty.

        The first batch has an end of its own even if it is empty. Spark stores only the ends of batches, so the end of
        the first one must record where the query began.
        """
        if offsets == self.offsets and not self.initial:
            return self
        return StreamOffset(offsets, ids, first=self.offsets if self.initial else None)


def read_stream(written: Mapping[str, Any]) -> StreamOffset:
    """Read the result of `StreamOffset.write`. Raises ValueError for anything else.

    The offset may have no partitions: no topic matches yet, or all topics are gone.
    """
    there = _flat(written)
    first = _flat(written[FROM]) if FROM in written else None
    ids = {str(topic): str(number) for topic, number in written.get(IDS, {}).items()}
    return replace(StreamOffset(there, ids, first), initial=bool(written.get(INITIAL, False)))


def initial(offsets: Offsets, ids: Mapping[str, str]) -> StreamOffset:
    """Return the offset at which a query begins. Both arguments are empty before the query has looked for it."""
    return StreamOffset(offsets, ids, initial=True)


def read_assignment(text: str) -> tuple[Partition, ...]:
    """Read {"topic": [0, 1]} as partitions, in order. Raises ValueError."""
    offsets: list[Partition] = []
    for topic, numbers in _object(text, 'such as {"flights":[0,1]}').items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic!r} has no list of partitions")
        offsets += [Partition(topic, _partition(number)) for number in numbers]
    if len(set(offsets)) != len(offsets) or not offsets:
        raise ValueError("name at least one partition, and none twice")
    return tuple(sorted(offsets))


def read_place(text: str) -> Place:
    """Read "earliest", "latest" or an offset for each partition. Raises ValueError."""
    if text.lower() in (EARLIEST_TEXT, LATEST_TEXT):
        return text.lower()
    if not text.startswith("{"):
        raise ValueError
    offsets = _some(_flat(_object(text, _OFFSETS_EXAMPLE)))
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise ValueError(f"{partition}: {offset} is not an offset; -1 is latest, -2 earliest")
    return offsets


def read_times(text: str) -> Offsets:
    """Read milliseconds since 1970 for each partition. Raises ValueError."""
    offsets = _some(_flat(_object(text, 'such as {"flights":{"0":1700000000000}}')))
    for partition, time_ms in offsets.items():
        if not 0 <= time_ms <= OFFSET_MAX // 1000:
            raise ValueError(f"{partition}: {time_ms} is not a time in milliseconds since 1970")
    return offsets


def write_offsets(offsets: Offsets) -> str:
    """Return the offsets in the form of the option `startingOffsets`."""
    return json.dumps(_nested(offsets))


def first_few(partitions: Iterable[Partition], most: int = 5) -> str:
    """Return the first few partitions for a message, and how many more there are."""
    ordered = sorted(partitions)
    named = ", ".join(str(partition) for partition in ordered[:most])
    return named + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def _nested(offsets: Offsets) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for partition in sorted(offsets):
        written.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return written


def _flat(nested: Mapping[str, Any]) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for topic, offsets in nested.items():
        if topic.startswith("@"):  # a user has copied a stream's offset from its progress
            continue
        if not isinstance(offsets, dict) or not offsets:
            raise ValueError(f"{topic!r} has no partitions with numbers: {_OFFSETS_EXAMPLE}")
        for number, offset in offsets.items():
            if isinstance(offset, bool) or not isinstance(offset, int) or offset > OFFSET_MAX:
                raise ValueError(f"{topic}/{number}: {offset!r:.60} is not a whole number")
            found[Partition(topic, _partition(number))] = offset
    return found


def _some(offsets: dict[Partition, int]) -> dict[Partition, int]:
    """Return `found`. Raises ValueError if it is empty."""
    if not offsets:
        raise ValueError(f"no partition is named: {_OFFSETS_EXAMPLE}")
    return offsets


def _partition(number: object) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit() and str(int(number)) == number:
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= PARTITION_MAX:
        raise ValueError(f"{number!r:.60} is not a partition's number")
    return number


def _object(text: str, example: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name occurs twice")
        return made

    try:
        offsets = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError(example) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}: {example}") from None
    if not isinstance(offsets, dict):
        raise ValueError(example)
    return offsets
