"""The parts of the pipelines that need no Spark: commits, comparisons, charts and arguments."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from pipelines import backfill, chart, committed, comparison, flight_delays, orders, orders_to_delta, reference
from pipelines.arguments import moment
from pipelines.committed import committed_files
from pipelines.following import Reports
from pipelines.returned import returned
from pipelines.streams import Journal, progress_of
from pyspark_tinymq.write.place import PLACE, TaskPlace
from tinymq.client.consume.records import TABLE_SCHEMA

HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
ROW = {"hour": HOUR, "airport": "JFK", "flights": 3, "departed": 2, "late": 1, "delay_min": 40, "worst_min": 38}


def _added(*names: str) -> str:
    entries = [{"path": f"file:///out/{name}", "size": 1, "isDir": False, "action": "add"} for name in names]
    return "\n".join(["v1", *map(json.dumps, entries)])


COMMITTED: dict[str, tuple[dict[str, str], list[str]]] = {
    "nothing": ({}, []),
    "batches in order of number": ({"10": _added("c"), "9": _added("b"), "0": _added("a")}, ["a", "b", "c"]),
    "a batch of nothing": ({"0": "v1", "1": _added("a")}, ["a"]),
    "a compact stands for what is before it": (
        {"8": _added("old"), "9.compact": _added("a", "b"), "10": _added("c")},
        ["a", "b", "c"],
    ),
    "the newest compact": ({"9.compact": _added("a"), "19.compact": _added("a", "b"), "18": _added("b")}, ["a", "b"]),
    "other files": ({".0.crc": "?", "0": _added("a"), ".1.tmp": _added("b")}, ["a"]),
    "names with escapes": ({"0": _added("a%20b%25")}, ["a b%"]),
}


@pytest.mark.parametrize("case", COMMITTED)
def test_the_committed_files_of_a_sink(case: str) -> None:
    log, expected = COMMITTED[case]
    assert committed_files(log) == [f"/out/{name}" for name in expected]


@pytest.mark.parametrize("text", ["v2\n", "v1\n" + _added("a").splitlines()[1].replace("add", "delete")])
def test_a_log_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="_spark_metadata/0"):
        committed_files({"0": text})


def test_only_committed_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        committed.read(tmp_path)
    for name in ("in", "left by a killed batch"):
        pq.write_table(pa.table({"name": [name]}), tmp_path / f"{name}.parquet")
    (tmp_path / committed.LOG).mkdir()
    entry = {"path": (tmp_path / "in.parquet").as_uri(), "action": "add"}
    (tmp_path / committed.LOG / "0").write_text(f"v1\n{json.dumps(entry)}")
    (tmp_path / committed.LOG / ".0.crc").write_bytes(b"crc\0\xe4")
    assert committed.read(tmp_path).to_pylist() == [{"name": "in"}]


def test_the_reference_counts_cancelled_flights_apart() -> None:
    text = (
        "time_hour,origin,dep_delay\n2013-01-01T10:00:00Z,JFK,38\n2013-01-01T10:00:00Z,JFK,2\n"
        "2013-01-01T10:00:00Z,JFK,NA\n2013-01-01T11:00:00Z,EWR,NA\n2013-01-01T10:00:00Z,EWR,15\n"
    )
    found = reference.rows(reference.of_flights(pd.read_csv(io.StringIO(text), parse_dates=["time_hour"])))
    later = HOUR + timedelta(hours=1)
    assert found == [
        {"hour": HOUR, "airport": "EWR", "flights": 1, "departed": 1, "late": 0, "delay_min": 15, "worst_min": 15},
        ROW,
        {"hour": later, "airport": "EWR", "flights": 1, "departed": 0, "late": 0, "delay_min": 0, "worst_min": None},
    ]


DIFFERENCES: dict[str, tuple[list[dict[str, Any]], dict[str, int]]] = {
    "equal": ([ROW], {}),
    "missing": ([], {"missing": 1}),
    "twice": ([ROW, ROW], {"twice": 1}),
    "another figure": ([ROW | {"late": 2}], {"different": 1}),
    "null for a figure": ([ROW | {"worst_min": None}], {"different": 1}),
    "another airport": ([ROW | {"airport": "LGA"}], {"missing": 1, "foreign": 1}),
    "another hour": ([ROW, ROW | {"hour": HOUR + timedelta(hours=1)}], {"foreign": 1}),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_differences_are_counted_and_named(case: str) -> None:
    found, expected = DIFFERENCES[case]
    verdict = comparison.compare(found, [ROW])
    counts = {name: getattr(verdict, name) for name in ("missing", "foreign", "twice", "different")}
    assert counts == dict.fromkeys(counts, 0) | expected
    assert verdict.same == (not expected)
    assert sorted(example.partition(":")[0] for example in verdict.examples) == sorted(expected)


def test_many_differences_are_counted_whole_and_shown_in_part() -> None:
    rows = [ROW | {"hour": HOUR + timedelta(hours=n)} for n in range(100)]
    verdict = comparison.compare([], rows)
    assert verdict.missing == 100
    assert len(verdict.examples) == comparison.EXAMPLES_MAX


def test_a_repeat_in_the_topic_is_recognized_by_its_place() -> None:
    place = TaskPlace("query", 7, 0)
    places = [place.of_rows(n, 1)[0].as_py() for n in (0, 0, 1)]
    headers = [[{"key": PLACE, "value": b"of an earlier query"}, {"key": PLACE, "value": each}] for each in places]
    headers += [None, [{"key": "other", "value": b""}]]
    value = json.dumps({**ROW, "hour": "2013-01-01T10:00:00.000Z"}).encode()
    records = [
        {"partition": 0, "offset": n, "key": b"JFK", "value": value, "headers": each, "timestamp": HOUR}
        for n, each in enumerate(headers)
    ]
    found = returned(pa.Table.from_pylist(records, TABLE_SCHEMA))
    assert found.rows == (ROW,) * 4
    assert found.repeats == 1


def test_orders_are_read_by_day_with_whole_cents(tmp_path: Path) -> None:
    lines = [" customer_id  date number_of_cds  dollar_value\r\n", " 00002 19970112  1   12.00\r\n"]
    lines.append(" 00001 19970101  2   11.77\r\n")
    (tmp_path / "orders").write_text("".join(lines))
    first, second = orders.load(tmp_path / "orders")
    assert json.loads(first.value) == {"customer": "00001", "day": "1997-01-01", "cds": 2, "cents": 1177}
    assert (first.key, second.key) == (b"00001", b"00002")
    assert first.timestamp_us == int(datetime(1997, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    "lines", [[], ["id date\n"], [" ".join(orders.COLUMNS), "1 19970101 1 0.001"], [" ".join(orders.COLUMNS), "1 2 3"]]
)
def test_lines_that_are_no_orders_are_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        list(orders.records(lines))


REPORT: dict[str, Any] = {
    "name": "windows",
    "batchId": 4,
    "numInputRows": 12,
    "durationMs": {"addBatch": 900, "triggerExecution": 1500},
    "stateOperators": [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}],
    "eventTime": {"watermark": "2013-01-01T00:00:00.000Z"},
    "sink": {"numOutputRows": -1},
    "observedMetrics": {"records": {"unreadable": 1}},
}


def test_a_report_counts_rows_that_came_too_late() -> None:
    progress = progress_of(REPORT)
    assert (progress.batch, progress.rows_in, progress.dropped, progress.seconds) == (4, 12, 3, 1.5)
    assert progress.observed["records"]["unreadable"] == 1
    assert f"{progress}" == ("windows 4: 12 rows in, complete up to 2013-01-01T00:00:00.000Z, 3 CAME TOO LATE (1.5 s)")
    first = progress_of({"batchId": 0, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}})
    assert (first.watermark, first.rows_in, first.dropped) == ("", 0, 0)


def test_reports_are_followed_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    reports = Reports(file)
    assert not list(reports.news())
    line = json.dumps(REPORT)
    file.write_text(f"{line}\n{line[:20]}")
    assert len(list(reports.news())) == 1
    with file.open("a") as out:
        out.write(f"{line[20:]}\n")
    assert len(list(reports.news())) == 1
    assert not list(reports.news())
    assert reports.rows_in("windows") == 24


class _Query:
    """The used part of a StreamingQuery: it ends at once with the given result."""

    recentProgress: tuple[()] = ()
    isActive = False

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def stop(self) -> None: ...

    def awaitTermination(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(("failures", "restarts", "raises"), [(0, 0, False), (2, 2, False), (1, 0, True), (3, 2, True)])
def test_a_query_that_fails_is_started_again_so_many_times(failures: int, restarts: int, raises: bool) -> None:
    said: list[str] = []
    outcomes = [StreamingQueryException(f"failure {n}\nand its stack") for n in range(failures)] + [None]
    starts = iter([_Query(outcome) for outcome in outcomes])
    with pytest.raises(StreamingQueryException) if raises else nullcontext():
        Journal(None, said.append).carry([lambda: next(starts)], restarts)  # type: ignore[list-item, return-value]
    assert [line.rpartition(": ")[2] for line in said] == [f"failure {n}" for n in range(min(failures, restarts))]


class _Page(HTMLParser):
    """Collects open tags, texts, and everything that a browser would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.text = ""
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_draws_means_over_flights_in_local_hours() -> None:
    """10:00 UTC is 5:00 in New York in January, and 6:00 in July. A mean over few flights is omitted."""
    july = datetime(2013, 7, 1, 10, tzinfo=UTC)
    rows = [
        ROW | {"departed": 90, "delay_min": 90 * 30},
        ROW | {"departed": 10, "delay_min": 0, "hour": HOUR + timedelta(days=1)},
        ROW | {"departed": 40, "delay_min": -80, "hour": july},
        ROW | {"departed": chart.DEPARTURES_MIN - 1, "delay_min": 9999, "airport": "L<A"},
    ]
    assert chart.means(rows, lambda airport, at: (airport, at.hour)) == {("JFK", 5): 27.0, ("JFK", 6): -2.0}
    text = chart.page(rows, "Delays <2013>", [("windows", "4")])
    page = _Page()
    page.feed(text)
    assert page.counts["polyline"] == 1
    assert page.counts["circle"] == 2
    assert page.counts["rect"] == 2
    assert not page.loads
    assert "Delays <2013>" in page.text
    assert "JFK, 5:00: 27.0 min" in page.text
    assert "<script" not in text


