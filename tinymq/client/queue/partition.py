"""PartitionLog: one partition as a queue looks at it and cuts it, without a channel."""

from __future__ import annotations

from collections.abc import Callable

from tinymq.base.errors import DeadlineExceeded, OffsetOutOfRange
from tinymq.base.quantity import quantity
from tinymq.base.types import Offset
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import topic_with
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import check_partition, check_topic
from tinymq.client.common.config import QueueConfig, ReaderConfig
from tinymq.client.common.start_positions import END, OffsetLike, Place, read_offset, read_place
from tinymq.client.consume import cursors
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.records import Message
from tinymq.proto import tinymq_pb2 as pb

Wake = Callable[[Callable[[], None]], None]
"""Makes a call on the client's loop, soon, from any thread."""


class PartitionLog:
    """The messages of one partition. Each call asks the partition's leader and ends within request_timeout_ms."""

    def __init__(self, cluster: Cluster, config: QueueConfig, wake: Wake, topic: str, partition: int) -> None:
        self.topic = check_topic(topic)
        self.partition = check_partition(partition)
        self._cluster = cluster
        self._config = config
        self._wake = wake

    @property
    def name(self) -> str:
        """The partition's name in messages: "orders/0"."""
        return f"{self.topic}/{self.partition}"

    @property
    def timeout_s(self) -> float:
        """The deadline of a call."""
        return self._cluster.config.request_timeout_ms / 1000

    async def known_topic(self, timeout_s: float) -> Topic:
        """The topic, with its id. Raises UnknownTopic, UnknownPartition."""
        return await topic_with(self._cluster, self.topic, self.partition, timeout_s, create=True)

    def reader(self, start: int, end: int | None, config: ReaderConfig) -> ReaderCore:
        """A reader of the offsets from `start` up to, and not including, `end`."""
        first, last = Offset(start), None if end is None else Offset(end)
        return ReaderCore(
            self._cluster, self.topic, config, self._wake, partitions=[self.partition], start=first, end=last
        )

    async def get(self, offset: OffsetLike) -> Message:
        """The message at an offset. Raises OffsetOutOfRange if it does not exist yet, or was removed."""
        position = read_offset(offset)
        bounds = await self._bounds()
        if not bounds.log_start <= position < bounds.high_watermark:
            raise OffsetOutOfRange(
                f"{self.name}: there is no message at {position}",
                hint=f"there are those from {bounds.log_start} up to {bounds.high_watermark}, without the last",
                log_start=bounds.log_start,
                high_watermark=bounds.high_watermark,
            )
        return await self.message_at(position)

    async def message_at(self, offset: int) -> Message:
        """The message at an offset that exists."""
        config = ReaderConfig(fetch_bytes_max=1)  # the smallest answer, which is one batch
        reader = self.reader(offset, offset + 1, config)
        try:
            messages = await reader.poll(self.timeout_s, 1)
        finally:
            await reader.close()
        if not messages:
            raise DeadlineExceeded(f"{self.name}: the message at {offset} did not come in {self.timeout_s:.3g} s")
        return messages[0]

    async def count_from(self, position: int) -> int:
        """The number of messages from `position` on."""
        bounds = await self._bounds()
        return max(0, int(bounds.high_watermark) - max(position, int(bounds.log_start)))

    async def has_message_at(self, position: int) -> bool:
        """Is there a message at `position` or after it? Raises OffsetOutOfRange if messages there were removed, unless
        on_trimmed is "skip"."""
        bounds = await self._bounds()
        if position < bounds.log_start and self._config.on_trimmed == "raise":
            raise OffsetOutOfRange(
                f"{self.name}: {quantity(bounds.log_start - position, 'message')} removed before being read",
                hint="seek('earliest'), or go on with on_trimmed='skip'",
                log_start=bounds.log_start,
                high_watermark=bounds.high_watermark,
            )
        return bool(bounds.high_watermark > max(position, bounds.log_start))

    async def remove_before(self, before: Place) -> int:
        """Remove the messages before a place for good, and return the log start after that. Raises Held."""
        place = read_place(before)
        left = self._cluster.countdown(self.timeout_s)
        return await cursors.trim(self._cluster, await self.known_topic(left()), self.partition, place, left())

    async def delete(self) -> None:
        """Delete the partition. Raises UnknownPartition; InvalidRequest if it is the topic's last one."""
        from tinymq.client.admin.admin import AsyncAdmin  # here: few queues delete their partition

        await AsyncAdmin(self._cluster).delete_partition(self.topic, self.partition)

    async def _bounds(self) -> pb.OffsetAnswer:
        """The log start and the high watermark, as the leader has them."""
        left = self._cluster.countdown(self.timeout_s)
        topic = await self.known_topic(left())
        answers = await list_offsets(self._cluster, topic, {self.partition: END}, timeout_s=left(), leader_only=True)
        return answers[self.partition]
