"""Puts a topic's settings on the wire as an application wrote them, and reads a producer's bounds from them. Pure.

The broker refuses settings that it does not know, or whose value is out of range (tinymq/base/topic_config.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from tinymq.base.errors import InvalidConfig, InvalidRequest
from tinymq.base.topic_config import NO_BOUND, SETTINGS_MAX
from tinymq.proto import tinymq_pb2 as pb

TEXT_CHARS_MAX = 1000
NUMBER_MAX = (1 << 63) - 1
KEPT_BATCHES_MIN = 8  # retention_bytes should hold at least this many batches
AIM_BYTES_MIN = 16 * 1024  # but retention makes no batch smaller than this


class TopicBounds(NamedTuple):
    """The bounds that a topic's settings put on one batch: no batch may be larger than a whole partition."""

    records_max: int = NUMBER_MAX
    bytes_max: int = NUMBER_MAX  # of a batch as stored
    # The size that a batch of several records should not exceed. Retention removes whole batches, so large batches
    # would make it keep too much or too little.
    batch_bytes_aim: int = NUMBER_MAX


UNBOUNDED = TopicBounds()


def read_bounds(settings: Iterable[tuple[str, str]]) -> TopicBounds:
    """Read the bounds from a topic's settings off the wire.

    A setting that is missing, or no number, sets no bound here: the broker still applies its own.
    """
    named = dict(settings)
    records_max, bytes_max, kept = (
        _bound(named.get(name, "")) for name in ("max_records", "max_bytes", "retention_bytes")
    )
    return TopicBounds(records_max, bytes_max, max(AIM_BYTES_MIN, kept // KEPT_BATCHES_MIN))


def _bound(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else NUMBER_MAX


def write_settings(settings: object) -> list[pb.Setting]:
    """Put settings by name on the wire: text, a whole number, None for no bound, or a value of Storage or OnFull.

    Raises InvalidRequest; InvalidConfig for any other value.
    """
    if not isinstance(settings, Mapping):
        raise InvalidRequest(
            f"settings is {_kind(settings)}, not a mapping", hint='such as {"retention_ms": 86_400_000}'
        )
    if len(settings) > SETTINGS_MAX:
        raise InvalidRequest(f"{len(settings)} settings", hint=f"name at most {SETTINGS_MAX} at once")
    return [pb.Setting(name=_name(name), value=_text(name, value)) for name, value in settings.items()]


def _name(name: object) -> str:
    if isinstance(name, str) and _is_plain(name):
        return name
    raise InvalidRequest(f"a setting is named by {_kind(name)}, or oddly", hint="settings are named by short text")


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return NO_BOUND
        case Enum(value=str(text)) | str(text) if _is_plain(text):
            return text
        case int() if not isinstance(value, bool) and abs(value) <= NUMBER_MAX:
            return str(value)
        case int() if not isinstance(value, bool):
            raise InvalidConfig(f"{name} is a number of {value.bit_length()} bits", hint=f"at most {NUMBER_MAX}")
    raise InvalidConfig(f"{name} is {_kind(value)}, or odd", hint="write a whole number, text, or None for no bound")


def _kind(value: object) -> str:
    return type(value).__name__


def _is_plain(text: str) -> bool:
    """Can it be sent? Protocol Buffers refuse lone surrogates, and long text is refused here."""
    return len(text) <= TEXT_CHARS_MAX and not any("\ud800" <= char <= "\udfff" for char in text)
