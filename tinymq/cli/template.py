"""The `-f` format of `tinymq consume`: a text with a few % signs, and a record, to bytes. Pure.

    %t topic    %p partition    %o offset    %k key    %v value
    %T timestamp (ISO 8601, UTC)    %h headers (name=value, comma between)    %% a percent sign
    \\n \\t \\r \\0 \\\\ as usual

Keys and values come out as the bytes they are; one that is null comes out as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tinymq.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a format can show of a record."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


Piece = Callable[[Shown], bytes]


def _headers(record: Shown) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


_FIELDS: dict[str, Piece] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "T": lambda record: iso(record.timestamp_us).encode(),
    "h": _headers,
    "%": lambda record: b"%",
}


def compile_template(text: str) -> Callable[[Shown], bytes]:
    """The function that prints a record as `text` says. Raises InvalidRequest for a letter it does not know."""
    pieces: list[Piece] = []
    characters = iter(text)
    for character in characters:
        if character == "%":
            name = next(characters, "")
            if name not in _FIELDS:
                raise InvalidRequest(f"unknown format %{name}", hint="known: " + " ".join(f"%{f}" for f in _FIELDS))
            pieces.append(_FIELDS[name])
        elif character == "\\":
            name = next(characters, "")
            if name not in _ESCAPES:
                raise InvalidRequest(f"unknown escape \\{name}", hint="known: " + " ".join(f"\\{e}" for e in _ESCAPES))
            pieces.append(_constant(_ESCAPES[name]))
        else:
            pieces.append(_constant(character.encode()))
    return lambda record: b"".join(piece(record) for piece in pieces)


def iso(timestamp_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, with a Z."""
    return (_EPOCH + timedelta(microseconds=timestamp_us)).isoformat() + "Z"


def _constant(data: bytes) -> Piece:
    return lambda record: data
