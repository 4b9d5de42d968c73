"""The `-f` format of `tinymq consume`: a text with a few % signs, and a record, to bytes. Pure.

    %t topic    %p partition    %o offset    %k key    %v value
    %T timestamp (ISO 8601, UTC)    %h headers (name=value, comma between)    %% a percent sign
    \\n \\t \\r \\0 \\xNN \\\\ as usual

Keys, values and headers are printed unchanged, or as `show` renders them. A null prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.escapes import unescape

_EPOCH = datetime(1970, 1, 1)


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


def compile_template(text: str, show: Callable[[bytes], bytes] | None = None) -> Callable[[Shown], bytes]:
    """Return the function that prints a record as the template `text` says. `show` renders what comes from the record,
    not the text of the template. Raises InvalidRequest for an unknown letter or escape."""
    pieces: list[Piece] = []
    characters = iter(unescape(text))
    for character in characters:
        if isinstance(character, bytes):
            pieces.append(_constant(character))
        elif character == "%":
            name = next(characters, "")
            if not isinstance(name, str) or name not in _FIELDS:
                shown = name.decode("latin-1") if isinstance(name, bytes) else name
                raise InvalidRequest(f"unknown format %{shown}", hint="known: " + " ".join(f"%{f}" for f in _FIELDS))
            pieces.append(_FIELDS[name] if show is None else _shown(_FIELDS[name], show))
        else:
            pieces.append(_constant(character.encode(errors="surrogateescape")))
    return lambda record: b"".join(piece(record) for piece in pieces)


def iso(timestamp_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, with a Z."""
    return (_EPOCH + timedelta(microseconds=timestamp_us)).isoformat() + "Z"


def _constant(data: bytes) -> Piece:
    return lambda record: data


def _shown(piece: Piece, show: Callable[[bytes], bytes]) -> Piece:
    return lambda record: show(piece(record))
