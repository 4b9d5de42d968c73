"""Follows streaming queries until they end, and records the progress of each micro-batch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.2  # Spark keeps the last 100 progress reports, enough between two polls


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one micro-batch."""

    query: str
    batch: int
    rows_in: int
    rows_out: int  # -1: the sink does not say
    dropped: int  # rows that were later than the watermark, and are in no result
    watermark: str  # "" before there is one
    observed: Mapping[str, Mapping[str, Any]]  # metric name -> column -> value
    seconds: float

    def __str__(self) -> str:
        out = f", {self.rows_out:,} rows out" if self.rows_out >= 0 else ""
        until = f", complete up to {self.watermark}" if self.watermark else ""
        dropped = f", {self.dropped:,} CAME TOO LATE" if self.dropped else ""
        return f"{self.query} {self.batch}: {self.rows_in:,} rows in{out}{until}{dropped} ({self.seconds:.1f} s)"


def progress_of(report: Mapping[str, Any]) -> BatchResult:
    """Read Spark's own JSON report of a micro-batch."""
    operators = report.get("stateOperators") or ()
    watermark = str((report.get("eventTime") or {}).get("watermark", ""))
    return BatchResult(
        query=str(report.get("name") or "query"),
        batch=int(report["batchId"]),
        rows_in=int(report.get("numInputRows") or 0),
        rows_out=int((report.get("sink") or {}).get("numOutputRows", -1)),
        dropped=sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators),
        watermark="" if watermark.startswith("1970-01-01T00:00:00") else watermark,
        observed=report.get("observedMetrics") or {},
        seconds=int((report.get("durationMs") or {}).get("triggerExecution", 0)) / 1000,
    )


class Journal:
    """Takes every report of running queries once, in order, appends it to a file, and passes it to `say`."""

    def __init__(self, file: Path | None, say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._seen: dict[str, int] = {}  # run id -> the newest reported batch
        self.taken: list[BatchResult] = []

    def look(self, query: StreamingQuery) -> None:
        """Take the new reports. The report of an idle query has the number of the next batch, and is left out."""
        for report in query.recentProgress:
            document = json.loads(report.json)
            if document["batchId"] <= self._seen.get(document["runId"], -1) or "addBatch" not in document["durationMs"]:
                continue
            self._take(document)

    def _take(self, document: Mapping[str, Any]) -> None:
        progress = progress_of(document)
        self._seen[document["runId"]] = progress.batch
        self.taken.append(progress)
        if self._file is not None:
            with self._file.open("a") as out:
                out.write(json.dumps(document, separators=(",", ":")) + "\n")
        self._say(str(progress))

    def carry(self, starts: Sequence[Callable[[], StreamingQuery]], restarts: int) -> None:
        """Start these queries, and return when they have ended.

        A query that fails stops the others. All are then started again from their checkpoints, up to `restarts` times.
        After that the failure's StreamingQueryException is raised. Spark itself retries tasks, but not queries. A query
        fails, for example, if its Python process does not start within 10 s. A restart then loses nothing.
        """
        for left in reversed(range(restarts + 1)):
            try:
                self.follow(*(start() for start in starts))
            except StreamingQueryException as error:
                if not left:
                    raise
                self._say(f"a query failed, and is started again from its checkpoint: {_first_line(error)}")
            else:
                return

    def follow(self, *queries: StreamingQuery) -> None:
        """Return when the queries have ended. A query that fails stops the others, and its StreamingQueryException is
        raised.
        """
        try:
            while all(query.isActive for query in queries):
                for query in queries:
                    self.look(query)
                time.sleep(LOOK_S)
        finally:
            for query in queries:
                query.stop()
                self.look(query)
        for query in queries:
            query.awaitTermination()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
