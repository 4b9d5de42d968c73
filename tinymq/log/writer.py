"""The one writer job of a broker: what all logs and the ballots have to write, in rounds of one sync each.

A round, in the executor:

    1. marks of logs that lose entries are lowered, and synced
    2. each log's operations are carried out in order; changed ballots are written to both copies
    3. all files that were touched are synced side by side, then new names
    4. the logs' new marks are noted: a later round writes and syncs them along, or idling, or a clean stop

and back on the loop each log's durable index rises. What is appended meanwhile goes into the next round.
Only this job writes to logs that are open, so between rounds the disk holds still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from tinymq.clock import Clock, Timer
from tinymq.errors import Closed, DiskFull, StorageError, SyncFailed, TinymqError
from tinymq.log.ballots import Ballot, BallotFile, Ballots
from tinymq.log.files import File, Files, failed_paths
from tinymq.log.layout import BALLOTS, MARKS
from tinymq.log.log import Log
from tinymq.log.marks import Mark, Marks
from tinymq.log.operations import Disk, Operation, Remove, Truncate, is_small, mark_before
from tinymq.log.runner import Runner
from tinymq.types import GroupId

T = TypeVar("T")
SHARED = frozenset((*BALLOTS, MARKS))


@dataclass(frozen=True, slots=True)
class Work:
    """One log's part of a round."""

    operations: list[Operation]
    mark: Mark  # true once they are synced

    @property
    def cuts(self) -> bool:
        """Whether something that may be marked as durable goes."""
        return any(isinstance(operation, Truncate | Remove) for operation in self.operations)


@dataclass(slots=True)
class Outcome:
    """How a round ended: which groups failed, and whether the files that all of them share did."""

    failed: dict[GroupId, TinymqError] = field(default_factory=dict)
    shared: TinymqError | None = None

    def fail(self, works: list[Work], error: TinymqError) -> None:
        """Whoever takes part in a failed sync fails: which pages were lost cannot be told."""
        self.failed = {work.mark.group: error for work in works}


class Rounds:
    """Carries rounds out. Owned by the writer job: no two calls at once, never on the loop while one runs."""

    def __init__(self, files: Files, marks: Marks, ballots: BallotFile) -> None:
        self.marks = marks
        self.broken: StorageError | None = None  # why the marks cannot be relied on any more
        self._files = files
        self._ballots = ballots
        self._disk = Disk(files)

    def carry_out(self, works: list[Work], ballots: dict[GroupId, Ballot], *, with_marks: bool) -> Outcome:
        """One round; `with_marks` takes along what earlier ones noted. A disk that refuses is an outcome, not an
        exception."""
        outcome = Outcome()
        try:
            self._lower_marks(works)
            shared: list[File] = self._ballots.write(ballots) if ballots else []
            if with_marks:
                shared += self.marks.flush()
        except StorageError as error:  # of files that all logs need
            outcome.shared = error
            outcome.fail(works, error)
            return outcome
        self._write(works, outcome)
        try:
            self._disk.sync(shared)
        except SyncFailed as error:
            outcome.fail(works, error)
            if failed_paths(error) & SHARED:
                outcome.shared = error
            return outcome
        if with_marks:
            self.marks.synced()
        for work in works:
            if work.mark.group not in outcome.failed:
                self.marks.note(work.mark)
        return outcome

    def idle(self, marks: list[Mark]) -> Outcome:
        """Make the marks durable."""
        outcome = Outcome()
        try:
            for mark in marks:
                self.marks.note(mark)
            self.marks.flush()
            self.marks.sync()
        except StorageError as error:
            outcome.shared = error
        return outcome

    def put_mark(self, mark: Mark) -> None:
        """Write it, synced. Raises StorageError: but for DiskFull it is unknown then what the file says."""
        try:
            self.marks.write([mark])
            self.marks.sync()
        except DiskFull:
            raise
        except StorageError as error:
            self.broken = error
            raise

    def forget(self, folder: str) -> None:
        """Close what is open of a group."""
        self._disk.forget(folder)

    def close(self) -> None:
        self._disk.close()
        self._ballots.close()
        self.marks.close()

    def _lower_marks(self, works: list[Work]) -> None:
        lowered = []
        for work in works:
            if work.cuts:
                self.marks.unnote(work.mark.group)
                mark = self.marks.get(work.mark.group)
                if mark is not None and (needed := mark_before(work.operations, mark)) != mark:
                    lowered.append(needed)
        if lowered:
            self.marks.write(lowered)
            self.marks.sync()

    def _write(self, works: list[Work], outcome: Outcome) -> None:
        for work in works:
            try:
                for operation in work.operations:
                    self._disk.carry_out(operation)
            except SyncFailed as error:  # some had to be synced early, to open no more files than may be open
                outcome.fail(works, error)
                return
            except StorageError as error:
                outcome.failed[work.mark.group] = error


