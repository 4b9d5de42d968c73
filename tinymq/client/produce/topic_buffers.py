"""The topics that a producer sends to: a send queue per partition, and the bounds of batches. No I/O."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from tinymq.base.config import Limits
from tinymq.base.errors import UnknownPartition
from tinymq.client.common.argument_checks import check_partition
from tinymq.client.common.config import ProducerConfig, inflight_max, is_numbered
from tinymq.client.common.topic_settings import UNBOUNDED, TopicBounds
from tinymq.client.produce import partitioner
from tinymq.client.produce.send_queue import SendQueue

BATCH_OVERHEAD_BYTES = 4096  # metadata, paddings and the batch header (under 1 KiB in truth)


class TopicBuffer:
    """One topic of one producer: a send queue per partition, and the bounds of its batches."""

    __slots__ = (
        "bounds",
        "by_number",
        "bytes_max",
        "left",
        "queues",
        "records_max",
        "sticky",
        "topic",
        "topic_id",
        "usable",
    )

    def __init__(self, topic: str, topic_id: bytes, queues: Sequence[SendQueue], rng: random.Random) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.queues: tuple[SendQueue, ...] = ()  # by partition number, which may leave some out; never empty
        self.sticky = rng.choice(queues)  # gets the records without a key, until its open batch is sealed
        self.usable: Sequence[int] = ()  # the partitions for batches without keys; never empty
        self.left: frozenset[int] = frozenset()  # partitions whose batches without keys move to a usable one
        self.bounds = UNBOUNDED  # the bounds in the topic's settings
        # The bounds of a batch of more than one record, from the topic's and the producer's settings.
        self.records_max = UNBOUNDED.records_max
        self.bytes_max = UNBOUNDED.bytes_max  # as the batcher counts them
        self.replace(queues, rng)

    def replace(self, queues: Sequence[SendQueue], rng: random.Random) -> None:
        """Use these queues from now on, because the topic has other partitions."""
        self.queues = tuple(queues)
        self.by_number = {queue.partition: queue for queue in queues}
        self.usable, self.left = tuple(self.by_number), frozenset()
        if self.sticky.partition not in self.by_number:
            self.turn(rng)

    def queue(self, partition: int) -> SendQueue | None:
        """Return the queue of a partition; None if the partition is not known, and perhaps new.

        Raises UnknownPartition for a number that no partition can have, and InvalidRequest.
        """
        if partition.__class__ is not int:
            partition = check_partition(partition)
        if partition < 0:
            raise UnknownPartition(f"{self.topic}/{partition}: no partition has this number")
        return self.by_number.get(partition)

    def pick(self, place: int) -> SendQueue:
        """Return the queue at the index that a partitioner chose. Raises UnknownPartition, InvalidRequest."""
        if place.__class__ is not int:
            place = check_partition(place)
        if not 0 <= place < len(self.queues):
            raise UnknownPartition(f"{self.topic}: the partitioner chose {place} among {len(self.queues)} partitions")
        return self.queues[place]

    def turn(self, rng: random.Random) -> SendQueue:
        """Choose another queue for records without a key."""
        partition = partitioner.pick_sticky(self.sticky.partition, self.usable, rng)
        self.sticky = self.by_number[partition]
        return self.sticky


class TopicBuffers:
    """The open topics of one producer, and all queues that it ever had. The batcher's lock guards everything here."""

    def __init__(
        self,
        config: ProducerConfig,
        limits: Limits,
        lock: threading.Lock,
        rng: random.Random,
        loop_ended: Callable[[], bool] = bool,
        *,
        staged: bool = False,
    ) -> None:
        """`loop_ended` returns True once the event loop that sends the batches is closed. `staged`: the batches belong
        to a transaction."""
        self.by_topic: dict[str, TopicBuffer] = {}
        # By topic id and partition. A partition that disappears and returns keeps its queue: a new one would give the
        # same sequence numbers again, and the broker would answer the records as duplicates.
        self.queues: dict[tuple[bytes, int], SendQueue] = {}
        self._config = config
        self._limits = limits
        self._lock = lock
        self._rng = rng
        self._loop_ended = loop_ended
        self._staged = staged

    def open(
        self, topic: str, topic_id: bytes, partitions: Sequence[int], bounds: TopicBounds = UNBOUNDED
    ) -> TopicBuffer:
        """Open a known topic for appending, or update its partitions and bounds."""
        with self._lock:
            buffer = self.by_topic.get(topic)
            if buffer is None or buffer.topic_id != topic_id:
                queues = self._open_queues(topic, topic_id, partitions)
                buffer = self.by_topic[topic] = TopicBuffer(topic, topic_id, queues, self._rng)
            elif tuple(buffer.by_number) != tuple(partitions):
                buffer.replace(self._open_queues(topic, topic_id, partitions), self._rng)
            buffer.bounds = bounds
            buffer.records_max = min(bounds.records_max, self._limits.batch_records_max)
            most = min(bounds.bytes_max - BATCH_OVERHEAD_BYTES, bounds.batch_bytes_aim)
            buffer.bytes_max = min(self._config.batch_bytes_max, most)
            return buffer

    @property
    def waiting(self) -> int:
        """The number of records that are neither acknowledged nor failed. Approximate while other threads send."""
        count = 0
        for queue in list(self.queues.values()):
            batches = [*queue.sealed.copy(), *queue.in_flight, *([queue.open] if queue.open is not None else [])]
            count += sum(batch.count for batch in batches if not batch.done)
        return count

    def forget(self, topic: str, topic_id: bytes) -> None:
        """Forget a topic that was deleted. The next append looks it up again."""
        with self._lock:
            buffer = self.by_topic.get(topic)
            if buffer is not None and buffer.topic_id == topic_id:
                del self.by_topic[topic]

    def _open_queues(self, topic: str, topic_id: bytes, partitions: Sequence[int]) -> list[SendQueue]:
        known, config = self.queues, self._config
        for p in partitions:
            if (topic_id, p) not in known:
                known[topic_id, p] = SendQueue(
                    topic,
                    topic_id,
                    p,
                    limit=inflight_max(config),
                    numbered=is_numbered(config),
                    staged=self._staged,
                    loop_ended=self._loop_ended,
                )
        return [known[topic_id, p] for p in partitions]
