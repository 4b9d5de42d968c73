"""Start positions as written on the command line. Pure.

start           the first record that is stored
end             the end of the log: only records that are written from now on
-10             the last ten records of each partition
42              offset 42 of each partition
@2026-01-01T00:00Z, @1767225600, @1767225600.5    the first record at or after a time (ISO 8601 or seconds)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import Offset

DIGITS_MAX = 18  # offsets stay below 2^63
HINT = "write start, end, 42, -10 or @2026-01-01T00:00Z"


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` records of each partition."""

    count: int


Start = Literal["earliest", "latest"] | Offset | Last | datetime  # the client takes all of these except Last


def parse_start(text: str) -> Start:
    """Parse the value of `--offset`. A time without a zone is UTC. Raises InvalidRequest."""
    if text == "start":
        return "earliest"
    if text == "end":
        return "latest"
    if text.startswith("@"):
        return parse_time(text[1:])
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS_MAX:
        raise InvalidRequest(f"{text!r} is not a place to start", hint=HINT)
    return Last(int(digits)) if text.startswith("-") else Offset(int(digits))


def parse_time(text: str, hint: str = HINT) -> datetime:
    """Parse ISO 8601, or seconds since 1970. A time without a zone is UTC. Raises InvalidRequest."""
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass  # not a number of seconds, so try ISO 8601
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a time", hint=hint) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
