"""AsyncWorker: takes records of a queue group as jobs, and settles them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tinymq.base.errors import Closed, DeadlineExceeded, LeaseLost, NotLeader, TinymqError, WrongKind
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import check_channel, check_count, check_wait
from tinymq.client.common.background import Background
from tinymq.client.common.config import WorkerConfig
from tinymq.client.common.start_positions import Place
from tinymq.client.work.broker_work import BrokerWork
from tinymq.client.work.grants import Verb
from tinymq.client.work.job import ERROR_LENGTH_MAX, Job, State
from tinymq.client.work.partition_work import Credit, PartitionWork, Settlement

if TYPE_CHECKING:
    from tinymq.client.admin.groups import GroupDescription

LOG = logging.getLogger("tinymq.client")

LOOK_S = 0.1  # between looks at leaders that are not attached
BEATS = 3  # signs of life within the time after which a silent session ends
EXTENSIONS = 3  # of a lease, within its time
SESSION_BYTES = 16

OnLost = Callable[[Job, TinymqError], object]


class AsyncWorker:
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
        wake: Callable[[Callable[[], None]], None],
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
        self._works: dict[int, PartitionWork] = {}  # by partition
        self._brokers: dict[str, BrokerWork] = {}  # by address
        self._attaching: set[PartitionWork] = set()  # or attached
        self._jobs: deque[Job] = deque()  # granted, and not handed out
        self._said: deque[tuple[Job, Verb, float | None, str]] = deque()  # by any thread, and not sent
        self._flushing = False  # a flush of `_said` is due
        self._arrived = asyncio.Event()
        self._lost = 0  # since the last `flush`
        self._background = Background(self._fail)
        self._opening = asyncio.Lock()
        self._opened = False
        self._closed = False
        self._failure: Exception | None = None

    # ---- jobs -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Job]:
        return self

    async def __anext__(self) -> Job:
        """The next job. Waits for it without a limit."""
        while (job := self.take_one()) is None:
            await self.arrival(None)
        return job

    async def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Job]:
        """Take up to `max_records` jobs: at once if some wait, else as soon as one arrives. Returns [] after `timeout`
        seconds; without a timeout it waits until one arrives."""
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        while not (found := self.take(max_records)):
            if not await self.arrival(timeout):
                return self.take(max_records)
        return found

    def take_one(self) -> Job | None:
        """Take a job that is here; None: call `arrival`. For the thread that takes."""
        while self._jobs:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return None
            if job.state is State.WAITING:
                job.state = State.STARTED
                self.say(job, Verb.START, None, "")
                return job
        return None

    def take(self, count: int) -> list[Job]:
        """As `take_one`, for several."""
        found: list[Job] = []
        while len(found) < count and (job := self.take_one()) is not None:
            found.append(job)
        return found

    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until a job is here. False: the time is up. Raises what stopped the worker."""
        await self.open()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._check()
                    self._arrived.clear()
                    if self._jobs:
                        return True
                    await self._arrived.wait()
        except TimeoutError:
            return False

    # ---- settlements ------------------------------------------------------------------------------------------

    def say(self, job: Job, verb: Verb, delay_s: float | None, error: str) -> None:
        """Send a verb of a job soon. Callable from any thread; many verbs travel together."""
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
        lost, self._lost = self._lost, 0
        if lost:
            raise LeaseLost(f"{lost} jobs of group {self.group} were lost")

    def _send(self) -> None:
        """Hand everything that was said to the partitions, in as few settlements as possible."""
        self._flushing = False
        parts: dict[tuple[int, Verb, float | None, str], Settlement] = {}
        for _ in range(len(self._said)):
            job, verb, delay_s, error = self._said.popleft()
            if verb is Verb.START and job.state is not State.STARTED:
                continue  # it is settled already: its settlement follows
            key = (job.partition, verb, delay_s, error)
            part = parts.get(key)
            if part is None:
                part = parts[key] = Settlement(verb, [], delay_s, error)
            part.jobs.append(job)
            job.since_s = self._cluster.clock.monotonic() if verb is Verb.START else job.since_s
        for (partition, *_), settlement in parts.items():
            work = self._works[partition]
            work.settle(settlement)
            self._take_new(work)
        if parts:
            for broker in self._brokers.values():
                broker.send()

    # ---- the partitions' leaders ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the group if there is none, and attach to its partitions. Raises UnknownTopic, WrongKind."""
        async with self._opening:
            self._check()
            if self._opened:
                return
            self._cluster.check_loop()
            topic = await self._cluster.topic(self.topic, self._timeout_s, create=True)
            made = await self._make_group()
            for partition in topic.numbers:
                self._works[partition] = PartitionWork(
                    topic,
                    partition,
                    self.group,
                    made.group_id,
                    credit=Credit(self._config.prefetch_records, self._config.prefetch_bytes),
                    limits=self._cluster.config.limits,
                    new_session=lambda: secrets.token_bytes(SESSION_BYTES),
                    settle=self.say,
                    lost=self._job_lost,
                )
            self._opened = True
            self._background.spawn(self._attach())
            self._background.spawn(self._live())

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

    async def _attach(self) -> None:
        """Attach partitions to their leaders, as long as the worker lives."""
        while True:
            for work in self._works.values():
                if work not in self._attaching:
                    broker = self._leader(work)
                    if broker is None:
                        self._cluster.refresh_soon()
                    else:
                        self._attaching.add(work)
                        broker.attach(work)
            await self._cluster.clock.sleep(LOOK_S)

    def _leader(self, work: PartitionWork) -> BrokerWork | None:
        view = self._cluster.view
        known = view.topics.get(self.topic)
        at = known.partition(work.partition) if known is not None else None
        leader = view.brokers.get(at.leader) if at is not None else None
        if leader is None:
            return None
        broker = self._brokers.get(leader.address)
        if broker is None or broker.broken:
            link = self._cluster.connections.link(leader.address)
            broker = self._brokers[leader.address] = BrokerWork(
                link,
                self._cluster.clock,
                self._timeout_s,
                self._config.max_handler_ms / 1000,
                self._take_new,
                self._left,
            )
            broker.start()
        return broker

    async def _live(self) -> None:
        """Show signs of life, and extend what is held."""
        extended_s = self._cluster.clock.monotonic()
        while True:
            session_s = min((work.session_s for work in self._works.values()), default=10.0)
            lease_s = min((work.lease_s for work in self._works.values()), default=30.0)
            await self._cluster.clock.sleep(min(session_s / BEATS, lease_s / EXTENSIONS))
            now_s = self._cluster.clock.monotonic()
            if now_s - extended_s >= lease_s / EXTENSIONS:
                extended_s = now_s
                for work in self._works.values():
                    work.keep(self._config.max_handler_ms / 1000, now_s)
            for broker in self._brokers.values():
                broker.look(now_s, session_s)

    def _take_new(self, work: PartitionWork) -> None:
        """The partition may have new jobs, or answers."""
        new, work.new = work.new, []
        self._jobs.extend(new)
        self._arrived.set()

    def _left(self, work: PartitionWork, error: TinymqError) -> None:
        """The partition is attached no more: it is attached again, where it is led now."""
        self._attaching.discard(work)
        if isinstance(error, NotLeader):
            self._cluster.learn(self.topic, work.partition, error)
        elif not error.retriable and error.code not in ("OutcomeUnknown", "SessionEnded", "Closed"):
            self._fail(error)
        self._cluster.refresh_soon()
        self._arrived.set()

    def _job_lost(self, job: Job, error: TinymqError) -> None:
        self._lost += 1
        LOG.warning("%s/%s: the job at offset %s was lost: %s", job.topic, job.partition, job.offset, error.message)
        if self._on_lost is not None:
            try:
                self._on_lost(job, error)
            except Exception:
                LOG.exception("the callback on_lost of group %s failed", self.group)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._arrived.set()

    def _check(self) -> None:
        if self._closed:
            raise Closed("the worker is closed")
        if self._failure is not None:
            raise self._failure

    # ---- the end ----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
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
        await asyncio.gather(*(broker.close() for broker in self._brokers.values()))

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
        """Nack the jobs in hand with the traceback of `error`."""
        text = "".join(traceback.format_exception(error))[-ERROR_LENGTH_MAX:]
        for work in self._works.values():
            for job in list(work.held.values()):
                job.nack(error=text)
