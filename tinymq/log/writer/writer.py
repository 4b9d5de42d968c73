"""The one writer job of a broker. It writes what all logs and the vote store have queued, in batches of one sync each.

A sync batch, in the executor:

    1. the marks of logs that lose entries are lowered, and synced
    2. each log's operations are carried out in order; changed votes are written to both copies of their file
    3. all files that were touched are synced side by side, then the directories with new names
    4. the logs' new marks are noted; a later batch, an idle moment or a clean stop writes and syncs them

Back on the loop, each log's durable index rises. Entries that are appended meanwhile go into the next batch. Only this
job writes to open logs, so between two batches the disk holds still.

Logs that are synced at intervals take part in 3 and 4 only when their sync is due. Before the first batch that leaves
such a log unsynced, its mark says so durably (LAZY): see boot_id.py.
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
from tinymq.log.writer.exclusive_jobs import ExclusiveJobs
from tinymq.log.writer.interval_sync import IntervalSync
from tinymq.log.writer.sync_batch import LogWork, SyncBatch, SyncBatches, SyncOutcome

T = TypeVar("T")


class Writer:
    """The loop's side of the writer job: it collects the work of a batch, and reports the outcome to the logs."""

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        batches: SyncBatches,
        votes: VoteStore,
        *,
        idle_mark_s: float,
        mark_every_s: float,
    ) -> None:
        self.on_failed: Callable[[TinymqError], None] | None = None  # called once, with `failed`
        self.on_synced: Callable[[float, int], None] | None = None  # a batch ended: its seconds, its number of logs
        self.failed: TinymqError | None = None  # votes or marks could not be written: the broker has to stop
        self._runner = runner
        self._clock = clock
        self._batches = batches
        self._votes = votes
        self._idle_mark_s = idle_mark_s
        self._mark_every_s = mark_every_s
        self._marked_s = -mark_every_s  # when a batch last synced the marks
        # Sets of logs, in the order in which they came.
        self._dirty: dict[Log, None] = {}  # have operations for the next batch
        self._stale: dict[Log, None] = {}  # know a newer commit index than their mark
        self._lazy: dict[Log, None] = {}  # their mark may have the flag LAZY
        self._unsynced = IntervalSync(clock, self.wake)
        self._urgent_commits = UrgentCommits()
        self._jobs = ExclusiveJobs(runner)
        self._closing = False  # the last marks are written: no log is lazy any more
        self._sync_all = 0  # callers that wait for everything to be synced; meanwhile every batch syncs all logs
        self._task: asyncio.Task[None] | None = None  # runs batches, or idles; invariant: at most one
        self._timer: Timer | None = None  # until the next check whether the writer is idle
        self._unsynced_marks = False  # a batch has noted marks since the marks were last synced while idle
        self._busy = False  # a batch has run since the timer was set
        self._stopped = False

    def add(self, log: Log) -> None:
        """`log` has operations. They go into the next batch."""
        if self.failed is not None:
            log.fail(self.failed)
            return
        self._dirty[log] = None
        self.wake()

    def commit_advanced(self, log: Log) -> None:
        """`log` knows a newer commit index. Its mark is written soon if the commit is urgent, else when the writer
        idles."""
        if log.failed is None:
            self._urgent_commits.add(log)
        if self._urgent_commits.due:
            self.wake()
        self._stale[log] = None
        if self._timer is None:
            self._set_timer()

    def wake(self) -> None:
        """Begin a batch. If one is running, the next one follows it at once."""
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def run_exclusive(self, call: Callable[[], T]) -> T:
        """Run `call` in the executor between two batches. Returns what it returns, and raises what it raises."""
        if self._stopped:
            raise Closed("the data directory is closed")
        future = self._jobs.add(call)
        self.wake()
        return cast(T, await future)

    async def barrier(self) -> None:
        """Return when everything that was queued before this call is written and synced, or has failed."""
        with self.syncing_all():
            # A job runs before its turn's batch. So the batch after the first job takes everything queued or unsynced
            # by now, and the second job runs after that batch.
            await self.run_exclusive(_nothing)
            await self.run_exclusive(_nothing)

    async def drain(self) -> None:
        """Return when nothing is left to write or to sync, and no batch is running."""
        with self.syncing_all():
            if self._has_work():
                self.wake()
            while self._task is not None:
                await asyncio.shield(self._task)

    @contextmanager
    def syncing_all(self) -> Iterator[None]:
        """Make every batch that begins in this block sync all logs, even before their intervals are over. A batch that
        began earlier may leave a log unsynced, so another batch follows it."""
        self._sync_all += 1
        try:
            yield
        finally:
            self._sync_all -= 1

    def drop(self, log: Log) -> None:
        """Forget a log that is closed. Its queued operations are not carried out."""
        for logs in (self._dirty, self._stale, self._lazy):
            logs.pop(log, None)
        self._unsynced.drop(log)
        self._urgent_commits.drop(log)

    async def close(self) -> None:
        """Stop cleanly: everything is written, and the marks are synced."""
        await self.drain()
        if self.failed is None:
            self._closing = True
            self._stale |= self._lazy  # everything is synced, so their marks drop the flag LAZY
            await self._idle()
        await self.abandon()

    async def abandon(self) -> None:
        """Stop without writing anything more. A running batch ends first: two writers may never meet."""
        self._stopped = True
        self._unsynced.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.drain()
        self._jobs.refuse(Closed("the data directory is closed"))
        await self._runner.run(self._batches.close)

    # Batches

    async def _run(self) -> None:
        try:
            while not self._stopped and self._has_work():
                # Jobs run between batches: only then the disk holds still. `barrier` relies on this order.
                await self._jobs.run(self._job_failed)
                if self.failed is not None:
                    self._refuse_all(self.failed)
                elif self._dirty or self._has_more():
                    await self._run_batch()
        finally:
            self._task = None

    def _refuse_all(self, error: TinymqError) -> None:
        logs, self._dirty = list(self._dirty), {}
        for log in logs:
            log.fail(error)

    def _has_work(self) -> bool:
        return bool(self._dirty or self._jobs) or (self.failed is None and self._has_more())

    def _has_more(self) -> bool:
        """Whether a batch has to run although no log has operations."""
        due = self._unsynced.anybody_due or (self._sync_all and self._unsynced)
        return bool(self._votes.has_changes() or due or self._urgent_commits.due)

    def _job_failed(self) -> None:
        if self._batches.broken is not None:
            self._fail(self._batches.broken)

    async def _run_batch(self) -> None:
        now_s = self._clock.monotonic()
        logs, batch = self._next_batch(now_s)
        # A lone small entry is worth a call on the loop itself: handing it to a thread and back takes longer than its
        # write and sync. Not if the batch syncs a lazy mark first.
        lone = batch.is_lone and (batch.works[0].sync or logs[0] in self._lazy)
        run = self._runner.run_short if lone else self._runner.run
        try:
            outcome = await run(lambda: self._batches.carry_out(batch))
        except Exception as error:  # a broken invariant: no log may wait any longer, and the task ends with it
            self._fail(StorageError(f"the writer job ended: {error!r}"))
            assert self.failed is not None
            for log in logs:
                log.fail(self.failed)
            raise
        if self.on_synced is not None:
            self.on_synced(self._clock.monotonic() - now_s, len(logs))
        self._report(logs, batch, outcome, now_s)
        self._unsynced_marks = True
        if self._timer is None:
            self._set_timer()
        if not self._stopped:
            self._unsynced.set_timer()

    def _next_batch(self, now_s: float) -> tuple[list[Log], SyncBatch]:
        """Return the logs that take part in the batch that begins, in the order of its works, and the batch."""
        logs, works = self._take_works(now_s)
        votes = self._votes.take()
        self._busy = True
        commits = self._urgent_commits.take()
        # Marks go with a batch now and then only: their sync would make that of a lone entry 40 % longer.
        with_marks = bool(commits) or now_s - self._marked_s >= self._mark_every_s
        if with_marks:
            self._marked_s = now_s
        unsynced = [log.group for log in self._unsynced.logs() if log not in logs]
        return logs, SyncBatch(works, votes, commits, with_marks, unsynced)

    def _take_works(self, now_s: float) -> tuple[list[Log], list[LogWork]]:
        """Return the logs that take part in the batch that begins, and the work of each."""
        due = self._unsynced.due(now_s)
        if self._sync_all:
            due = self._unsynced.logs()
        # A mark says no commit above the synced entries, so a log whose commit is urgent is synced first.
        due += [log for log in self._unsynced.logs() if log in self._urgent_commits and log not in due]
        for log in [log for log in due if log.failed is not None]:
            self._unsynced.drop(log)
            due.remove(log)
        # A log that has failed since it was added has nothing to write, and its mark would claim entries that are lost.
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
        sync = not log.mark_flags or log in due or bool(self._sync_all)
        return LogWork(log.take_operations(), log.mark(log.mark_flags), sync)

    def _report(self, logs: list[Log], batch: SyncBatch, outcome: SyncOutcome, now_s: float) -> None:
        """Tell every log, and the vote store, how the batch that began at `now_s` has ended."""
        if outcome.shared is not None:
            self._fail(outcome.shared)
        # A failed sync also ends logs that an earlier batch wrote and no batch has synced yet.
        for log in self._unsynced.logs() if outcome.failed else ():
            if log not in logs and (failed := outcome.failed.get(log.group)) is not None:
                log.fail(failed)
                self._unsynced.drop(log)
        for log, work in zip(logs, batch.works, strict=True):
            if (failed := outcome.failed.get(log.group)) is not None:
                self._unsynced.drop(log)
                log.fail(failed)
            elif work.sync:
                log.written()
            else:
                # The entries may be acknowledged now, and are synced within their interval.
                self._lazy[log] = None
                self._unsynced.wrote(log, now_s)
                log.written(synced=False)
        if outcome.shared is None:
            self._votes.written()
            self._urgent_commits.ended(outcome.commits, logs)

    def _fail(self, error: TinymqError) -> None:
        """Fail every unsynced log, because no further batch will sync it. Its mark must not claim that it was
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
        """Write and sync the marks of every log that is ahead of its own."""
        # No batch is running, so a log without operations is durable up to its end, unless its sync is still due. The
        # mark says LAZY only of a log that some batch has left unsynced: for others, the file `boot` may not have been
        # written since this start of the machine.
        stale = [log for log in self._stale if log.failed is None and log not in self._dirty]
        lazy = {} if self._closing else self._lazy
        marks = [log.mark(log.mark_flags if log in lazy else 0) for log in stale if log not in self._unsynced]
        self._stale = {}
        commits = self._urgent_commits.take()
        if marks or commits or self._unsynced_marks:
            self._unsynced_marks = False
            outcome = await self._runner.run(lambda: self._batches.idle(marks, commits))
            if outcome.shared is not None:
                self._fail(outcome.shared)
            self._urgent_commits.ended(outcome.commits, ())
        if self._urgent_commits and self._timer is None:
            self._set_timer()  # there was no space for its mark: retry


def _nothing() -> None:
    """A job that only waits for its turn."""