def test_a_page_without_enough_flights_has_a_notice() -> None:
    assert "Too few departures" in chart.page([ROW], "Delays", [])


def test_colours_go_from_pale_to_dark() -> None:
    shades = [sum(bytes.fromhex(chart.heat(minutes)[1:])) for minutes in (-20.0, 0.0, 10.0, 20.0, 30.0, 40.0, 400.0)]
    assert shades == sorted(shades, reverse=True)
    assert shades[0] == shades[1]
    assert shades[-1] == shades[-2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-02-01", datetime(2013, 2, 1, tzinfo=UTC)),
        ("2013-02-01T06:30", datetime(2013, 2, 1, 6, 30, tzinfo=UTC)),
        ("2013-02-01T06:00-05:00", datetime(2013, 2, 1, 11, tzinfo=UTC)),
    ],
)
def test_times_are_utc_unless_they_say(text: str, expected: datetime) -> None:
    assert moment(text) == expected


DELAYS_ARGS = ["--servers", "s:1", "--results", "r", "--checkpoint", "c"]
ORDERS_ARGS = ["--servers", "s:1", "--orders", "o", "--checkpoint", "c"]
BACKFILL_ARGS = ["--servers", "s:1", "--from", "a", "--to", "b", "--since", "2013-01-01", "--until", "2013-01-02"]


