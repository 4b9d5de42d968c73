"""flight_delays under spark-submit, killed in the middle of a micro-batch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.flight_delays import TOPIC, WINDOWS
from pipelines.following import Reports
from pipelines.processes import processes
from pipelines.streams import BatchResult
from pipelines.submitting import Submitted

LOOK_S = 0.02
CONF = {"spark.sql.shuffle.partitions": "2"}


@dataclass(slots=True)
class Runs:
    """Runs of one pipeline with the same directories."""

    folder: Path
    servers: str
    batch_records: int
    reports: Reports = field(init=False)
    sessions: list[int] = field(default_factory=list)  # of all runs

    def __post_init__(self) -> None:
        self.reports = Reports(self.folder / "progress")

    def arguments(self) -> list[str]:
        """Of every run."""
        given: Mapping[str, object] = {
            "--servers": self.servers,
            "--results": self.folder / "results",
            "--checkpoint": self.folder / "checkpoint",
            "--batch-records": self.batch_records,
            "--progress": self.folder / "progress",
        }
        return [*(str(text) for pair in given.items() for text in pair), "--until-end"]

    def start(self) -> Submitted:
        """One more run."""
        run = Submitted("flight_delays.py", self.arguments(), self.folder / "log", CONF)
        self.sessions.append(run.session)
        return run

    def planned(self, query: str) -> set[int]:
        """The planned micro-batches: some are under way, or were when their query ended."""
        return self._numbers(query, "offsets")

    def committed(self, query: str) -> set[int]:
        """The committed micro-batches."""
        return self._numbers(query, "commits")

    def under_way(self, query: str) -> set[int]:
        return self.planned(query) - self.committed(query)

    def kill_within(self, run: Submitted, query: str, batch: int, timeout_s: float, *, also: Callable[[], bool]) -> int:
        """Kill it, kill -9, in the middle of micro-batch `batch` of `query` or of a later one, when `also` holds;
        returns its number. SIGSTOP stops the process for the check, so a batch that is under way then is under way at
        the kill.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.wait(run, lambda: any(each >= batch for each in self.under_way(query)) and also(), deadline)
            os.killpg(run.session, signal.SIGSTOP)
            self.wait(run, lambda: _states(run.session) <= {"T", "Z"}, deadline)
            under_way = self.under_way(query)
            if under_way:
                run.kill()
                assert self.under_way(query) == under_way
                return max(under_way)
            os.killpg(run.session, signal.SIGCONT)

    def finish(self, run: Submitted, timeout_s: float) -> list[BatchResult]:
        """Wait until it ends successfully. Returns the reports of all runs."""
        code = run.wait(timeout_s)
        assert code == 0, self.said(run)
        list(self.reports.news())
        return self.reports.seen

    def wait(self, run: Submitted, holds: Callable[[], bool], deadline: float) -> None:
        """Return when `holds()` is true. Fails when the run ends first, or at the deadline."""
        while not holds():
            assert time.monotonic() < deadline, f"it did not come true: {self.said(run)}"
            try:
                code = run.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"it ended with {code} before that: {self.said(run)}")

    def said(self, run: Submitted) -> str:
        """The end of its output."""
        return run.log.read_text(errors="replace")[-4000:]

    def _numbers(self, query: str, kind: str) -> set[int]:
        folder = self.folder / "checkpoint" / query / kind
        return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.exists() else set()


def _states(group: int) -> set[str]:
    """The states of the processes of a session that are in its first group: Java and the driver."""
    return {each.state for each in processes(group) if each.group == group}


def left_of(session: int) -> list[str]:
    """The names of the running processes of a session."""
    return [each.name for each in processes(session) if each.state != "Z"]


__all__ = ["TOPIC", "WINDOWS", "Runs", "left_of"]
