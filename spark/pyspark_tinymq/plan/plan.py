"""Decides which ranges a batch reads, how they are split into tasks, and how far a micro-batch may go. Pure.

Nothing here asks a broker. The bounds of the partitions are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark_tinymq.options.offsets import Offsets, Partition, first_few
from pyspark_tinymq.options.settings import Limits
from tinymq.base.errors import OffsetOutOfRange, TinymqError, UnknownPartition

GONE = "is gone"
LEFT = "is not subscribed to any more"
UNKNOWN_RECORD_BYTES = 1024.0  # the size of a record while no partition's mean size is known
AGAIN = "is of a topic that was deleted and made again"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that a partition has: from `first` up to, and not including, `end`."""

    first: int
    end: int  # committed


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition with start <= offset < end.

    `lenient`: records removed from its head are not a loss, because the range begins with the first record that exists.
    """

    at: Partition
    start: int
    end: int
    lenient: bool = False

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that were planned, or that would come next, and that do not exist."""

    at: Partition
    what: str


def ranges(
    starts: Offsets, ends: Offsets, bounds: Mapping[Partition, Bounds], lenient: Iterable[Partition] = ()
) -> tuple[list[Range], list[Loss]]:
    """Return the ranges to read between two offsets, without empty ones, and the losses among them.

    A partition without a start is new: it is read from its first record. Partitions in `lenient` may begin after their
    start. The `ends` are committed offsets. They stay valid if `bounds` come from a replica that lags and end earlier.
    """
    planned: list[Range] = []
    losses: list[Loss] = []
    whole = set(lenient)
    for at, end in sorted(ends.items()):
        here = bounds.get(at)
        if here is None:
            if starts.get(at) != end:
                losses.append(Loss(at, GONE))
            continue
        free = at not in starts or at in whole
        start = starts.get(at, here.first)
        if start < min(here.first, end):
            if not free:
                last = min(here.first, end) - 1
                losses.append(Loss(at, f"begins with {here.first} now: {start} to {last} were removed"))
            start = here.first
        if start < end:
            planned.append(Range(at, start, end, free))
    return planned, losses


GOING_ON = "failOnDataLoss=false goes on with the records that remain"
STREAM_HINT = f"{GOING_ON}; or start again, from earliest, with another checkpoint; holdMs holds planned records"
BATCH_HINT = f"{GOING_ON}; or name places that are there: earliest or -2, latest or -1"


def loss_error(losses: Sequence[Loss], hint: str) -> TinymqError:
    """Return the error to raise for these losses."""
    described = "; ".join(f"{loss.at} {loss.what}" for loss in losses[:5])
    more = f"; and {len(losses) - 5} more partitions" if len(losses) > 5 else ""
    kind = UnknownPartition if all(loss.what in (GONE, LEFT) for loss in losses) else OffsetOutOfRange
    return kind(f"records are lost: {described}{more}", hint=hint)


def split(planned: Sequence[Range], tasks_min: int | None, records_max: int | None) -> list[Range]:
    """Split the ranges into tasks of at most `records_max` records, and into about `tasks_min` tasks at least.

    The tasks are in order of partition and offset. Together they are exactly the planned ranges.
    """
    tasks = [piece for each in planned for piece in _cut(each, math.ceil(each.size / (records_max or each.size)))]
    if tasks_min is None or len(tasks) >= tasks_min:
        return tasks
    total = sum(each.size for each in tasks)
    small = [each for each in tasks if round(each.size / total * tasks_min) <= 1]
    large_total = total - sum(each.size for each in small)
    large_tasks = max(tasks_min - len(small), 1)
    whole = {(each.at, each.start) for each in small}
    pieces: list[Range] = []
    for each in tasks:
        count = 1 if (each.at, each.start) in whole else max(1, round(each.size / large_total * large_tasks))
        pieces += _cut(each, count)
    return pieces


def _cut(each: Range, count: int) -> list[Range]:
    """Cut a range into `count` pieces whose sizes differ by at most one record. No piece is empty."""
    count = min(count, each.size)
    marks = [each.start + each.size * number // count for number in range(count + 1)]
    return [replace(each, start=low, end=high) for low, high in pairwise(marks)]


def check_explicit(named: Iterable[Partition], there: Iterable[Partition], option: str) -> None:
    """Raise UnknownPartition unless the options name exactly the partitions that are read."""
    explicit, read = set(named), set(there)
    if explicit == read:
        return
    missing, unknown = read - explicit, explicit - read
    parts = [f"there is no {first_few(unknown)} to read"] if unknown else []
    parts += [f"{first_few(missing)} has no place"] if missing else []
    raise UnknownPartition(
        f"{option}: {'; '.join(parts)}",
        hint="name every partition that is read, and no other: -2 is earliest, -1 latest",
    )


# ---- how far a micro-batch goes ----------------------------------------------------------------------------


def micro_batch_end(
    start: Offsets, available: Offsets, limits: Limits, record_bytes: Mapping[Partition, float]
) -> Offsets:
    """Return the end of a micro-batch from `start` within the limits of records and of bytes.

    Each partition gets a share of the limit in proportion to its waiting records, and at least one record, so that no
    partition starves. `start` has every partition of `available`. `record_bytes` has the mean size of a record in each
    partition, where it is known. An unknown size counts as the largest known one.
    """
    waiting = {at: end - start[at] for at, end in available.items() if end > start[at]}
    rows = sum(waiting.values())
    fraction = 1.0
    if limits.rows_max is not None and rows > limits.rows_max:
        fraction = limits.rows_max / rows
    if limits.bytes_max is not None:
        unknown = max(record_bytes.values(), default=UNKNOWN_RECORD_BYTES)
        size = sum(count * record_bytes.get(at, unknown) for at, count in waiting.items())
        fraction = min(fraction, limits.bytes_max / size) if size > 0 else fraction
    if fraction >= 1.0:
        return available
    return {at: start[at] + share(waiting[at], fraction) if at in waiting else end for at, end in available.items()}


def share(count: int, fraction: float) -> int:
    """Return this fraction of `count`: at least 1 and at most `count`."""
    return min(count, max(1, math.floor(count * fraction)))


def must_wait(start: Offsets, available: Offsets, limits: Limits, waited_s: float) -> bool:
    """Tell whether a micro-batch must wait for more records. `waited_s`: since the last one was planned."""
    if limits.rows_min is None or waited_s >= limits.delay_s_max:
        return False
    rows = sum(max(0, end - start.get(at, 0)) for at, end in available.items())
    return rows < limits.rows_min


def forward(start: Offsets, positions: Offsets) -> dict[Partition, int]:
    """Return `found`, raised to `start` where it is lower: a replica that lags must not cause a second read."""
    return {at: max(start.get(at, 0), end) for at, end in sorted(positions.items())}
