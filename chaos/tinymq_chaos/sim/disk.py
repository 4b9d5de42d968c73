"""A broker's disk in the simulator: FaultyFiles that know the named points at which a process may die.

A point is a pattern over the operations that change a disk, as FaultyFiles names them ("create groups/..."). When one
is reached the process dies there, or a few operations later.
"""

from __future__ import annotations

import fnmatch
import posixpath
import random
from collections.abc import Callable

from tinymq.testing.faulty_files import FaultyFiles

FIRST_SEGMENT = "00000000000000000001.log"

POINTS: dict[str, tuple[str, str]] = {  # name: (what it looks like, what it must not look like)
    "segment roll": ("create groups/*/*/*.log", f"*/{FIRST_SEGMENT}"),
    "checkpoint": ("* groups/*/*/*.state*", ""),
    "topic creation": (f"create groups/*/*/{FIRST_SEGMENT}", ""),
    "topic deletion": ("remove groups/*", ""),
    "set-aside": ("* aside*", ""),
    "install": ("create groups/*/*/*.count*", ""),
    "marks": ("* marks*", ""),
    "ballots": ("* ballots-*", ""),
    "forming": ("* metadata-first-entry*", ""),
}


class SimFiles(FaultyFiles):
    """One machine's disk, for as long as it is not wiped."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._point: tuple[str, str] | None = None
        self._skip = 0
        self._operations_after = 0
        self._bytes_written = 0

    def crash_at(self, point: str, *, skip: int, operations_after: int, bytes_written: int) -> None:
        """Stop at this point of POINTS, after it was passed `skip` times, and so many operations further on."""
        self._point = POINTS[point]
        self._skip, self._operations_after, self._bytes_written = skip, operations_after, bytes_written

    def forget_crash(self) -> None:
        self._point = None

    def step(self, what: str, length: int = 0) -> int:
        if self._point is not None and self._matches(what, *self._point):
            if self._skip == 0:
                self._point = None
                self.crash_after(self._operations_after, bytes_written=self._bytes_written)
            self._skip -= 1
        del self.trace[:]  # hours of operations are not kept
        return super().step(what, length)

    @staticmethod
    def _matches(what: str, pattern: str, unless: str) -> bool:
        return fnmatch.fnmatchcase(what, pattern) and not (unless and fnmatch.fnmatchcase(what, unless))

    def lose_folder(self, folder: str) -> None:
        """As if it had never been: no crash brings it back."""
        self.remove_tree(folder)
        self.sync_folder(posixpath.dirname(folder))

    def mend_reads(self) -> None:
        self._failing_reads.clear()

    def files_of(self, matching: Callable[[str], bool]) -> list[str]:
        return [path for path in self.paths() if matching(path)]
