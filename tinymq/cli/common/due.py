"""When records are to be delivered, as written on the command line. Pure.

--delay 5m            so long after each record is stored: 90s, 5m, 1.5h, 30d
--deliver-at 18:00    when it is next 18:00 in UTC
--deliver-at 2026-01-01T00:00Z, 1767225600        a time, ISO 8601 or seconds since 1970
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.offsets import CLOCK, parse_time
from tinymq.cli.common.units import parse_seconds

HINT = "write 18:00, 2026-01-01T00:00Z or seconds since 1970; or --delay 5m"

DueTime = timedelta | datetime
"""A delay, or a time."""


def parse_due(delay: str | None, deliver_at: str | None, now: datetime | None = None) -> DueTime | None:
    """Parse `--delay` and `--deliver-at`. None: neither is given. Raises InvalidRequest."""
    if delay is not None and deliver_at is not None:
        raise InvalidRequest("--delay and --deliver-at exclude one another")
    if delay is not None:
        return timedelta(seconds=parse_seconds(delay))
    if deliver_at is None:
        return None
    if deliver_at.startswith("-"):
        raise InvalidRequest(f"{deliver_at!r} is in the past", hint=HINT)
    time = parse_time(deliver_at, HINT, now)
    return time + timedelta(days=1) if CLOCK.fullmatch(deliver_at) else time  # parse_time finds the last such time


def left(deliver_at: datetime, now: datetime | None = None) -> str:
    """How long it is until a time, to the second: "2d 3h", "5m 10s", "due"."""
    seconds = int((deliver_at - (now or datetime.now(UTC))).total_seconds())
    if seconds <= 0:
        return "due"
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number)
