"""Arrow columns of SCHEMA's types, made from Python sequences by way of their buffers.

`pa.array` and `pa.scalar` import pandas where it is installed, to recognise its types. That costs the first record of
a process a quarter of a second to one second. Nothing here does, and a column of one or a few records is made in
four fifths of the time. The functions take what `pa.array` takes for these types, and raise TypeError, ValueError or
OverflowError for everything else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import cast

import pyarrow as pa

BINARY, STRING, INT64 = pa.binary(), pa.string(), pa.int64()
TIMESTAMP = pa.timestamp("us", "UTC")
HEADER = pa.struct([("key", STRING), ("value", BINARY)])
HEADERS = pa.list_(HEADER)

Headers = Sequence[tuple[str, bytes | None]]


def binary_column(values: Sequence[bytes | None], kind: pa.DataType = BINARY) -> pa.Array:
    """Return the values as a column of binary, or of another `kind` with the same layout; None is null."""
    nulls, validity, present = 0, None, cast("Sequence[bytes]", values)
    try:
        content = b"".join(present)  # most columns have no null
    except TypeError:
        nulls = values.count(None)
        if not nulls:
            raise
        validity, present = _validity(values), [item or b"" for item in values]
        content = b"".join(present)
    ends = list(accumulate(map(len, present), initial=0))
    if ends[-1] != len(content):
        raise ValueError("a value with items of more than one byte")
    return pa.Array.from_buffers(
        kind, len(values), [validity, _packed("i", ends), pa.py_buffer(content)], null_count=nulls
    )


def int64_column(values: Sequence[int], kind: pa.DataType = INT64) -> pa.Array:
    """Return the values as a column of 64-bit integers, or of another `kind` with the same layout."""
    return pa.Array.from_buffers(kind, len(values), [None, _packed("q", values)], null_count=0)


def int64_scalar(value: int) -> pa.Scalar:
    """Return `value` as an Arrow scalar."""
    return int64_column((value,))[0]


def time_column(timestamps_us: Sequence[int]) -> pa.Array:
    """Return microseconds since 1970 UTC as a column of timestamps."""
    return int64_column(timestamps_us, TIMESTAMP)


def headers_column(rows: Sequence[Headers | None]) -> pa.Array:
    """Return the headers of records as a column. None is null, which readers show as no headers."""
    nulls = rows.count(None)
    validity = _validity(rows) if nulls else None
    pairs = list(chain.from_iterable(row for row in rows if row is not None))
    try:
        names = binary_column([name.encode() for name, _ in pairs], STRING)
    except AttributeError:
        raise TypeError("a header has no key, or one that is not text") from None
    contents = binary_column([content for _, content in pairs])
    items = pa.Array.from_buffers(HEADER, len(pairs), [None], null_count=0, children=[names, contents])
    ends = list(accumulate((len(row or ()) for row in rows), initial=0))
    return pa.Array.from_buffers(HEADERS, len(rows), [validity, _packed("i", ends)], null_count=nulls, children=[items])


# Columns of nulls are immutable, so most batches of single records share two of them. The caches have counts for keys,
# because the hash of an Arrow type takes a microsecond.


@lru_cache(16)
def no_keys(count: int) -> pa.Array:
    """Return the keys of records without one."""
    return null_column(count, BINARY)


@lru_cache(16)
def no_headers(count: int) -> pa.Array:
    """Return the headers of records without any."""
    return null_column(count, HEADERS)


def null_column(count: int, kind: pa.DataType) -> pa.Array:
    """Return the same as pa.nulls, but no larger than necessary when written.

    Arrow's own nulls give the empty children of a list as many offsets as there are rows, and Arrow writes all of these
    offsets with every slice of the column. If a table is cut into batches, each batch then has eight bytes for each row
    of the whole table.
    """
    if not pa.types.is_list(kind):
        return pa.nulls(count, kind)
    none, offsets = pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))
    children = [pa.nulls(0, kind.value_type)]
    return pa.Array.from_buffers(kind, count, [none, offsets], null_count=count, children=children)


def _packed(code: str, numbers: Sequence[int]) -> pa.Buffer:
    """Return the numbers as a buffer of 32-bit ("i") or 64-bit ("q") integers."""
    try:
        return pa.py_buffer(struct.pack(f"={len(numbers)}{code}", *numbers))
    except struct.error as error:
        raise ValueError(str(error)) from None


def _validity(values: Sequence[object]) -> pa.Buffer:
    """Return the bit of each value, least significant first: 0 for None."""
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return pa.py_buffer(int(bits, 2).to_bytes((len(values) + 7) // 8, "little"))
