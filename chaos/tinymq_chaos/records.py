"""Records that name themselves: a value begins with its record's name, and its other bytes, the key, the headers and
the timestamp follow from it.

So a history holds names alone, and every reader finds a record of which any byte or field was changed:

    p1-17 64 5 =1700000000000000 4f2c01aa4f2c01aa...
    name  |  | |                 filler
          |  | the timestamp: "=" given in microseconds, "+" stamped by the sender from then on, "-" stamped by a broker
          |  the number of its key and headers in LOOKS
          bytes of the value, at least
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from tinymq.format.batch import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN

VALUE_BYTES_MIN = 64  # every name fits
CHANGED = "!"  # the first character of a name that no producer gives: some field does not match the name
STAMPED_LATE_US = 60_000_000  # after a record was made, its sender has stamped it

Headers = tuple[tuple[str, bytes | None], ...]

LOOKS: tuple[tuple[str | None, Headers], ...] = (
    (None, ()),
    ("{}", ()),
    ("", (("trace", b"\x00\xff"),)),
    ("{}", (("a", b"1"), ("a", b"2"), ("", b""))),
    (None, (("none", None),)),
    ("key of {}", (("trace", b""), ("größe", b"12"))),
    ("red", ()),
    ("green", ()),
    ("blue", ()),
)
"""The keys and headers that records have. {} is the name. A key that is missing is not an empty one."""

PLAIN = 0  # in LOOKS: neither a key nor headers
DRAWN = range(6)  # those of records whose producer does not care
SHARED = (0, 6, 7, 8)  # those whose keys many records share, and one without a key
_JITTER_US = 10_000_000
_RARE_US = (TIMESTAMP_US_MIN, TIMESTAMP_US_MAX, 0, -1)


class Row(Protocol):
    """A record as a client, or a broker without the client, returns it."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Any: ...
    @property
    def timestamp_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Content:
    """The fields of a record, as a producer gives them. `timestamp_us` None: it is stamped on the way."""

    value: bytes
    key: bytes | None
    headers: Headers
    timestamp_us: int | None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `send`, the topic and the partition aside."""
        return {"value": self.value, "key": self.key, "headers": self.headers, "timestamp": self.timestamp_us}


def make_value(name: str, size: int = VALUE_BYTES_MIN, look: int = PLAIN, time: str = "-") -> bytes:
    """Return a value of at least `size` bytes for the record `name`, which has no spaces and does not begin with
    CHANGED.
    """
    assert " " not in name
    head = f"{name} {size} {look} {time} ".encode()
    filler = b"%08x" % zlib.crc32(head)
    missing = max(len(filler), size - len(head))
    return head + (filler * (missing // len(filler) + 1))[:missing]


def make_content(name: str, size: int, now_us: int, *, own_clock: bool = True, looks: Sequence[int] = DRAWN) -> Content:
    """Return the fields of the record `name`, which are always the same for one name and time.

    `now_us` is the sender's wall clock. `own_clock`: that clock stamps records without a timestamp; otherwise a broker
    does. `looks`: of LOOKS.
    """
    draw = zlib.crc32(name.encode())
    look, timestamp_us = looks[draw % len(looks)], _timestamp_us(draw // len(looks), now_us)
    time = f"={timestamp_us}" if timestamp_us is not None else f"+{now_us}" if own_clock else "-"
    return Content(make_value(name, size, look, time), *_dressed(name, look), timestamp_us)


def _timestamp_us(draw: int, now_us: int) -> int | None:
    """Draw a timestamp: none, the present, one out of order, one that many records have, seldom an extreme one."""
    kind, rest = draw % 16, draw // 16
    if kind < 4:
        return None
    if kind < 9:
        return now_us
    if kind < 14:
        return now_us + rest % (2 * _JITTER_US) - _JITTER_US
    if rest % 64 < len(_RARE_US):
        return _RARE_US[rest % 64]
    return now_us // 1_000_000 * 1_000_000


def _dressed(name: str, look: int) -> tuple[bytes | None, Headers]:
    key, headers = LOOKS[look]
    return None if key is None else key.format(name).encode(), headers


def name_of(row: Row) -> str:
    """Return the record's name; or CHANGED and what is wrong, if no producer made this record."""
    headers = tuple((header[0], header[1]) for header in row.headers)
    return name_in_fields(row.key, row.value, headers, row.timestamp_us)


@lru_cache(maxsize=1 << 16)  # several readers read a record, from every replica
def name_in_fields(key: bytes | None, value: bytes | None, headers: Headers, timestamp_us: int) -> str:
    """As `name_of`, of the fields of a record."""
    name = name_in(value)
    if name.startswith(CHANGED):
        return name
    _, _, look, time = _head(value)
    due_key, due_headers = _dressed(name, look)
    if key != due_key:
        return f"{CHANGED}{name}: key {key!r}"
    if headers != due_headers:
        return f"{CHANGED}{name}: headers {headers!r}"
    given_us = int(time[1:] or 0)
    if time[0] == "=" and timestamp_us != given_us:
        return f"{CHANGED}{name}: timestamp {timestamp_us}, and {given_us} was given"
    if time[0] == "+" and not given_us <= timestamp_us <= given_us + STAMPED_LATE_US:
        return f"{CHANGED}{name}: timestamp {timestamp_us}, and it was made at {given_us}"
    return name


@lru_cache(maxsize=1 << 16)
def name_in(value: bytes | None) -> str:
    """Return the name of the record with this value; or CHANGED and its first bytes, if no producer made the value."""
    try:
        name, size, look, time = _head(value)
        if make_value(name, size, look, time) == value:
            return name
    except ValueError:
        pass
    return f"{CHANGED}{(value or b'')[:32]!r}"


def _head(value: bytes | None) -> tuple[str, int, int, str]:
    """Return (name, size, look, time) of a value. Raises ValueError if it has none of them."""
    name, size, look, time, _ = (value or b"").split(b" ", 4)
    if len(size) > 8 or int(look) not in range(len(LOOKS)) or time[:1] not in (b"=", b"+", b"-"):
        raise ValueError(value)
    return name.decode("ascii"), int(size), int(look), time.decode("ascii")


def fields_in(value: bytes) -> tuple[bytes | None, Headers, int]:
    """Return the key, headers and timestamp that belong to a value, for systems whose messages are values alone."""
    if name_in(value).startswith(CHANGED):
        return None, (), 0
    name, _, look, time = _head(value)
    return *_dressed(name, look), int(time[1:] or 0)


def columns(contents: Sequence[Content], now_us: int) -> tuple[list[Any], list[Any], list[Any], list[int]]:
    """Return the keys, values, headers and timestamps of some records; `now_us` for those without a timestamp."""
    times = [now_us if c.timestamp_us is None else c.timestamp_us for c in contents]
    return [c.key for c in contents], [c.value for c in contents], [c.headers for c in contents], times


def names_in_table(batch: pa.RecordBatch) -> list[str]:
    """Return the names of the records in a batch that has the columns of SCHEMA, and maybe more."""
    keys, values, headers = (batch.column(name).to_pylist() for name in ("key", "value", "headers"))
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [name_in_fields(*row) for row in zip(keys, values, map(_pairs, headers), times, strict=True)]


def _pairs(headers: list[dict[str, Any]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in headers or ())
