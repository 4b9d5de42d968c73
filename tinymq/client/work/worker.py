"""AsyncWorker: takes records of a queue group as jobs, and settles them."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tinymq.base.errors import (
    Closed,
    DeadlineExceeded,
    InvalidRequest,
    LeaseLost,
    OutcomeUnknown,
    TinymqError,
    WrongKind,
)
from tinymq.client.cluster.background_tasks import Background
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Topic
from tinymq.client.common import forks
from tinymq.client.common.argument_checks import check_channel, check_count, check_wait
from tinymq.client.common.config import WorkerConfig
from tinymq.client.common.start_positions import Place
from tinymq.client.common.traces import trimming, untraced
from tinymq.client.work.answers import Answers
from tinymq.client.work.grants import Verb
from tinymq.client.work.job import ERROR_LENGTH_MAX, Job, JobState
from tinymq.client.work.leader_streams import LeaderStreams
from tinymq.client.work.partition_work import Credit, JobSettlement, PartitionWork

if TYPE_CHECKING:
    from tinymq.client.admin.groups import GroupDescription

LOG = logging.getLogger("tinymq.client")

SESSION_BYTES = 16

OnLost = Callable[[Job, TinymqError], object]
Wake = Callable[[Callable[[], None]], None]  # runs a callback on the client's loop, from any thread


class WorkerCore:
    """Takes records of one topic as a worker of a queue group. Made by AsyncClient.worker(); attached by the first use.

        async with mq.worker("emails", group="mailer") as worker:
            async for job in worker:
                await send(job.value)
                job.ack()

    Each record is leased to one worker, and stays leased while the worker lives. An exception that leaves the `async
    with` block nacks the jobs in hand, with its traceback; a clean end gives back what was not handed out, and the jobs
    that were not settled count as failed.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: WorkerConfig,
        wake: Wake,
        topic: str,
        *,
        group: str,
        start: Place,
        group_settings: Mapping[str, object] | None,
        on_lost: OnLost | None,
    ) -> None:
        self.topic = topic
        self.group = check_channel(group)
        self._start = start
        self._group_settings = group_settings
        self._on_lost = on_lost
        self._cluster = cluster
        self._config = config
        self._wake = wake
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._jobs: deque[Job] = deque()  # granted, and not handed out
        self._said: deque[tuple[Job, Verb, float | None, str]] = deque()  # by any thread, and not sent
        self._flushing = False  # a flush of `_said` is due
        self._arrived = asyncio.Event()
        self._answers = Answers(self._check, self._timeout_s)
        self._background = Background(self._fail)
        self._leaders = LeaderStreams(cluster, self._take_new, self._fail)
        self._works = self._leaders.works
        self._opening = asyncio.Lock()
        self._opened = False
        self._stopped = False
        self._closed = False
        self._failure: Exception | None = None
        self._is_copy = False  # in a forked child
        forks.in_child(self, WorkerCore._forked)

    def _forked(self) -> None:
        self._jobs.clear()  # these jobs are the parent's
        self._failure, self._is_copy = forks.forked(), True

    # ---- jobs -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Job]:
        return self

    async def __anext__(self) -> Job:
        """The next job. Waits for it without a limit; ends after `stop`."""
        while (job := self.take_one()) is None:
            if not await self.arrival(None):
                raise StopAsyncIteration
        return job

    async def poll(self, timeout: float | None = None, max_records: int = 500, *, start: bool = True) -> list[Job]:
        """Take up to `max_records` jobs: at once if some wait, else as soon as one arrives. Returns [] after `timeout`
        seconds, or after `stop`; without a timeout it waits until one arrives.

        A crash counts as a failed delivery of all jobs that were taken. With `start=False` it counts only for those
        that the application has begun by `job.start()`, and the others can be given back by `job.release()`.
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        while not (found := self.take(max_records, start=start)):
            if not await self.arrival(timeout):
                return self.take(max_records, start=start)
        return found

    def take_one(self, *, start: bool = True) -> Job | None:
        """Take a job that is here, and begin it; None: call `arrival`. For the thread that takes."""
        while self._jobs and not self._stopped:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return None
            if job._state is JobState.WAITING and not job._partition_work.begins(job, self._cluster.clock.monotonic()):
                # Another worker may have it by now. The leader's next answer decides.
                job._partition_work.parked.append(job)
                self._wake(self._unpark)  # the answer may have come meanwhile
            elif job._state is JobState.WAITING:
                job._state = JobState.STARTED if start else JobState.TAKEN
                if start:
                    self.say(job, Verb.START, None, "")
                return job
        return None

    def take(self, count: int, *, start: bool = True) -> list[Job]:
        """As `take_one`, for several."""
        found: list[Job] = []
        while len(found) < count and (job := self.take_one(start=start)) is not None:
            found.append(job)
        return found

    @trimming
    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until a job is here. False: the time is up, or `stop` was called. Raises the error that ended the
        worker."""
        await self.open()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._check()
                    self._arrived.clear()
                    if self._jobs or self._stopped:
                        return not self._stopped
                    await self._arrived.wait()
        except TimeoutError:
            return False

    def stop(self) -> None:
        """Take nothing more, and give back at once what was not handed out, uncharged: other workers get it.

        Iterations end, and `poll` returns []. Jobs in hand can still be settled; close the worker after that. Callable
        from any thread, and from a signal's handler.
        """
        self._stopped = True
        self._wake(self._give_back)

    def _give_back(self) -> None:
        returned = []
        while self._jobs:
            try:
                job = self._jobs.popleft()
            except IndexError:  # a thread has just taken it
                break
            if job._state is JobState.WAITING:
                returned.append(job)
        for work in self._works.values():
            work.stop([job for job in returned if job.partition == work.partition])
        self._arrived.set()
        self._leaders.send()

    # ---- settlements ------------------------------------------------------------------------------------------

    def say(self, job: Job, verb: Verb, delay_s: float | None, error: str) -> None:
        """Send a verb of a job soon. Callable from any thread; many verbs travel together."""
        if self._is_copy:
            raise forks.forked()
        self._said.append((job, verb, delay_s, error))
        if not self._flushing:
            self._flushing = True
            self._wake(self._send)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every settlement so far is on a majority of disks.

        Raises LeaseLost if some jobs were lost since the last flush: their records are delivered again, or were settled
        by another worker. Raises DeadlineExceeded after `timeout` seconds (request_timeout_ms).
        """
        timeout_s = self._timeout_s if timeout is None else timeout
        try:
            async with asyncio.timeout(timeout_s):
                while self._said or any(work.unanswered for work in self._works.values()):
                    self._check()
                    self._arrived.clear()
                    self._send()
                    await self._arrived.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"settlements of group {self.group} have no answer after {timeout_s:g} s") from None
        if lost := self._answers.take_lost():
            raise LeaseLost(f"{lost} jobs of group {self.group} were lost")

    def _send(self) -> None:
        """Hand everything that was said to the partitions, in as few settlements as possible."""
        self._flushing = False
        parts: dict[tuple[int, Verb, float | None, str], JobSettlement] = {}
        for _ in range(len(self._said)):
            job, verb, delay_s, error = self._said.popleft()
            if verb is Verb.START and job._state is not JobState.STARTED:
                continue  # it is settled already: its settlement follows
            key = (job.partition, verb, delay_s, error)
            part = parts.get(key)
            if part is None:
                part = parts[key] = JobSettlement(verb, [], delay_s, error)
            part.jobs.append(job)
            job._since_s = self._cluster.clock.monotonic() if verb is Verb.START else job._since_s
        for (partition, *_), settlement in parts.items():
            work = self._works[partition]
            work.settle(settlement)
            self._take_new(work)
        if parts:
            self._leaders.send()

    # ---- transactions (TransactionalWorker) -------------------------------------------------------------------

    def check_transactional(self, cluster: Cluster) -> None:
        if self._is_copy:
            raise forks.forked()
        if cluster is not self._cluster:
            raise InvalidRequest("the job is of another client's worker", hint="use one client for both")
        self._check()

    def staged(self, work: PartitionWork) -> None:
        self._take_new(work)
        self._leaders.send()

    # ---- the partitions' leaders ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the group if there is none, and attach to its partitions. Raises UnknownTopic, WrongKind."""
        async with self._opening:
            self._check()
            if self._opened:
                return
            self._cluster.check_loop()
            self._answers.loop = asyncio.get_running_loop()
            topic = await self._cluster.topic(self.topic, self._timeout_s, create=True)
            made = await self._make_group()
            self._leaders.follow(topic, lambda known, partition: self._work_on(known, partition, made.group_id))
            self._opened = True
            self._background.spawn(self._leaders.attach())
            self._background.spawn(self._leaders.live())

    def _work_on(self, topic: Topic, partition: int, group_id: int) -> PartitionWork:
        return PartitionWork(
            topic,
            partition,
            self.group,
            group_id,
            credit=Credit(self._config.prefetch_records, self._config.prefetch_bytes),
            limits=self._cluster.config.limits,
            max_handler_s=self._config.max_handler_ms / 1000,
            new_session=lambda: self._cluster.rng.randbytes(SESSION_BYTES),
            settle=self.say,
            wait=self._answers.wait,
            lost=self._job_lost,
            worker=self,
        )

    async def _make_group(self) -> GroupDescription:
        from tinymq.client.admin.broker_calls import BrokerCalls  # here: most programs need no admin calls
        from tinymq.client.admin.groups import GroupCalls

        made = await GroupCalls(self._cluster, BrokerCalls(self._cluster)).create(
            self.group, (self.topic,), "queue", self._start, self._group_settings or {}, exist_ok=True,
            timeout_s=self._timeout_s,
        )  # fmt: skip
        if made.kind != "queue":
            raise WrongKind(f"{self.group!r} is a {made.kind} group", hint="its members use mq.consumer")
        return made

    def _take_new(self, work: PartitionWork) -> None:
        """The partition may have new jobs, or answers."""
        new, work.new = work.new, []
        self._jobs.extend(new)
        if work.parked:
            self._jobs.extend(work.resume(self._cluster.clock.monotonic()))
            self._leaders.send()  # records that were given back, or a question to the leader
        if self._stopped and self._jobs:
            self._give_back()
        self._arrived.set()

    def _unpark(self) -> None:
        for work in self._works.values():
            if work.parked:
                self._take_new(work)

    def _job_lost(self, job: Job, error: TinymqError) -> None:
        self._answers.lost(job)
        LOG.warning("%s/%s: the job at offset %s was lost: %s", job.topic, job.partition, job.offset, error.message)
        if self._on_lost is not None:
            try:
                self._on_lost(job, error)
            except Exception:
                LOG.exception("the callback on_lost of group %s failed", self.group)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._arrived.set()
        self._give_up(error if isinstance(error, TinymqError) else OutcomeUnknown(f"the worker has failed: {error}"))

    def _give_up(self, error: TinymqError) -> None:
        for work in self._works.values():
            self._answers.give_up(work.held.values(), error)

    def _check(self) -> None:
        if self._closed:
            raise Closed("the worker is closed")
        if self._failure is not None:
            raise untraced(self._failure)

    # ---- the end ----------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether it can get jobs now: the leader of a partition has it as a worker. Callable from any thread."""
        ended = self._closed or self._failure is not None
        return not ended and any(work.attached for work in tuple(self._works.values()))

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._closed

    async def close(self) -> None:
        """Wait for the answers to settlements, give back what was not handed out, and leave the group's partitions.

        A second call does nothing. Raises LeaseLost and DeadlineExceeded as `flush`.
        """
        if self._closed:
            return
        try:
            if self._opened and self._failure is None:
                await self.flush()
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Leave without waiting for answers: what was handed out and not settled counts as failed."""
        self._closed = True
        self._arrived.set()
        self._send()
        await self._background.close()
        await self._leaders.close()
        self._give_up(OutcomeUnknown("the worker was closed before the ack had an answer"))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        if isinstance(error, Exception):
            self.fail_in_hand(error)
        try:
            await self.close()
        except TinymqError as another:
            error.add_note(f"and {another}")

    def fail_in_hand(self, error: Exception) -> None:
        """Nack the jobs in hand with the traceback of `error`, and give back those that are not begun."""
        text = "".join(traceback.format_exception(error))[-ERROR_LENGTH_MAX:]
        for work in self._works.values():
            for job in list(work.held.values()):
                if job._state is JobState.TAKEN:
                    job.release()
                elif job.in_hand:
                    job.nack(error=text)
