"""One partition as an application may use it without a channel: write to it, look into it, cut its head off."""

from __future__ import annotations

from collections.abc import Callable

from tinymq.base.errors import Closed, DeadlineExceeded, OffsetOutOfRange
from tinymq.base.quantity import quantity
from tinymq.base.types import Offset, RecordMetadata
from tinymq.client.admin.admin import AsyncAdmin
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import topic_with
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import check_partition, check_topic
from tinymq.client.common.config import ProducerConfig, QueueConfig, ReaderConfig
from tinymq.client.common.start_positions import END, OffsetLike, Place, read_offset, read_place
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.consume import cursors
from tinymq.client.consume.reader import AsyncReader
from tinymq.client.consume.records import Message
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer import AsyncProducer
from tinymq.proto import tinymq_pb2 as pb

Wake = Callable[[Callable[[], None]], None]
"""Makes a call on the client's loop, soon, from any thread."""


class AsyncPartition:
    """What a queue does with its partition alone. Takes no channel from anybody."""

    def __init__(
        self,
        cluster: Cluster,
        config: QueueConfig,
        wake: Wake,
        sending: Callable[[], AsyncProducer],
        topic: str,
        partition: int,
    ) -> None:
        """`sending` is the client's own producer."""
        self.topic = check_topic(topic)
        self.partition = check_partition(partition)
        self.config = config
        self._cluster = cluster
        self._wake = wake
        self._sending = sending
        self._producer: AsyncProducer | None = None  # made by the first push that nobody waits for
        self._closed = False

    # ---- writing -------------------------------------------------------------------------------------

    async def push(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> RecordMetadata:
        """Write one message to the partition, and wait until a majority has it on disk. As AsyncClient.send."""
        delivery = await self.producer().send(
            self.topic, value, key=key, headers=headers, timestamp=timestamp, partition=self.partition
        )
        return await delivery

    async def push_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> Delivery:
        """Write one message behind those pushed before, and do not wait for it: `flush` does. As AsyncProducer.send."""
        return await self.own_producer().send(
            self.topic, value, key=key, headers=headers, timestamp=timestamp, partition=self.partition
        )

    def producer(self) -> AsyncProducer:
        """Whom `push` writes with: the client's producer, until there is one of the queue's own, for order's sake."""
        self._check()
        return self._producer or self._sending()

    @property
    def pushing(self) -> AsyncProducer | None:
        """The queue's own producer, if it has one."""
        return self._producer

    def own_producer(self) -> AsyncProducer:
        """Whom `push_nowait` writes with."""
        self._check()
        if self._producer is None:
            timeout_ms = self._cluster.config.request_timeout_ms
            config = ProducerConfig(linger_ms=0, delivery_timeout_ms=timeout_ms, block_ms_max=timeout_ms)
            self._producer = AsyncProducer(self._cluster, config, self._wake)
        return self._producer

    async def flush(self) -> None:
        """Wait until everything pushed so far is acknowledged. Raises NotDelivered with what failed."""
        self._check()
        if self._producer is not None:
            await self._producer.flush()

    # ---- looking -------------------------------------------------------------------------------------

    async def get(self, offset: OffsetLike) -> Message:
        """The message at an offset; moves nothing. Raises OffsetOutOfRange where there is none, or none any more."""
        self._check()
        wanted = read_offset(offset)
        at = await self._ends()
        if not at.log_start <= wanted < at.high_watermark:
            raise OffsetOutOfRange(
                f"{self._where}: there is no message at {wanted}",
                hint=f"there are those from {at.log_start} up to {at.high_watermark}, without the last",
                log_start=at.log_start,
                high_watermark=at.high_watermark,
            )
        return await self._one(wanted)

    async def _one(self, offset: int) -> Message:
        """A message that is there."""
        config = ReaderConfig(fetch_bytes_max=1)  # one batch, that is
        reader = self._read(Offset(offset), Offset(offset + 1), config)
        try:
            found = await reader.poll(self._patience_s, 1)
        finally:
            await reader.close()
        if not found:
            raise DeadlineExceeded(f"{self._where}: the message at {offset} did not come in {self._patience_s:.3g} s")
        return found[0]

    async def _ends(self) -> pb.OffsetAnswer:
        """Where the partition begins and ends, as its leader has it."""
        left = self._cluster.countdown(self._patience_s)
        topic = await self._known(left())
        answers = await list_offsets(self._cluster, topic, {self.partition: END}, timeout_s=left(), leader_only=True)
        return answers[self.partition]

    async def _left(self, position: int, *, strict: bool) -> int:
        """How many messages there are from `position` on. `strict`: raises OffsetOutOfRange if the next one is gone."""
        at = await self._ends()
        if strict and position < at.log_start and self.config.on_trimmed == "raise":
            raise OffsetOutOfRange(
                f"{self._where}: {quantity(at.log_start - position, 'message')} removed before being read",
                hint="seek('earliest'), or go on with on_trimmed='skip'",
                log_start=at.log_start,
                high_watermark=at.high_watermark,
            )
        return max(0, int(at.high_watermark) - max(position, int(at.log_start)))

    # ---- removing ------------------------------------------------------------------------------------

    async def remove_before(self, before: Place) -> int:
        """Remove for good what lies before an Offset, or before the first message at or after a datetime.

        Returns where the partition begins afterwards, on a majority of disks. Raises Held when somebody holds what
        was to go, and did so all the time; OffsetOutOfRange beyond the end.
        """
        self._check()
        place = read_place(before)
        left = self._cluster.countdown(self._patience_s)
        return await cursors.trim(self._cluster, await self._known(left()), self.partition, place, left())

    async def delete(self) -> None:
        """Delete the whole partition, for all its channels: its messages are gone, and its number is never used again.

        The last partition goes with its topic alone: InvalidRequest. Raises UnknownPartition. The queue is closed then.
        """
        self._check()
        await AsyncAdmin(self._cluster).delete_partition(self.topic, self.partition)
        await AsyncPartition.leave(self, 0.0)

    # ---- of its parts --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def _where(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def _patience_s(self) -> float:
        return self._cluster.config.request_timeout_ms / 1000

    async def _known(self, timeout_s: float) -> Topic:
        return await topic_with(self._cluster, self.topic, self.partition, timeout_s)

    def _read(self, start: Offset, end: Offset | None, config: ReaderConfig) -> AsyncReader:
        return AsyncReader(
            self._cluster, self.topic, config, self._wake, partitions=[self.partition], start=start, end=end
        )

    def _check(self) -> None:
        """Raises what stands against any use."""
        if self._closed:
            raise Closed("the queue is closed")

    async def leave(self, timeout_s: float) -> None:
        """Close; what was pushed has so long to be acknowledged. Raises NotDelivered."""
        self._closed = True
        if self._producer is not None:
            await self._producer.close(timeout_s)
