"""What a client has not heard of yet, asked for before it is denied."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tinymq.base.errors import TinymqError, UnknownPartition, UnknownTopic
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Topic

LOG = logging.getLogger("tinymq.client")


async def topic_with(
    cluster: Cluster, name: str, partitions: Iterable[int], timeout_s: float, topic_id: bytes = b""
) -> Topic:
    """The topic with these partitions, asked for afresh where one is not known: it may be new. `topic_id`: of the one
    that is meant, whatever else has its name by now.

    Raises as `Cluster.topic`, UnknownTopic (another id), UnknownPartition.
    """
    left = cluster.countdown(timeout_s)
    topic = await cluster.topic(name, left())
    missing = [number for number in partitions if topic.partition(number) is None]
    if missing or (topic_id and topic.topic_id != topic_id):
        view = await cluster.refresh([name], timeout_s=left(), fresh=True)
        topic = view.topics.get(name, topic)
    if topic_id and topic.topic_id != topic_id:
        raise made_anew(name)
    for number in missing:
        if topic.partition(number) is None:
            raise topic.unknown(number)
    return topic


def made_anew(name: str) -> UnknownTopic:
    """The error of who meant the one before."""
    return UnknownTopic(
        f"topic {name!r} was deleted and made anew since",
        hint="plan again what is to be read: the offsets that were planned are those of other records",
    )


async def deletion_of(cluster: Cluster, name: str, topic_id: bytes, partition: int) -> TinymqError | None:
    """UnknownTopic or UnknownPartition if the partition was deleted. None: it exists, as far as is known."""
    try:
        if await cluster.still_there(name, topic_id, cluster.attempt_s, partition):
            return None
    except TinymqError as error:
        LOG.debug("%s/%d not looked up: %s", name, partition, error)
        return None
    topic = cluster.view.topics.get(name)
    if topic is not None and topic.topic_id == topic_id:
        return UnknownPartition(f"{name}/{partition}: the partition is gone")
    return UnknownTopic(f"topic {name!r} is gone, or was made again")
