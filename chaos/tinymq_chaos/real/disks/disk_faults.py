"""The faults of one disk, as they were asked for: no file is touched here."""

from __future__ import annotations

import errno
import fnmatch
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tinymq.base.errors import DiskFull, StorageError

SYNCS_DELAYED, SYNCS_FAILED = "syncs delayed", "syncs failed"
WRITES_REFUSED, READS_FAILED = "writes refused", "reads failed"


def end_process() -> None:
    """As if it had never been told: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal is on its way


class DiskFaults:
    """Asked for from any thread, looked up by the disk's own. Without any it is a disk that works.

    Patterns are of fnmatch, over paths; a "*" goes over "/", too. `die` ends the process.
    """

    def __init__(self, die: Callable[[], None] = end_process) -> None:
        self.operations = 0  # that change the disk, so far
        self.counts: Counter[str] = Counter()  # what the faults did, so far
        self.told: Callable[[Mapping[str, int]], None] = lambda counts: None  # each time that they do something
        self.die = die
        self._lock = threading.RLock()
        self._mended = threading.Event()
        self._slow: tuple[str, float] | None = None
        self._failing_syncs: list[tuple[str, bool]] = []  # pattern, once
        self._failing_reads: list[str] = []
        self._bytes_left: int | None = None
        self._dies_at: tuple[str, int, int] | None = None

    # Asking

    def mend(self, what: str = "") -> None:
        """This fault ("slow_sync", ...) is over, or all of them. What they did stays done."""
        with self._lock:
            if what in ("", "slow_sync"):
                self._slow = None
                mended, self._mended = self._mended, threading.Event()
                mended.set()
            if what in ("", "fail_sync"):
                self._failing_syncs.clear()
            if what in ("", "fail_read"):
                self._failing_reads.clear()
            if what in ("", "disk_full"):
                self._bytes_left = None
            if what in ("", "die_at"):
                self._dies_at = None

    def slow_sync(self, seconds: float, pattern: str = "*") -> None:
        """Each sync of what matches takes so much longer, or until mended."""
        self._slow = (pattern, seconds)

    def fail_sync(self, pattern: str = "*", once: bool = False) -> None:
        """Syncs of files and folders whose path matches fail with EIO, and write nothing; `once`: the next one."""
        with self._lock:
            self._failing_syncs.append((pattern, once))

    def fail_read(self, pattern: str = "*") -> None:
        """Reads of files whose path matches fail with EIO."""
        self._failing_reads.append(pattern)

    def disk_full(self, bytes_left: int = 0) -> None:
        """Files may grow by this much altogether, and by what is freed meanwhile."""
        self._bytes_left = bytes_left

    def die_at(self, pattern: str = "*", operations: int = 0, bytes_written: int = 0) -> None:
        """End the process instead of the first operation that matches ("write groups/..."), or of one so many
        operations after it; of a write, do the first bytes, but not all of them."""
        self._dies_at = (pattern, operations, bytes_written)

    def _did(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1
            self.told(self.counts)

    # What a disk asks before it does something

    def step(self, what: str, length: int = 0) -> int:
        """Count an operation that changes the disk; how many of `length` bytes it gets to do before the end: all, or
        fewer than all."""
        self.operations += 1
        if self._dies_at is None:
            return length
        with self._lock:
            if self._dies_at is None:
                return length
            pattern, left, bytes_written = self._dies_at
            if not fnmatch.fnmatchcase(what, pattern):
                return length
            self._dies_at = ("*", max(0, left - 1), bytes_written)
            if left > 0:
                return length
        if not length:
            self.die()
        return min(bytes_written, length - 1)

    def room(self, size: int, end: int, whole: str = "") -> int:
        """Where a file of `size` bytes that is to have `end` has to stop; with `whole`, it is cut or extended, and
        raises DiskFull where that is not possible."""
        if self._bytes_left is None or end == size:
            return end
        with self._lock:
            if self._bytes_left is None:
                return end
            grown = min(max(0, self._bytes_left), end - size)
            if grown < end - size:
                self._did(WRITES_REFUSED)
            if whole and grown < end - size:
                raise DiskFull(f"no room to {whole}", path=whole.partition(" ")[2])
            if end < size and not whole:
                return end
            self._bytes_left -= grown
            return size + grown

    def freed(self, length: int) -> None:
        """A file of so many bytes is removed."""
        with self._lock:
            if self._bytes_left is not None:
                self._bytes_left += length

    def check_read(self, path: str) -> None:
        """Raises StorageError."""
        if self._failing_reads and any(fnmatch.fnmatchcase(path, pattern) for pattern in self._failing_reads):
            self._did(READS_FAILED)
            raise StorageError(f"cannot read {path}: {os.strerror(errno.EIO)}", path=path)

    def fails(self, path: str) -> bool:
        """Whether this sync of it does."""
        with self._lock:
            for at, (pattern, once) in enumerate(self._failing_syncs):
                if fnmatch.fnmatchcase(path, pattern):
                    if once:
                        del self._failing_syncs[at]
                    self._did(SYNCS_FAILED)
                    return True
        return False

    def wait(self, paths: Sequence[str]) -> None:
        """As long as a sync of them takes more than it should."""
        slow, mended = self._slow, self._mended
        if slow is not None and any(fnmatch.fnmatchcase(path, slow[0]) for path in paths):
            self._did(SYNCS_DELAYED)
            mended.wait(slow[1])
