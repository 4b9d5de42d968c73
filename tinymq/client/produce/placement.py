"""Choose partitions with a reachable leader for records without a key, as long as there are any.

Batches that wait at another partition move to one of these, unless they are bound to it or may have been written. All
calls are made on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tinymq.base.clock import Timer
from tinymq.base.errors import BrokerUnreachable, Closed, NotLeader, NotReady
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Partition, Reach, spread
from tinymq.client.net.broker_streams import StreamState
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.send_queue import SendQueue
from tinymq.client.produce.topic_buffers import TopicBuffer

RENEWAL_S = 0.5  # how often to look again while some leader is unreachable


class Placement:
    """The placement of one producer. Calls `look` when enough time has passed that an unreachable leader may be tried
    again."""

    def __init__(self, cluster: Cluster, batcher: Batcher, look: Callable[[], None]) -> None:
        self._cluster = cluster
        self._batcher = batcher
        self._look = look
        self._renewal: Timer | None = None
        self._closed = False

    def renew(self) -> None:
        """Update the partitions of all topics, because the view or a connection has changed."""
        cluster, buffers = self._cluster, self._batcher.buffers
        left = False
        for buffer in list(buffers.by_topic.values()):
            known = cluster.view.topics.get(buffer.topic)
            if known is None:
                continue
            if known.topic_id != buffer.topic_id:
                buffers.forget(buffer.topic, buffer.topic_id)
                continue
            buffers.open(buffer.topic, buffer.topic_id, known.numbers, known.bounds)
            reach_of = partial(_reach, cluster, buffer, cluster.clock.monotonic())
            usable, leave = spread(known, reach_of)
            self._batcher.place(buffer, usable, leave)
            for partition in known.partitions:
                if partition.partition in leave:
                    self._probe(partition)
            left = left or bool(leave)
        if left and self._renewal is None and not self._closed:
            self._renewal = cluster.clock.call_later(RENEWAL_S, self._look_again)

    def move(self, queue: SendQueue, *, gone: bool = False) -> list[SendQueue]:
        """Move the batches that need not stay in this queue, and return the queues that got them.

        The loop owns `queue`. `gone`: its partition was deleted.
        """
        buffer = self._batcher.buffers.by_topic.get(queue.topic)
        if buffer is None or buffer.topic_id != queue.topic_id or not (gone or queue.partition in buffer.left):
            return []
        return self._batcher.move(buffer, queue)

    def close(self) -> None:
        self._closed = True
        if self._renewal is not None:
            self._renewal.cancel()

    def _probe(self, partition: Partition) -> None:
        """Connect to a leader that gets no records, because only a connection shows that it is reachable again."""
        stream = self._cluster.produce_stream(partition.leader) if partition.leader else None
        if stream is not None and stream.state is StreamState.IDLE and not self._cluster.cost(partition.leader)[0]:
            stream.open()

    def _look_again(self) -> None:
        self._renewal = None
        self._look()


def _reach(cluster: Cluster, buffer: TopicBuffer, now_s: float, partition: Partition) -> Reach:
    """Return how well a partition's leader can be reached.

    A leader that has just refused a batch, because it does not lead or is not ready, counts as LOST for a while.
    """
    queue = buffer.by_number[partition.partition]
    refuses = isinstance(queue.refusal, NotLeader | NotReady | BrokerUnreachable | Closed) and queue.resume_s > now_s
    return max(cluster.reach(partition.leader), Reach.LOST if refuses else Reach.GOOD)
