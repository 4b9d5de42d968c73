"""A record as it lies in the outbox: checked when it is written, because nobody could mend it afterwards. Pure."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import check_topic_name
from tinymq.client.common.values import HeadersLike, Timestamp, check_headers, check_key, check_timestamp, check_value

PARTITION_MAX = (1 << 31) - 1
HEADERS_HINT = 'headers are JSON: [["name", "dmFsdWU="], ...], each value in base64, or null'


class OutboxRow(NamedTuple):
    """A row that waits for the relay."""

    id: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    timestamp_us: int | None


def columns_of(
    topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None, timestamp: Timestamp | None,
    partition: int | None,
) -> dict[str, Any]:  # fmt: skip
    """The columns of a record by name. Raises InvalidName, InvalidRequest."""
    if partition is not None and (
        not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= PARTITION_MAX
    ):
        raise InvalidRequest(f"partition={partition!r}", hint="a number from 0, or None: the key chooses")
    return {
        "topic": check_topic_name(topic),
        "partition": partition,
        "key": None if key is None else check_key(key),
        "value": check_value(value),
        "headers": headers_as_text(headers),
        "timestamp_us": None if timestamp is None else check_timestamp(timestamp),
    }


def headers_as_text(headers: HeadersLike | None) -> str | None:
    """Headers as JSON. Raises InvalidRequest."""
    if not headers:
        return None
    pairs = check_headers(headers)
    return json.dumps([[name, None if value is None else b64encode(value).decode()] for name, value in pairs])


def headers_of(text: str | None) -> list[tuple[str, bytes | str | None]]:
    """The headers of a row. Raises InvalidRequest if another program has written a text of another form."""
    if text is None:
        return []
    try:
        return [
            (str(name), None if value is None else b64decode(value, validate=True)) for name, value in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"headers that are not readable: {error}", hint=HEADERS_HINT) from None
