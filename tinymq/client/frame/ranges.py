"""The ranges of offsets that a frame has, and those that a filter can need. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tinymq.client.consume.records import TABLE_SCHEMA
from tinymq.format.columns import int64_scalar

Ranges = Mapping[int, tuple[int, int]]
"""By partition: the first offset, and the first offset behind the range."""

PIECES = 16  # into which a range is cut per step of the search: 2**40 offsets take ten steps
STEPS_MAX = 64  # of the search for one end of a range


def clip(wanted: tuple[int | None, int | None], stored: tuple[int, int]) -> tuple[int, int]:
    """Return the part of `wanted` that is stored. It may be empty: then both bounds are the same offset."""
    first, last = wanted
    start = min(max(stored[0], first if first is not None else stored[0]), stored[1])
    end = min(stored[1], last if last is not None else stored[1])
    return start, max(start, end)


def rows_of_ranges(ranges: Ranges) -> int:
    """Return the number of offsets in the ranges: each one is a record."""
    return sum(end - first for first, end in ranges.values())


def narrow(ranges: Ranges, condition: object) -> dict[int, tuple[int, int]]:
    """Return the least ranges that hold every record which an Arrow expression may accept.

    Only the columns partition and offset count; nothing is assumed about the others. Partitions that cannot have an
    accepted record are left out.
    """
    narrowed = {}
    for number, (first, end) in ranges.items():
        if first >= end or not _possible(number, [(first, end)], condition):
            continue
        least = _outermost(number, (first, end), condition, last=False)
        greatest = _outermost(number, (first, end), condition, last=True)
        if least is not None and greatest is not None:
            narrowed[number] = (least[0], greatest[1])
    return narrowed


def _outermost(number: int, bounds: tuple[int, int], condition: object, *, last: bool) -> tuple[int, int] | None:
    """Return the first or the last offset that the condition may accept, as a range; None if it can accept none.

    A piece that seems possible as a whole may have no possible part. Then the search goes on with the next piece.
    """
    side = -1 if last else 0
    waiting = [bounds]
    for _ in range(STEPS_MAX):
        if not waiting:
            return None
        first, end = waiting.pop(side)
        edge = (end - 1, end) if last else (first, first + 1)
        if _possible(number, [edge], condition):
            return edge
        parts = _possible(number, _cut(first, end), condition) if end - first > 1 else []
        waiting = [*waiting, *parts] if last else [*parts, *waiting]
    return waiting[side] if waiting else None  # not the least range, but one that holds it


def _possible(number: int, pieces: list[tuple[int, int]], condition: object) -> list[tuple[int, int]]:
    """Return the pieces of a partition in which a row may meet the condition.

    Arrow itself decides: it prunes the fragments of a dataset by what is known of their rows. The fragments here have
    no file behind them, and none is opened.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    form, files = ds.IpcFileFormat(), LocalFileSystem()
    offset, here = pc.field("offset"), pc.field("partition") == int64_scalar(number).cast(pa.int32())
    by_path = {f"/{place}": piece for place, piece in enumerate(pieces)}
    fragments = [
        form.make_fragment(path, files, partition_expression=here & (offset >= first) & (offset <= end - 1))
        for path, (first, end) in by_path.items()
    ]
    found = ds.FileSystemDataset(fragments, TABLE_SCHEMA, form, files).get_fragments(filter=condition)
    return sorted(by_path[fragment.path] for fragment in found)


def _cut(first: int, end: int) -> list[tuple[int, int]]:
    step = max(1, -(-(end - first) // PIECES))
    return [(start, min(end, start + step)) for start in range(first, end, step)]
