"""The registry's assignments of consumers to the channels of partitions: one bounded table. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tinymq.base.errors import QuotaExceeded
from tinymq.base.types import GroupId
from tinymq.registry.state import bounds
from tinymq.registry.state.values import QueueConsumer


class Consumers:
    """At most one consumer for a channel of a partition: the one with the newest epoch."""

    def __init__(self) -> None:
        self._by_queue: dict[GroupId, dict[str, QueueConsumer]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueueConsumer]:
        """All assignments, by topic id, partition and channel."""
        for group in sorted(self._by_queue):
            by_channel = self._by_queue[group]
            yield from (by_channel[channel] for channel in sorted(by_channel))

    def of(self, queue: GroupId) -> list[QueueConsumer]:
        """The assignments of one partition, by channel."""
        by_channel = self._by_queue.get(queue, {})
        return [by_channel[channel] for channel in sorted(by_channel)]

    def fork(self) -> Consumers:
        """An equal copy, which changes independently."""
        fork = Consumers()
        fork._by_queue = {queue: by_channel.copy() for queue, by_channel in self._by_queue.items()}
        fork._count = self._count
        return fork

    def get(self, queue: GroupId, channel: str) -> QueueConsumer | None:
        return self._by_queue.get(queue, {}).get(channel)

    def set(self, consumer: QueueConsumer) -> None:
        """Assign a channel, in place of the consumer before. Raises QuotaExceeded."""
        queue = GroupId(consumer.topic_id, consumer.partition)
        if self.get(queue, consumer.channel) is None:
            _check_room("partition", len(self._by_queue.get(queue, {})), bounds.CONSUMERS_PER_QUEUE_MAX)
            _check_room("cluster", self._count, bounds.CONSUMERS_MAX)
            self._count += 1
        self._by_queue.setdefault(queue, {})[consumer.channel] = consumer

    def unset(self, queue: GroupId, channel: str, epoch: int) -> bool:
        """End an assignment (`epoch` 0: of any epoch). Returns whether there was one."""
        by_channel = self._by_queue.get(queue, {})
        consumer = by_channel.get(channel)
        if consumer is None or epoch not in (0, consumer.epoch):
            return False
        del by_channel[channel]
        self._count -= 1
        if not by_channel:
            del self._by_queue[queue]
        return True

    def drop(self, queue: GroupId) -> bool:
        """End all assignments of a deleted partition. Returns whether there were any."""
        ended = self._by_queue.pop(queue, {})
        self._count -= len(ended)
        return bool(ended)


def _check_room(where: str, count: int, most: int) -> None:
    if count >= most:
        raise QuotaExceeded(f"the {where} has {count} consumers, and at most {most}", hint="unset some of them first")
