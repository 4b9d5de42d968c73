"""Spark's reports of micro-batches, read from the file that a program appends them to (`--progress`), as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pipelines.streams import BatchResult, progress_of


class Reports:
    """The reports in a file, read as the file grows."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0  # the bytes of the whole lines read so far
        self.seen: list[BatchResult] = []

    def news(self) -> Iterator[BatchResult]:
        """Yield the reports since the last call. An incomplete line waits for a later call."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            progress = progress_of(json.loads(line))
            self.seen.append(progress)
            yield progress

    def rows_in(self, query: str) -> int:
        """Return the number of rows that the query has read so far."""
        return sum(each.rows_in for each in self.seen if each.query == query)
