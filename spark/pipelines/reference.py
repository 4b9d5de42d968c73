"""Computes the expected delays with pandas, from a file that passed neither through Spark nor through a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.delays import DELAYS, LATE_MIN


def delays(path: Path) -> pd.DataFrame:
    """Return the delays in the zipped CSV at `path`, with the columns of DELAYS, sorted by hour and airport."""
    return of_flights(pd.read_csv(path, usecols=["time_hour", "origin", "dep_delay"], parse_dates=["time_hour"]))


def of_flights(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the delays of flights with the columns time_hour (UTC), origin and dep_delay."""
    delay = flights["dep_delay"]
    prepared = flights.assign(hour=flights["time_hour"].dt.floor("h"), airport=flights["origin"])
    prepared["departed"] = delay.notna()
    prepared["late"] = delay > LATE_MIN
    grouped = prepared.groupby(["hour", "airport"])
    delays_by_window = pd.DataFrame(
        {
            "flights": grouped.size(),
            "departed": grouped["departed"].sum(),
            "late": grouped["late"].sum(),
            "delay_min": grouped["dep_delay"].sum().astype("int64"),
            "worst_min": grouped["dep_delay"].max().astype("Int32"),
        }
    )
    return delays_by_window.reset_index()[DELAYS.names]


def rows(delays_by_window: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as plain values, with None for missing ones."""
    hours = [hour.to_pydatetime() for hour in delays_by_window["hour"]]
    plain = delays_by_window.drop(columns="hour").astype(object).where(delays_by_window.notna(), None)
    return [
        {"hour": hour, **{str(name): value for name, value in row.items()}}
        for hour, row in zip(hours, plain.to_dict("records"), strict=True)
    ]
