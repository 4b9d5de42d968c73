"""The key, value, headers and timestamp of a record, as an application gives them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tinymq.base.errors import InvalidRequest
from tinymq.format.batch import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN
from tinymq.format.columns import Headers

HeadersLike = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
"""Headers in order. A list may have a name twice."""

Timestamp = datetime | int
"""A datetime with a zone, or microseconds since 1970 UTC."""

HEADERS_HINT = 'pass a mapping, such as {"trace": b"..."}, or a list of (name, value)'
TIME_HINT = "pass a datetime with a zone, or an int of microseconds since 1970 UTC"
HEADER_OVERHEAD_BYTES = 12  # that Arrow needs beside each header's name and value
MESSAGE_ID_BYTES_MAX = 256  # a broker refuses more
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def check_value(value: object) -> bytes | None:
    """Return `value` as bytes, or None. Raises InvalidRequest."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest(f"a value is bytes or None, not {type(value).__name__}", hint=_how_to_encode(value, "value"))


def check_key(key: object) -> bytes:
    """Return `key` as bytes. Raises InvalidRequest."""
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise InvalidRequest(f"a key is bytes or None, not {type(key).__name__}", hint=_how_to_encode(key, "key"))


def _how_to_encode(content: object, name: str) -> str:
    """Return what to pass instead of `content`, for the type that it has."""
    if isinstance(content, str):
        return f"pass {name}.encode()"
    if isinstance(content, dict | list | tuple):
        return f"pass json.dumps({name}).encode(), or another encoding"
    if isinstance(content, bool | int | float):
        return f"pass str({name}).encode(), or another encoding"
    return "encode it first: tinymq stores bytes"


def check_message_id(message_id: object) -> bytes:
    """Return `message_id`, text or bytes, as bytes. Raises InvalidRequest."""
    if isinstance(message_id, str):
        try:
            message_id = message_id.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the message id is not text: {error.reason}", hint="pass bytes instead") from None
    if not isinstance(message_id, bytes):
        raise InvalidRequest(f"a message id is text or bytes, not {type(message_id).__name__}")
    if not 1 <= len(message_id) <= MESSAGE_ID_BYTES_MAX:
        raise InvalidRequest(f"a message id of {len(message_id)} bytes", hint=f"1 to {MESSAGE_ID_BYTES_MAX} bytes")
    return message_id


def check_headers(headers: object) -> tuple[tuple[str, bytes | None], ...]:
    """Return `headers`, a mapping or pairs, as pairs: in order, duplicates kept, text as UTF-8. Raises
    InvalidRequest."""
    if isinstance(headers, Mapping):
        headers = list(headers.items())
    if not isinstance(headers, list | tuple):
        raise InvalidRequest(f"headers is {type(headers).__name__}", hint=HEADERS_HINT)
    checked = []
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRequest(f"headers: {pair!r} is not a pair", hint=HEADERS_HINT)
        name, value = pair
        if not isinstance(name, str):
            raise InvalidRequest(
                f"headers: name {name!r} is {type(name).__name__}, not str", hint="pass the header's name as text"
            )
        if value is not None and not isinstance(value, str | bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"headers: the value of {name!r} is {type(value).__name__}, not bytes, str or None",
                hint="encode it first, such as str(value)",
            )
        try:
            name.encode()
            value = value.encode() if isinstance(value, str) else check_value(value)
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"headers: {name!r} is not text: {error.reason}", hint="pass bytes for what is not text"
            ) from None
        checked.append((name, value))
    return tuple(checked)


def header_bytes(headers: Headers) -> int:
    """The size that `headers` add to a batch, or a little more."""
    return sum(HEADER_OVERHEAD_BYTES + 4 * len(name) + len(value or b"") for name, value in headers)


def check_timestamp(timestamp: object) -> int:
    """Return `timestamp` as microseconds since 1970 UTC. Raises InvalidRequest."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidRequest("a time without a zone", hint="pass one with a zone: time.replace(tzinfo=UTC)")
        return (timestamp - _EPOCH) // _MICROSECOND
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        if not TIMESTAMP_US_MIN <= timestamp <= TIMESTAMP_US_MAX:
            raise InvalidRequest(f"{timestamp} us lies outside the years 1 to 9999", hint=TIME_HINT)
        return timestamp
    raise InvalidRequest(f"a timestamp is a datetime or microseconds, not {type(timestamp).__name__}", hint=TIME_HINT)


def as_datetime(timestamp_us: int) -> datetime:
    """Return microseconds since 1970 UTC as a datetime."""
    return _EPOCH + timedelta(microseconds=timestamp_us)
