"""Start positions as written on the command line. Pure.

start           the first record that is stored
end             the end of the log: only records that are written from now on
-10             the last ten records of each partition
42              offset 42 of each partition
@2026-01-01T00:00Z, @1767225600, @1767225600.5    the first record at or after a time (ISO 8601 or seconds)
@-1h, @-90s     the first record of the last hour, or of the last 90 seconds
@12:00          the first record since it was last 12:00 in UTC

`start` and `end` may be written `earliest` and `latest`, as the Python client does.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import Offset
from tinymq.cli.common.units import parse_seconds

DIGITS_MAX = 18  # offsets stay below 2^63
HINT = "write start, end, 42, -10, @-1h, @12:00 or @2026-01-01T00:00Z"
WORDS: dict[str, Literal["earliest", "latest"]] = {
    "start": "earliest", "end": "latest", "earliest": "earliest", "latest": "latest",
}  # fmt: skip
CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` records of each partition."""

    count: int


Start = Literal["earliest", "latest"] | Offset | Last | datetime  # the client takes all of these except Last


def parse_start(text: str) -> Start:
    """Parse the value of `--offset`. A time without a zone is UTC. Raises InvalidRequest."""
    if text in WORDS:
        return WORDS[text]
    if text.startswith("@"):
        return parse_time(text[1:])
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS_MAX:
        near = difflib.get_close_matches(text, [*WORDS, "beginning", "first"], 1)
        meant = near[0] if near and near[0] in WORDS else "start" if near else ""
        raise InvalidRequest(f"{text!r} is not a place to start", hint=f"did you mean {meant!r}?" if meant else HINT)
    return Last(int(digits)) if text.startswith("-") else Offset(int(digits))


def parse_time(text: str, hint: str = HINT, now: datetime | None = None) -> datetime:
    """Parse ISO 8601, seconds since 1970, a time before `now` (-1h), or the last time that it was 12:00.

    A time without a zone is UTC. Raises InvalidRequest.
    """
    now = now or datetime.now(UTC)
    if text.startswith("-") and text[-1:].isalpha():
        return now - timedelta(seconds=parse_seconds(text[1:]))
    if clock := CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        today = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return today if today <= now else today - timedelta(days=1)
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass  # not a number of seconds, so try ISO 8601
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a time", hint=hint) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
