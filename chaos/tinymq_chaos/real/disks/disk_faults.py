"""The requested faults of one disk. No file is touched here."""

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
    """End the process without a handler and without a flush."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # until the signal arrives


class DiskFaults:
    """Faults, which any thread may request and the disk's threads look up. Without faults it is a disk that works.

    Patterns are those of fnmatch, over paths; "*" matches "/", too. `die` ends the process.
    """

    def __init__(self, die: Callable[[], None] = end_process) -> None:
        self.operations = 0  # operations that change the disk, so far
        self.counts: Counter[str] = Counter()  # what the faults did, so far
        # called each time a fault does something
        self.on_effect: Callable[[Mapping[str, int]], None] = lambda counts: None
        self.die = die
        self._lock = threading.RLock()
        self._mended = threading.Event()
        self._slow: tuple[str, float] | None = None
        self._failing_syncs: list[tuple[str, bool]] = []  # (pattern, once)
        self._failing_reads: list[str] = []
        self._bytes_left: int | None = None
        self._dies_at: tuple[str, int, int] | None = None

    # Asking

    def mend(self, what: str = "") -> None:
        """End this fault ("slow_sync", ...), or all of them. Their effects stay."""
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
        """Each sync of a matching path takes so many seconds longer, or until the fault ends."""
        self._slow = (pattern, seconds)

    def fail_sync(self, pattern: str = "*", once: bool = False) -> None:
        """Syncs of matching files and directories fail with EIO, and write nothing; `once`: only the next one."""
        with self._lock:
            self._failing_syncs.append((pattern, once))

    def fail_read(self, pattern: str = "*") -> None:
        """Reads of matching files fail with EIO."""
        self._failing_reads.append(pattern)

    def disk_full(self, bytes_left: int = 0) -> None:
        """Files may grow by this many bytes together, and by bytes that are freed meanwhile."""
        self._bytes_left = bytes_left

    def die_at(self, pattern: str = "*", operations: int = 0, bytes_written: int = 0) -> None:
        """End the process instead of the first matching operation ("write groups/..."), or of one so many operations
        later. If that is a write, do the first `bytes_written` bytes of it.
        """
        self._dies_at = (pattern, operations, bytes_written)

    def _did(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1
            self.on_effect(self.counts)

    # ---- questions of the disk before an operation ----

    def step(self, what: str, length: int = 0) -> int:
        """Count an operation that changes the disk; return how many of `length` bytes it may write before the process
        ends.
        """
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
        """Return where a file of `size` bytes that should grow to `end` has to stop.

        With `whole` the file is cut or extended in one step, and a full disk raises DiskFull.
        """
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
        """A file of so many bytes was removed."""
        with self._lock:
            if self._bytes_left is not None:
                self._bytes_left += length

    def check_read(self, path: str) -> None:
        """Raise StorageError if reads of this path fail."""
        if self._failing_reads and any(fnmatch.fnmatchcase(path, pattern) for pattern in self._failing_reads):
            self._did(READS_FAILED)
            raise StorageError(f"cannot read {path}: {os.strerror(errno.EIO)}", path=path)

    def fails(self, path: str) -> bool:
        """Return whether this sync of the path fails."""
        with self._lock:
            for at, (pattern, once) in enumerate(self._failing_syncs):
                if fnmatch.fnmatchcase(path, pattern):
                    if once:
                        del self._failing_syncs[at]
                    self._did(SYNCS_FAILED)
                    return True
        return False

    def wait(self, paths: Sequence[str]) -> None:
        """Wait as long as a sync of these paths takes longer."""
        slow, mended = self._slow, self._mended
        if slow is not None and any(fnmatch.fnmatchcase(path, slow[0]) for path in paths):
            self._did(SYNCS_DELAYED)
            mended.wait(slow[1])
