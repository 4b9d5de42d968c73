"""One record from one line of input: plain text, or a JSON object as `tinymq consume -o jsonl` prints it. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.offsets import parse_time

LinePlace = tuple[str, int]
"""A line's file and number, from 1."""

KNOWN = frozenset({"topic", "partition", "offset", "timestamp", "headers"})  # and those of _bytes
HINT = 'such as {"key": "42", "value": "text", "headers": [{"name": "trace", "value": "7"}]}'
TIME_HINT = "write ISO 8601, such as 2026-01-01T00:00:00Z, or seconds since 1970"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: datetime | None = None  # None: the time of sending


Split = Callable[[bytes, LinePlace], tuple[bytes | None, bytes]]


def plain_record(split: Split) -> Callable[[bytes, LinePlace], InputRecord]:
    """Return the function that reads a line as a value, with the key that `split` finds."""

    def read(line: bytes, place: LinePlace) -> InputRecord:
        key, value = split(line, place)
        return InputRecord(value, key)

    return read


def json_record(line: bytes, place: LinePlace) -> InputRecord:
    """Read a line as a JSON object. Raises InvalidRequest, which names the line."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"a JSON {type(found).__name__}, not an object")
        unknown = sorted(found.keys() - KNOWN - {"key", "key_base64", "value", "value_base64"})
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}")
        if not found.keys() & {"value", "value_base64"}:
            raise ValueError("no value")
        time = found.get("timestamp")
        return InputRecord(
            value=_bytes(found, "value"),
            key=_bytes(found, "key"),
            headers=tuple(_header(each) for each in found.get("headers") or ()),
            timestamp=None if time is None else parse_time(str(time), TIME_HINT),
        )
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        file, number = place
        raise InvalidRequest(f"line {number} of {file}: {str(error)[:200]}", hint=HINT) from None


def _header(found: object) -> tuple[str, bytes | None]:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise ValueError("a header is an object with a name")
    return found["name"], _bytes(found, "value")


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    """The bytes of a field. Text becomes UTF-8, null stays null, and other JSON stays JSON text."""
    if f"{name}_base64" in found:
        if name in found:
            raise ValueError(f"both {name} and {name}_base64")
        return base64.b64decode(str(found[f"{name}_base64"]), validate=True)
    content = found.get(name)
    if content is None or isinstance(content, str):
        return None if content is None else content.encode()
    return json.dumps(content, ensure_ascii=False).encode()
