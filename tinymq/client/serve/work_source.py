"""The jobs of a queue group's worker, for handlers. A job that the handler has settled itself stays as it is."""

from __future__ import annotations

import contextlib
import traceback

from tinymq.base.errors import LeaseLost
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.config import PREFETCH_MAX, WorkerConfig, configure
from tinymq.client.serve.subscription import Subscription
from tinymq.client.serve.verdicts import Reject, Retry
from tinymq.client.work.job import ERROR_LENGTH_MAX, Job
from tinymq.client.work.worker import Wake, WorkerCore

PREFETCHED_PER_HANDLER = 2  # of each partition, so that a handler that ends has its next job here

UNLESS = "unless this was its last delivery"
AGAIN = f"it is delivered again after the group's next pause (retry_ms), {UNLESS}"


class WorkSource:
    """Implements Source (tinymq/client/serve/source.py), whose methods are documented there."""

    def __init__(self, cluster: Cluster, subscription: Subscription, wake: Wake) -> None:
        self._subscription = subscription
        prefetch = min(PREFETCHED_PER_HANDLER * subscription.concurrency, PREFETCH_MAX)
        config = configure(WorkerConfig, {"prefetch_records": prefetch, **subscription.settings})
        (topic,) = subscription.topics
        self._worker = WorkerCore(
            cluster,
            config,
            wake,
            topic,
            group=subscription.group,
            start=subscription.start,
            group_settings=subscription.group_settings,
            on_lost=None,  # the worker logs what is lost
        )

    @property
    def alive(self) -> bool:
        return self._worker.attached

    async def open(self) -> None:
        await self._worker.open()

    async def take(self) -> Job | None:
        while (job := self._worker.take_one()) is None:
            if not await self._worker.arrival(None):
                return None
        return job

    def done(self, record: Job) -> None:
        if record.in_hand:  # else the handler has settled it itself, perhaps by another verb
            record.ack()

    def failed(self, record: Job, error: BaseException) -> str:
        if not record.in_hand:
            return "the handler had settled it, or its lease was lost"
        if isinstance(error, Reject):
            record.reject(error.reason)
            return "it becomes a dead letter"
        if isinstance(error, Retry):
            record.nack(error.delay, error.reason)
            return AGAIN if error.delay is None else f"it is delivered again in {error.delay:g} s, {UNLESS}"
        policy = self._subscription.on_error
        if policy == "skip":
            record.ack()
            return "it is skipped"
        record.nack(error="".join(traceback.format_exception(error))[-ERROR_LENGTH_MAX:])
        if policy == "stop":
            raise error
        return f"delivery {record.delivery} failed; {AGAIN}"

    def stop(self) -> None:
        self._worker.stop()

    async def close(self) -> None:
        self.stop()
        with contextlib.suppress(LeaseLost):  # the worker has logged what was lost
            await self._worker.close()