@pytest.mark.parametrize(
    ("program", "arguments", "named"),
    [
        (flight_delays, DELAYS_ARGS[2:], "--servers"),
        (flight_delays, [*DELAYS_ARGS, "--batch-records", "0"], "less than 1"),
        (flight_delays, [*DELAYS_ARGS, "--replica", "some"], "follower"),
        (flight_delays, [*DELAYS_ARGS, "--wndow", "1 hour"], "--wndow"),
        (orders_to_delta, [*ORDERS_ARGS, "--customers", "c"], "--until-end"),
        (orders_to_delta, [*ORDERS_ARGS, "--until", "June"], "--until"),
        (backfill, [*BACKFILL_ARGS, "--since", "yesterday"], "is not a time"),
        (backfill, BACKFILL_ARGS[:-2], "--until"),
    ],
)
def test_errors_of_a_command_line_are_named(
    program: Any, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.parse(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("program", [flight_delays, orders_to_delta, backfill])
def test_every_program_tells_what_it_takes(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.parse(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert program.__doc__.partition("\n")[0] in said
    readme = (Path(program.__file__).parent / "README.md").read_text()
    options = {word.strip(",.[]") for word in said.split() if word.startswith(("--", "[--"))} - {"--help"}
    assert not [option for option in options if f"`{option}" not in readme]
