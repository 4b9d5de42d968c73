"""The flights as records: sorted, typed, and the same on every run."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from examples.flights import source

HEAD = "year,dep_time,carrier,flight,tailnum,air_time,time_hour"
ROWS = (
    "2013,517,UA,1545,N14228,227,2013-01-01T11:00:00Z",
    "2013,NA,UA,9,NA,NA,2013-01-01T10:00:00Z",
    "2013,600,UA,10,N2,1.5,2013-01-01T10:00:00Z",
    "2013,601,AA,99,N3,3,2013-01-01T10:00:00Z",
    "2013,602,AA,99,N4,3,2013-01-01T10:00:00Z",
)


def test_sorted_by_hour_carrier_and_number_with_ties_in_file_order() -> None:
    flights = list(source.flights([HEAD, *ROWS]))
    assert [f.key for f in flights] == [b"AA99", b"AA99", b"UA9", b"UA10", b"UA1545"]
    assert [json.loads(f.value)["tailnum"] for f in flights][:2] == ["N3", "N4"]


def test_na_is_null_and_numbers_are_numbers() -> None:
    flight = next(f for f in source.flights([HEAD, *ROWS]) if f.key == b"UA9")
    assert json.loads(flight.value) == {
        "year": 2013, "dep_time": None, "carrier": "UA", "flight": 9, "tailnum": None, "air_time": None,
        "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert flight.timestamp_us == datetime(2013, 1, 1, 10, tzinfo=UTC).timestamp() * 1_000_000
    fraction = next(f for f in source.flights([HEAD, *ROWS]) if f.key == b"UA10")
    assert json.loads(fraction.value)["air_time"] == 1.5


def test_a_data_set_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(source.DataMissing, match="make run"):
        source.find_data()
