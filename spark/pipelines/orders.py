"""The orders of CDNOW, a shop of 1997, as records. No network, no broker.

They come with the distribution `lifetimes`, which is installed only for its data and never imported. A line has a
customer's number, a day, a number of CDs, and dollars; the first line names them:

     customer_id  date number_of_cds  dollar_value
     00001 19970101  1   11.77
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pipelines.refused import Refused

DISTRIBUTION = "lifetimes"
DATA_FILE = "datasets/CDNOW_master.txt"
COLUMNS = ["customer_id", "date", "number_of_cds", "dollar_value"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Record:
    """A record: the customer as key, the order as JSON, its day as timestamp."""

    key: bytes
    value: bytes
    timestamp_us: int  # since 1970 UTC


def find_data(name: str = DATA_FILE) -> Path:
    """Return the path of a data file in the installed distribution. Raises Refused."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        raise Refused(f"{DISTRIBUTION} is not installed: `make pipeline` installs it") from None
    for file in files:
        if file.as_posix().endswith(name):
            return Path(str(file.locate()))
    raise Refused(f"{DISTRIBUTION} has no {name}")


def load(path: Path) -> list[Record]:
    """All orders of the file at `path`, by day; those of a day in the file's order."""
    with path.open(encoding="ascii") as lines:
        return sorted(records(lines), key=lambda record: record.timestamp_us)


def records(lines: Iterable[str]) -> Iterator[Record]:
    """Parse the orders on these lines. Money becomes whole cents, whose sums are exact. Raises ValueError."""
    left = iter(lines)
    if (columns := next(left, "").split()) != COLUMNS:
        raise ValueError(f"the columns are {columns}, not {COLUMNS}")
    for line in left:
        customer, day, cds, dollars = line.split()
        moment = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC)
        cents = Decimal(dollars) * 100
        if cents != int(cents):
            raise ValueError(f"no whole cents: {line.strip()}")
        value = {"customer": customer, "day": moment.date().isoformat(), "cds": int(cds), "cents": int(cents)}
        microseconds = (moment - EPOCH) // timedelta(microseconds=1)
        yield Record(customer.encode(), json.dumps(value, separators=(",", ":")).encode(), microseconds)
