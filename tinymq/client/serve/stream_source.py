"""The records of a stream group's member, for handlers: partitions side by side, each in the order of its offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tinymq.base.errors import NotFound
from tinymq.base.retry import Backoff
from tinymq.client.cluster.background_tasks import Background
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.config import ConsumerConfig, configure, reader_config
from tinymq.client.common.traces import untraced
from tinymq.client.consume.records import Message
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.group_reading import GroupReading
from tinymq.client.group.parallel_buffer import ParallelBuffer
from tinymq.client.group.partition_tasks import PartitionTasks
from tinymq.client.serve.subscription import Subscription
from tinymq.client.serve.verdicts import Reject, Retry

LOG = logging.getLogger("tinymq.client")

LOOK_S = 0.2  # between two checks whether a member has its lost session back
RETRY = Backoff(1.0, 30.0, jitter=0.1)  # of a record whose handler raised


class StreamSource:
    """Implements Source (tinymq/client/serve/source.py), whose methods are documented there."""

    def __init__(self, cluster: Cluster, subscription: Subscription) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._config = configure(ConsumerConfig, subscription.settings)
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._buffer = ParallelBuffer(lambda size: self._tasks.freed(size))
        self._tasks = PartitionTasks(cluster, reader_config(self._config), self._buffer, self._partition_failed)
        self._background = Background(self._fail)
        self._reading: GroupReading | None = None
        self._failure: Exception | None = None
        self._stopped = False

    @property
    def alive(self) -> bool:
        return self._failure is None and self._reading is not None and self._reading.membership.alive

    async def open(self) -> None:
        subscription = self._subscription
        self._reading = await GroupReading.join(
            self._cluster,
            self._tasks,
            subscription.group,
            subscription.topics,
            subscription.start,
            commit_interval_s=self._config.commit_interval_ms / 1000,
            auto_commit=True,
            instance_id=subscription.instance_id,
            tell=self._tell,
            background=self._background,
            failed=self._fail,
        )

    async def take(self) -> Message | None:
        while not self._stopped:
            if self._failure is not None:
                raise untraced(self._failure)
            # A member without a session owns nothing: another one may have its partitions by now.
            message = self._buffer.take() if self.alive else None
            if message is not None:
                return message
            self._tasks.arrived.clear()
            try:
                async with asyncio.timeout(None if self.alive else LOOK_S):
                    await self._tasks.arrived.wait()
            except TimeoutError:
                continue
        return None

    def done(self, record: Message) -> None:
        self._leave(self._buffer.done(record))

    def failed(self, record: Message, error: BaseException) -> str:
        """Retry, skip or stop, as the subscription says. A retry keeps the order: its partition waits."""
        policy = self._subscription.on_error
        if policy == "stop" and not isinstance(error, Retry | Reject):
            raise error
        if isinstance(error, Reject) or (policy == "skip" and not isinstance(error, Retry)):
            self.done(record)
            return "it is skipped"
        failures = self._buffer.failed(record)
        if not failures:
            return "its partition belongs to another member by now"
        place = TopicPartition(record.topic, record.partition)
        if place in self._buffer.leaving:  # the next owner begins with this record
            self._leave(place)
            return "the partition's next owner gets it"
        pause_s = RETRY.pause_s(failures, self._cluster.rng.random())
        if isinstance(error, Retry) and error.delay is not None:
            pause_s = error.delay
        self._cluster.clock.call_later(pause_s, lambda: self._resume(record))
        return f"it is tried again in {pause_s:.1f} s, and its partition waits"

    def stop(self) -> None:
        self._stopped = True
        self._tasks.arrived.set()

    async def close(self) -> None:
        self.stop()
        await self._background.close()
        reading = self._reading
        try:
            if reading is not None and self._failure is None:
                await reading.commit_done(self._timeout_s)
        finally:
            await self._tasks.close()
            if reading is not None:
                await reading.membership.leave(stay=self._subscription.instance_id is not None)

    def _leave(self, place: TopicPartition | None) -> None:
        if place is not None and self._reading is not None:
            self._background.spawn(self._reading.give_up([place]))

    def _resume(self, message: Message) -> None:
        self._buffer.resume(message)
        self._tasks.arrived.set()

    def _tell(self, what: str, places: Sequence[TopicPartition]) -> None:
        names = ", ".join(f"{place.topic}/{place.partition}" for place in places)
        LOG.info("group %s: partitions %s: %s", self._subscription.group, what, names)

    def _partition_failed(self, place: TopicPartition, error: Exception) -> None:
        if isinstance(error, NotFound) and self._reading is not None:
            self._reading.partition_gone(place)
        else:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._tasks.arrived.set()
