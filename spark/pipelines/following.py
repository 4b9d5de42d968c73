"""Spark's reports of micro-batches, read from the file that a program appends them to (`--progress`), as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pipelines.streams import Progress, progress_of


class Reports:
    """What a file has said so far, and what it says next."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0  # bytes: whole lines
        self.seen: list[Progress] = []

    def news(self) -> Iterator[Progress]:
        """Those since the last call; a line that is not whole yet comes with a later one."""
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
        """What that query has read so far."""
        return sum(each.rows_in for each in self.seen if each.query == query)
