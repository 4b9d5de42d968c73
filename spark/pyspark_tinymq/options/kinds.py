"""The kinds of options. Each kind reads a text and returns a value, or raises ValueError.

Pure. Sizes and durations have Spark's form ("64m", "15m"). JSON has the form of the Kafka connector's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_tinymq.json import moments
from pyspark_tinymq.options import ddl, offsets
from tinymq.base.errors import InvalidConfig
from tinymq.base.identity.token import SecretText
from tinymq.client.common.config import check_token

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SIZE = re.compile(r"(\d+) *(?:([kmgt])(?:i?b)?|b|bytes)?", re.IGNORECASE)
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(
    r"(\d+) *(?:(ms|milliseconds?)|(s|sec|seconds?)|(m|min|minutes?)|(h|hours?)|(d|days?))?", re.IGNORECASE
)
_DURATIONS = (0.001, 1.0, 60.0, 3600.0, 86400.0)  # seconds per unit, in the order of the groups of _DURATION


@dataclass(frozen=True, slots=True)
class Kind:
    """`read` parses a stripped text, or raises ValueError. `takes` describes valid texts, for messages and docs."""

    takes: str
    read: Callable[[str], object]


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,20}", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return read


def whole(least: int, most: int = LONG_MAX) -> Kind:
    """Return the kind of whole numbers from `least` to `most`, both included."""
    bound = f", at most {most}" if most < LONG_MAX else ""
    return Kind(f"a whole number, {least} or more{bound}", _whole(least, most))


def choice(*values: str) -> Kind:
    """Return the kind of one of these words. Case is ignored, and the value is spelled as in `values`."""

    def read(text: str) -> str:
        for value in values:
            if text.lower() == value.lower():
                return value
        near = difflib.get_close_matches(text.lower(), [value.lower() for value in values], 1, cutoff=0.5)
        if near:
            raise ValueError(f"did you mean {next(v for v in values if v.lower() == near[0])!r}?")
        raise ValueError

    return Kind("one of " + ", ".join(values), read)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError
    size = int(match[1]) * _SIZES[(match[2] or "").lower()]
    if not 1 <= size <= LONG_MAX:
        raise ValueError
    return size


def duration(least_s: float, most_s: float) -> Kind:
    """Return the kind of durations, whose value is in seconds. A bare number is in milliseconds."""

    def read(text: str) -> float:
        match = _DURATION.fullmatch(text)
        if match is None:
            raise ValueError
        seconds = int(match[1]) * _DURATIONS[max((match.lastindex or 0) - 2, 0)]
        if not least_s <= seconds <= most_s:
            raise ValueError(f"it is at least {least_s:g} s and at most {most_s:.0f} s")
        return seconds

    return Kind("a duration such as 500ms, 30s, 15m, 2h; a bare number is milliseconds", read)


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) != len(names):
        raise ValueError("name each once")
    for name in names:
        check_topic(name)
    return names


def check_topic(name: str) -> str:
    """Return `name`. Raises ValueError unless it can name a topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r:.60} is not a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -")
    return name


def _pattern(text: str) -> str:
    if not text:
        raise ValueError
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from None
    return text


def _zone(text: str) -> str:
    return moments.check_zone(_text(text))


def _token(text: str) -> SecretText:
    try:
        return check_token(SecretText(text))
    except InvalidConfig as error:  # its message does not show the text
        raise ValueError(error.message) from None


TEXT = Kind("text", _text)
TOKEN = Kind("a token, as tinymq user token printed it", _token)
SCHEMA = Kind("columns as Spark's DDL, or the text of schema.simpleString() or schema.json()", ddl.read_schema)
ZONE = Kind("a zone such as UTC, +02:00 or Europe/Paris", _zone)
FLAG = Kind("true or false", _flag)
SIZE = Kind("bytes, or a size such as 64k, 64m, 64MiB, 1g", _size)
TOPICS = Kind("names of topics, with commas between", _topics)
TOPIC = Kind("a topic's name", check_topic)
PATTERN = Kind("a regular expression (Python's) that matches whole names of topics", _pattern)
TIME = Kind("milliseconds since 1970, UTC", _whole(0, LONG_MAX // 1000))
ASSIGNMENT = Kind('JSON such as {"flights":[0,1]}', offsets.read_assignment)
OFFSETS = Kind('earliest, latest, or JSON such as {"flights":{"0":23,"1":-2}}', offsets.read_place)
TIMES = Kind('JSON such as {"flights":{"0":1700000000000}}, in milliseconds since 1970', offsets.read_times)
