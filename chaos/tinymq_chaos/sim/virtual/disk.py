"""A broker's disk in virtual time: work that takes time, and files with named points at which the process may die.

A point is a pattern over the operations that change a disk, as FaultyFiles names them ("create groups/..."). A process
that reaches the point dies there, or a few operations later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fnmatch
import posixpath
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from tinymq.base.errors import SyncFailed, TinymqError
from tinymq.log.files.files import File
from tinymq.simulation.faulty_files import Crash, FaultyFiles
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop

T = TypeVar("T")

FIRST_SEGMENT = "00000000000000000001.log"

POINTS: dict[str, tuple[str, str]] = {  # name: (pattern that the operation matches, pattern that it must not match)
    "append": ("write groups/*/*/*.log", ""),
    "cut": ("truncate groups/*/*/*.log", ""),
    "head": ("remove groups/*/*/*.log", ""),
    "segment roll": ("create groups/*/*/*.log", f"*/{FIRST_SEGMENT}"),
    "checkpoint": ("* groups/*/*/*.state*", ""),
    "topic creation": (f"create groups/*/*/{FIRST_SEGMENT}", ""),
    "topic deletion": ("rmdir groups/*", ""),
    "set-aside": ("* aside*", ""),
    "install": ("create groups/*/*/*.count*", ""),
    "marks": ("* marks*", ""),
    "ballots": ("* ballots-*", ""),
    "forming": ("* metadata-first-entry*", ""),
}
RECENT = 300  # operations: the points that a disk passed among these are likely to come again soon


class SimDisk:
    """Blocking work of a process. It takes time, has its effect at some moment within, and ends with the process."""

    def __init__(self, loop: VirtualLoop, process: SimProcess, files: FaultyFiles, rng: random.Random) -> None:
        self.delay_s = (0.000_05, 0.002)  # of each half: before the effect and after it
        self.hung: asyncio.Future[None] | None = None  # while set, no operation ends
        self.hung_file: asyncio.Future[None] | None = None  # while set, no call that uses a watched file ends
        self.waits_for_file = 0  # calls that have waited for it
        # called when the files crash in the middle of a call: it ends the process
        self.on_crash: Callable[[], None] | None = None
        self._loop = loop
        self._process = process
        self._files = files
        self._rng = rng
        self._clock = VirtualClock(loop, process)
        self._begun: dict[int, Callable[[], Any]] = {}
        self._count = 0

    async def run(self, call: Callable[[], T]) -> T:
        """Do blocking work, with its effect at the beginning or at the end of the time that the work takes."""
        takes_s = self._rng.uniform(*self.delay_s) + self._rng.uniform(*self.delay_s)
        if self.hung is None and self._rng.random() < 0.5:
            try:
                return await self._carry_out(call)
            finally:
                await self._clock.sleep(takes_s)
        self._count += 1
        number = self._count
        self._begun[number] = call
        await self._clock.sleep(takes_s)
        if self.hung is not None:
            await asyncio.shield(self.hung)  # other operations wait for it, too, so a cancelled one must not cancel it
        if not self._process.alive or number not in self._begun:
            raise asyncio.CancelledError
        del self._begun[number]
        return await self._carry_out(call)

    async def _carry_out(self, call: Callable[[], T]) -> T:
        self._files.reached = False
        try:
            result = call()
        except Crash:
            if self.on_crash is None:
                raise
            self._loop.call_soon(self.on_crash, context=contextvars.Context())
            await self._loop.create_future()  # for ever: the caller is gone
            raise
        if self.hung_file is not None and self._files.reached:
            # The later effects of the call are on the disk already, and nobody is told. A real disk would not have them
            # yet; the product may rely on neither.
            self.waits_for_file += 1
            await asyncio.shield(self.hung_file)
        return result

    @property
    def hangs(self) -> bool:
        """Return whether some operation may wait for the end of a fault."""
        return self.hung is not None or self.hung_file is not None

    async def run_short(self, call: Callable[[], T]) -> T:
        return await self.run(call)

    def die(self) -> None:
        """Stop the machine: every operation in flight is done up to some point."""
        for number in list(self._begun):
            call = self._begun.pop(number)
            if self._rng.random() < 0.7:
                self._files.crash_after(
                    self._rng.randrange(self._rng.choice((2, 4, 12))), bytes_written=self._rng.randrange(2048)
                )
                with contextlib.suppress(Crash, TinymqError):
                    call()


class SimFiles(FaultyFiles):
    """The disk of one machine, until it is wiped."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.struck: str | None = None  # the point at which the disk crashes, or has crashed
        self._passed: dict[str, int] = {}  # by point: the number of the last operation that passed it
        self._point: str | None = None
        self._skip = 0
        self._operations_after = 0
        self._bytes_written = 0
        self.on_failed_sync: Callable[[], None] = lambda: None

    def crash_at(self, point: str, *, skip: int, operations_after: int, bytes_written: int) -> None:
        """Crash at this point of POINTS, after `skip` passes, and `operations_after` operations later."""
        self._point = point
        self._skip, self._operations_after, self._bytes_written = skip, operations_after, bytes_written

    def forget_crash(self) -> None:
        """Stop waiting for the point.

        If the disk has passed it already, the crash still comes and counts as one at the point.
        """
        self._point = None

    def copied(self, rng: random.Random) -> SimFiles:
        """Return another disk with all files as programs see them, as a person copies a directory."""
        copy = SimFiles(rng)
        for path in self.paths():
            folders = path.split("/")[:-1]
            for depth in range(len(folders)):
                copy.make_directory("/".join(folders[: depth + 1]))
            copy.open(path, create=True).close()
            copy.put(path, self.content(path))
            for depth in range(len(folders) + 1):
                copy.sync_directory("/".join(folders[:depth]))
        return copy

    def step(self, what: str, length: int = 0) -> int:
        passed = points_of(what)
        self._passed.update(dict.fromkeys(passed, self.operations))
        if self._point in passed:
            if self._skip == 0:
                self.struck, self._point = self._point, None
                self.crash_after(self._operations_after, bytes_written=self._bytes_written)
            self._skip -= 1
        del self.trace[:]  # hours of operations would fill the memory
        return super().step(what, length)

    def sync(self, files: Sequence[File]) -> None:
        with self._reported():
            super().sync(files)

    def sync_directory(self, path: str) -> None:
        with self._reported():
            super().sync_directory(path)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except SyncFailed:
            self.on_failed_sync()
            raise

    @property
    def passed_lately(self) -> list[str]:
        """Return the points that the disk has passed lately, in the order of POINTS."""
        since = self.operations - RECENT
        return [point for point in POINTS if self._passed.get(point, -1) >= max(0, since)]

    @property
    def unsynced(self) -> bool:
        """Return whether a power cut may take anything away now."""
        return bool(self._pending) or any(inode.dirty or inode.sized for _, inode in self._root.files())

    def seen(self) -> dict[str, bytes]:
        """Return all files as programs see them."""
        return {path: bytes(inode.content) for path, inode in self._root.files()}

    def lose_folder(self, folder: str) -> None:
        """Remove a directory as if it had never existed: no crash brings it back."""
        self.remove_tree(folder)
        self.sync_directory(posixpath.dirname(folder))

    def mend_reads(self) -> None:
        self._failing_reads.clear()

    def files_of(self, matching: Callable[[str], bool]) -> list[str]:
        return [path for path in self.paths() if matching(path)]


@lru_cache(maxsize=4096)
def points_of(what: str) -> tuple[str, ...]:
    """Return the points of POINTS that an operation passes."""
    return tuple(
        point
        for point, (pattern, unless) in POINTS.items()
        if fnmatch.fnmatchcase(what, pattern) and not (unless and fnmatch.fnmatchcase(what, unless))
    )
