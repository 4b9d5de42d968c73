"""The one writer job of a broker: what all logs and the ballots have to write, in rounds of one sync each.

A round, in the executor:

    1. marks of logs that lose entries are lowered, and synced
    2. each log's operations are carried out in order; changed ballots are written to both copies
    3. all files that were touched are synced side by side, then new names
    4. the logs' new marks are noted: a later round writes and syncs them along, or idling, or a clean stop

and back on the loop each log's durable index rises. What is appended meanwhile goes into the next round.
Only this job writes to logs that are open, so between rounds the disk holds still.

Logs that are synced at intervals take part in 3 and 4 only when that is due. Before the first round that leaves one
of them unsynced its mark says so (LAZY), synced: see boot_id.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from tinymq.base.clock import Clock, Timer
from tinymq.base.errors import Closed, StorageError, TinymqError
from tinymq.log.broker_files.vote_store import VoteStore
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.commit_progress import UrgentCommits
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.operations import is_small
from tinymq.log.writer.exclusive_jobs import ExclusiveJobs
from tinymq.log.writer.interval_sync import IntervalSync
from tinymq.log.writer.sync_batch import LogWork, SyncBatches

T = TypeVar("T")


class Writer:
    """The loop's side: who has something to write, and telling them when it is durable."""

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        rounds: SyncBatches,
        ballots: VoteStore,
        *,
        idle_mark_s: float,
        mark_every_s: float,
    ) -> None:
        self.on_failed: Callable[[TinymqError], None] | None = None
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
        self._unsynced = IntervalSync(clock, self.wake)
        self._lazy: dict[Log, None] = {}  # whose mark may say that they are
        self._pressing = UrgentCommits()
        self._closing = False
        self._draining = 0  # callers that wait for everything to be synced; meanwhile every round syncs all logs
        self._chores = ExclusiveJobs(runner)
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

    def commit_advanced(self, log: Log) -> None:
        """`log` has a newer commit index: its mark is written again, at the latest after idling, soon if it presses."""
        if log.failed is None:
            self._pressing.add(log)
        if self._pressing.due:
            self.wake()
        self._stale[log] = None
        if self._timer is None:
            self._set_timer()

    def wake(self) -> None:
        """Begin a round, unless one is under way: then the next one follows it at once."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def run_exclusive(self, call: Callable[[], T]) -> T:
        """Make `call` in the executor, between rounds; returns what it returns, or raises what it raises."""
        if self._stopped:
            raise Closed("the data folder is closed")
        future = self._chores.add(call)
        self.wake()
        return cast(T, await future)

    async def barrier(self) -> None:
        """Return when what was asked for before this call is written and synced, or failed."""
        with self.syncing_all():
            await self.run_exclusive(_nothing)  # everything dirty or unsynced by then goes into the next round
            await self.run_exclusive(_nothing)

    async def drain(self) -> None:
        """Return when there is nothing left to write or to sync, and no round is under way."""
        with self.syncing_all():
            if self._has_work():
                self.wake()
            while self._task is not None:
                await asyncio.shield(self._task)

    @contextmanager
    def syncing_all(self) -> Iterator[None]:
        """Make every round that begins in this block sync all logs, even before their intervals are over. A round that
        began earlier may leave a log unsynced, so another round follows it."""
        self._draining += 1
        try:
            yield
        finally:
            self._draining -= 1

    def drop(self, log: Log) -> None:
        """`log` is closed: what it still has to write is not."""
        for logs in (self._dirty, self._stale, self._lazy):
            logs.pop(log, None)
        self._unsynced.drop(log)
        self._pressing.drop(log)

    async def close(self) -> None:
        """Clean stop: everything is written, and the marks are synced."""
        await self.drain()
        if self.failed is None:
            self._closing = True
            self._stale |= self._lazy  # everything is synced: their marks may say so
            await self._idle()
        await self.abandon()

    async def abandon(self) -> None:
        """Stop without writing anything more. A round under way ends first: two writers may never meet."""
        self._stopped = True
        self._unsynced.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.drain()
        self._chores.refuse(Closed("the data folder is closed"))
        await self._runner.run(self._rounds.close)

    # Rounds

    async def _run(self) -> None:
        try:
            while not self._stopped and self._has_work():
                await self._chores.run(self._chore_failed)
                if self.failed is not None:
                    self._refuse_all(self.failed)
                elif self._dirty or self._has_more():
                    await self._round()
        finally:
            self._task = None

    def _refuse_all(self, error: TinymqError) -> None:
        logs, self._dirty = list(self._dirty), {}
        for log in logs:
            log.fail(error)

    def _has_work(self) -> bool:
        return bool(self._dirty or self._chores) or (self.failed is None and self._has_more())

    def _has_more(self) -> bool:
        """Whether there is reason for a round though no log has operations."""
        due = self._unsynced.anybody_due or (self._draining and self._unsynced)
        return bool(self._ballots.has_changes() or due or self._pressing.due)

    def _chore_failed(self) -> None:
        if self._rounds.broken is not None:
            self._fail(self._rounds.broken)

    async def _round(self) -> None:
        now_s = self._clock.monotonic()
        logs, works = self._works(now_s)
        ballots = self._ballots.take()
        self._busy = True
        known = self._pressing.take()
        with_marks = bool(known) or now_s - self._marked_s >= self._mark_every_s
        if with_marks:
            self._marked_s = now_s
        unsynced = [log.group for log in self._unsynced.logs() if log not in logs]
        try:
            lone = len(works) == 1 and not ballots and not with_marks and is_small(works[0].operations)
            lone = lone and (works[0].sync or logs[0] in self._lazy)  # else its mark is synced, too
            run = self._runner.run_short if lone else self._runner.run
            outcome = await run(
                lambda: self._rounds.carry_out(works, ballots, known, with_marks=with_marks, unsynced=unsynced)
            )
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
        for log in self._unsynced.logs() if outcome.failed else ():
            if log not in logs and (failed := outcome.failed.get(log.group)) is not None:
                log.fail(failed)
                self._unsynced.drop(log)
        for log, work in zip(logs, works, strict=True):
            if (failed := outcome.failed.get(log.group)) is not None:
                self._unsynced.drop(log)
                log.fail(failed)
            elif work.sync:
                log.written()
            else:
                self._wrote(log, now_s)
        if outcome.shared is None:
            self._ballots.written()
            self._pressing.ended(outcome.kept, logs)
        self._unsynced_marks = True
        if self._timer is None:
            self._set_timer()
        if not self._stopped:
            self._unsynced.set_timer()

    def _works(self, now_s: float) -> tuple[list[Log], list[LogWork]]:
        """Return the logs that take part in the round that begins, and the work that it has to do for each."""
        due = self._unsynced.due(now_s)
        if self._draining:
            due = self._unsynced.logs()
        due += [log for log in self._unsynced.logs() if log in self._pressing and log not in due]
        for log in [log for log in due if log.failed is not None]:
            self._unsynced.drop(log)
            due.remove(log)
        # One that failed while it was taking more in has nothing to write, and its mark would claim that it had.
        dirty, self._dirty = [log for log in self._dirty if log.failed is None], {}
        logs = [*dirty, *(log for log in due if log not in dirty)]
        works = [self._work(log, due) for log in logs]
        for log, work in zip(logs, works, strict=True):
            self._stale.pop(log, None)
            if work.sync:
                self._unsynced.drop(log)
                if not work.mark.flags:
                    self._lazy.pop(log, None)
        return logs, works

    def _work(self, log: Log, due: list[Log]) -> LogWork:
        sync = not log.mark_flags or log in due or bool(self._draining)
        return LogWork(log.take_operations(), log.mark(log.mark_flags), sync)

    def _wrote(self, log: Log, now_s: float) -> None:
        """It may be acknowledged already, and is synced within its interval."""
        self._lazy[log] = None
        self._unsynced.wrote(log, now_s)
        log.written(synced=False)

    def _fail(self, error: TinymqError) -> None:
        """Fail every unsynced log, because no further round will sync it. Its mark must not claim that it was
        synced."""
        if self.failed is None:
            self.failed = error
            for log in self._unsynced.logs():
                self._unsynced.drop(log)
                log.fail(error)
            if self.on_failed is not None:
                self.on_failed(error)

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
        # No round is under way, so a log without operations is durable up to its end, unless its sync is still due. Of
        # one that no round has left unsynced the mark does not say LAZY: the file `boot` may not know of this start.
        stale = [log for log in self._stale if log.failed is None and log not in self._dirty]
        lazy = {} if self._closing else self._lazy
        marks = [log.mark(log.mark_flags if log in lazy else 0) for log in stale if log not in self._unsynced]
        self._stale = {}
        known = self._pressing.take()
        if marks or known or self._unsynced_marks:
            self._unsynced_marks = False
            outcome = await self._runner.run(lambda: self._rounds.idle(marks, known))
            if outcome.shared is not None:
                self._fail(outcome.shared)
            self._pressing.ended(outcome.kept, ())
        if self._pressing and self._timer is None:
            self._set_timer()  # there was no room for its mark


def _nothing() -> None:
    """A chore that only waits its turn."""
