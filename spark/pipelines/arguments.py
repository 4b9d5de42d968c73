"""Converts arguments of the command line to values, for argparse's `type=`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime


def whole(text: str, least: int = 0) -> int:
    """Read a whole number of at least `least`."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return whole(text, 1)


def moment(text: str) -> datetime:
    """Read a time in ISO 8601, in UTC unless it names a zone: 2013-02-01, 2013-02-01T06:00-05:00."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2013-02-01 or 2013-02-01T06:00-05:00"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
