"""QueueWriter: pushes messages to one partition, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable

from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.config import ProducerConfig
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.queue.partition import PartitionLog, Wake


class QueueWriter:
    """Writes with the client's producer until the first push that does not wait, and with its own from then on.

    Only one producer keeps messages in order. So a push that waits comes behind those that were pushed before and are
    not acknowledged yet.
    """

    def __init__(
        self, cluster: Cluster, log: PartitionLog, wake: Wake, shared_producer: Callable[[], ProducerCore]
    ) -> None:
        """`shared_producer` returns the producer behind `AsyncClient.send`."""
        self._cluster = cluster
        self._log = log
        self._wake = wake
        self._shared_producer = shared_producer
        self.own: ProducerCore | None = None  # made by the first push that does not wait

    async def send(
        self,
        producer: ProducerCore,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike | None,
        timestamp: Timestamp | None,
    ) -> Delivery:
        """Give one message its place in the producer's buffer. As AsyncProducer.send."""
        log = self._log
        return await producer.send(
            log.topic, value, key=key, headers=headers, timestamp=timestamp, partition=log.partition
        )

    def producer(self) -> ProducerCore:
        """The producer of a push that waits for its message."""
        return self.own or self._shared_producer()

    def own_producer(self) -> ProducerCore:
        """The producer of a push that does not wait."""
        if self.own is None:
            timeout_ms = self._cluster.config.request_timeout_ms
            config = ProducerConfig(linger_ms=0, delivery_timeout_ms=timeout_ms, block_ms_max=timeout_ms)
            self.own = ProducerCore(self._cluster, config, self._wake)
        return self.own

    async def flush(self) -> None:
        """Wait until every message pushed so far is acknowledged. Raises NotDelivered."""
        if self.own is not None:
            await self.own.flush()

    async def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until every message is acknowledged, and stop. Raises NotDelivered."""
        if self.own is not None:
            await self.own.close(timeout_s)
