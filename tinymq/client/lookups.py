"""What a client has not heard of yet, asked for before it is denied."""

from __future__ import annotations

from collections.abc import Iterable

from tinymq.client.cluster import Cluster
from tinymq.client.routing import Topic


async def topic_with(cluster: Cluster, name: str, partitions: Iterable[int], timeout_s: float) -> Topic:
    """The topic with these partitions, asked for afresh where one is not known: it may be new.

    Raises as `Cluster.topic`, UnknownPartition.
    """
    left = cluster.countdown(timeout_s)
    topic = await cluster.topic(name, left())
    missing = [number for number in partitions if topic.partition(number) is None]
    if missing:
        view = await cluster.refresh([name], timeout_s=left(), fresh=True)
        topic = view.topics.get(name, topic)
    for number in missing:
        if topic.partition(number) is None:
            raise topic.unknown(number)
    return topic
