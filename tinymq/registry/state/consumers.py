"""Who reads which partition for which channel, as the registry has it: one table, bounded. Pure."""

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
        """By topic id, partition and channel."""
        for group in sorted(self._by_queue):
            there = self._by_queue[group]
            yield from (there[channel] for channel in sorted(there))

    def of(self, queue: GroupId) -> list[QueueConsumer]:
        """A partition's, by channel."""
        there = self._by_queue.get(queue, {})
        return [there[channel] for channel in sorted(there)]

    def fork(self) -> Consumers:
        """Another one, equal to this."""
        fork = Consumers()
        fork._by_queue, fork._count = {queue: there.copy() for queue, there in self._by_queue.items()}, self._count
        return fork

    def get(self, queue: GroupId, channel: str) -> QueueConsumer | None:
        return self._by_queue.get(queue, {}).get(channel)

    def set(self, consumer: QueueConsumer) -> None:
        """In place of whoever read for this channel. Raises QuotaExceeded."""
        queue = GroupId(consumer.topic_id, consumer.partition)
        if self.get(queue, consumer.channel) is None:
            _check_room("partition", len(self._by_queue.get(queue, {})), bounds.CONSUMERS_PER_QUEUE_MAX)
            _check_room("cluster", self._count, bounds.CONSUMERS_MAX)
            self._count += 1
        self._by_queue.setdefault(queue, {})[consumer.channel] = consumer

    def unset(self, queue: GroupId, channel: str, epoch: int) -> bool:
        """Whether there was such an assignment; `epoch` 0: whichever there is."""
        there = self._by_queue.get(queue, {})
        known = there.get(channel)
        if known is None or epoch not in (0, known.epoch):
            return False
        del there[channel]
        self._count -= 1
        if not there:
            del self._by_queue[queue]
        return True

    def drop(self, queue: GroupId) -> bool:
        """The partition is gone: whether anybody read it."""
        gone = self._by_queue.pop(queue, {})
        self._count -= len(gone)
        return bool(gone)


def _check_room(where: str, count: int, most: int) -> None:
    if count >= most:
        raise QuotaExceeded(f"the {where} has {count} consumers, and at most {most}", hint="unset some of them first")
