"""The `-f` format of `tinymq consume`: renders a record as bytes, by a template with % fields. Pure.

    %t topic    %p partition    %o offset    %k key    %v value
    %T timestamp (ISO 8601, UTC)    %h headers (name=value, comma between)    %% a percent sign
    \\n \\t \\r \\0 \\xNN \\\\ are escapes

Keys, values and headers are printed unchanged, or as `show` renders them. A null prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.escapes import unescape

if TYPE_CHECKING:  # the client imports Arrow, and help must not wait for that
    from tinymq.client import Message

    Piece = Callable[[Message], bytes]

_EPOCH = datetime(1970, 1, 1)


def _headers(record: Message) -> bytes:
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


def compile_template(text: str, show: Callable[[bytes], bytes] | None = None) -> Callable[[Message], bytes]:
    """Return the function that renders a record by the template `text`.

    `show` escapes the bytes that come from the record, but not the text of the template. Raises InvalidRequest for an
    unknown field or escape.
    """
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
            pieces.append(_FIELDS[name] if show is None else _escaped(_FIELDS[name], show))
        else:
            pieces.append(_constant(character.encode(errors="surrogateescape")))
    return lambda record: b"".join(piece(record) for piece in pieces)


def iso(timestamp_us: int) -> str:
    """Format microseconds since 1970 as ISO 8601 in UTC, with a Z."""
    return (_EPOCH + timedelta(microseconds=timestamp_us)).isoformat() + "Z"


def _constant(data: bytes) -> Piece:
    return lambda record: data


def _escaped(piece: Piece, show: Callable[[bytes], bytes]) -> Piece:
    return lambda record: show(piece(record))