class Writer:
    """The loop's side: who has something to write, and telling them when it is durable."""

    def __init__(
        self, runner: Runner, clock: Clock, rounds: Rounds, ballots: Ballots, *, idle_mark_s: float, mark_every_s: float
    ) -> None:
        self.on_ballots_failed: Callable[[TinymqError], None] | None = None
        self.on_synced: Callable[[float, int], None] | None = None  # a round ended: seconds that it took, its logs
        self.failed: TinymqError | None = None  # ballots or marks did: the broker has to stop
        self._runner = runner
        self._clock = clock
        self._rounds = rounds
        self._ballots = ballots
        self._idle_mark_s = idle_mark_s
        self._mark_every_s = mark_every_s
        self._marked_s = -mark_every_s  # when a round last took the marks along
        self._dirty: dict[Log, None] = {}  # in the order in which they came
        self._stale: dict[Log, None] = {}  # a newer commit index than in their mark
        self._chores: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._unsynced_marks = False
        self._busy = False  # a round has run since the timer was set
        self._stopped = False

    def add(self, log: Log) -> None:
        """`log` has operations: they go into the next round."""
        if self.failed is not None:
            log.fail(self.failed)
            return
        self._dirty[log] = None
        self.wake()

    def note_mark(self, log: Log) -> None:
        """`log` has a newer commit index: its mark is written again, at the latest after idling."""
        self._stale[log] = None
        if self._timer is None:
            self._set_timer()

    def wake(self) -> None:
        """Begin a round, unless one is under way: then the next one follows it at once."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def alone(self, call: Callable[[], T]) -> T:
        """Make `call` in the executor, between rounds; returns what it returns, or raises what it raises."""
        if self._stopped:
            raise Closed("the data folder is closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._chores.append((call, future))
        self.wake()
        return cast(T, await future)

    async def barrier(self) -> None:
        """Return when what was asked for before this call is written, or failed."""
        await self.alone(_nothing)  # what is dirty by then goes into the round that follows
        await self.alone(_nothing)

    async def drain(self) -> None:
        """Return when there is nothing left to write and no round is under way."""
        while self._task is not None:
            await asyncio.shield(self._task)

    def drop(self, log: Log) -> None:
        """`log` is closed: what it still has to write is not."""
        self._dirty.pop(log, None)
        self._stale.pop(log, None)

    async def close(self) -> None:
        """Clean stop: everything is written, and the marks are synced."""
        await self.drain()
        if self.failed is None:
            await self._idle()
        await self.abandon()

    async def abandon(self) -> None:
        """Stop without writing anything more. A round under way ends first: two writers may never meet."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.drain()
        for _, future in self._chores:
            if not future.done():  # else whoever asked was cancelled
                future.set_exception(Closed("the data folder is closed"))
        self._chores.clear()
        await self._runner.run(self._rounds.close)

    # Rounds

    async def _run(self) -> None:
        try:
            while not self._stopped and self._has_work():
                await self._run_chores()
                if self.failed is not None:
                    self._refuse_all(self.failed)
                elif self._dirty or self._ballots.has_changes():
                    await self._round()
        finally:
            self._task = None

    def _refuse_all(self, error: TinymqError) -> None:
        logs, self._dirty = list(self._dirty), {}
        for log in logs:
            log.fail(error)

    def _has_work(self) -> bool:
        return bool(self._dirty or self._chores or (self.failed is None and self._ballots.has_changes()))

    async def _run_chores(self) -> None:
        chores, self._chores = self._chores, []
        for call, future in chores:
            try:
                result = await self._runner.run(call)
            except BaseException as error:  # whatever it is, it belongs to whoever waits, if anybody still does
                if self._rounds.broken is not None:
                    self._fail(self._rounds.broken)
                if not future.done():
                    future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                if not future.done():
                    future.set_result(result)

    async def _round(self) -> None:
        # One that failed while it was taking more in has nothing to write, and its mark would claim that it had.
        logs, self._dirty = [log for log in self._dirty if log.failed is None], {}
        works = [Work(log.take(), log.mark()) for log in logs]
        ballots = self._ballots.take()
        self._busy = True
        now_s = self._clock.monotonic()
        with_marks = now_s - self._marked_s >= self._mark_every_s
        if with_marks:
            self._marked_s = now_s
        for log in logs:
            self._stale.pop(log, None)
        try:
            lone = len(works) == 1 and not ballots and not with_marks and is_small(works[0].operations)
            run = self._runner.run_short if lone else self._runner.run
            outcome = await run(lambda: self._rounds.carry_out(works, ballots, with_marks=with_marks))
        except Exception as error:  # a broken invariant: nobody may go on waiting, and the task ends with it
            self._fail(StorageError(f"the writer job ended: {error!r}"))
            assert self.failed is not None
            for log in logs:
                log.fail(self.failed)
            raise
        if self.on_synced is not None:
            self.on_synced(self._clock.monotonic() - now_s, len(logs))
        if outcome.shared is not None:
            self._fail(outcome.shared)
        for log in logs:
            if (failed := outcome.failed.get(log.group)) is not None:
                log.fail(failed)
            else:
                log.written()
        if outcome.shared is None:
            self._ballots.written()
        self._unsynced_marks = True
        if self._timer is None:
            self._set_timer()

    def _fail(self, error: TinymqError) -> None:
        if self.failed is None:
            self.failed = error
            if self.on_ballots_failed is not None:
                self.on_ballots_failed(error)

    # Idling

    def _set_timer(self) -> None:
        if not self._stopped and self.failed is None:
            self._busy = False
            self._timer = self._clock.call_later(self._idle_mark_s, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        if self._busy or self._task is not None:
            self._set_timer()
        elif not self._stopped and self.failed is None:
            self._task = asyncio.get_running_loop().create_task(self._run_idle())

    async def _run_idle(self) -> None:
        try:
            await self._idle()
        finally:
            self._task = None
        if self._has_work():
            self.wake()

    async def _idle(self) -> None:
        # No round is under way, so a log without operations is durable up to its end.
        marks = [log.mark() for log in self._stale if log.failed is None and log not in self._dirty]
        self._stale = {}
        if marks or self._unsynced_marks:
            self._unsynced_marks = False
            outcome = await self._runner.run(lambda: self._rounds.idle(marks))
            if outcome.shared is not None:
                self._fail(outcome.shared)


def _nothing() -> None:
    """A chore that only waits its turn."""
