"""What command lines say, as values: for argparse's `type=`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def moment(text: str) -> datetime:
    """A time as ISO 8601 has it, in UTC unless it names a zone: 2013-02-01, 2013-02-01T06:00-05:00."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 2013-02-01 or 2013-02-01T06:00-05:00") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
