"""Look up topics and partitions that the view does not have yet, before they are reported as unknown."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tinymq.base.errors import TinymqError, UnknownPartition, UnknownTopic
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Topic

LOG = logging.getLogger("tinymq.client")


async def topic_with(
    cluster: Cluster,
    name: str,
    partitions: Iterable[int],
    timeout_s: float,
    topic_id: bytes = b"",
    *,
    create: bool = False,
) -> Topic:
    """Return the topic, which has all of `partitions`. A partition that the view does not have may be new, so the
    brokers are asked again. With `topic_id`, only the topic of that id will do, even if another one has its name now.

    `create`: as in `Cluster.topic`.

    Raises as `Cluster.topic`; UnknownTopic if the topic has another id; UnknownPartition.
    """
    left = cluster.countdown(timeout_s)
    topic = await cluster.topic(name, left(), create=create)
    missing = [number for number in partitions if topic.partition(number) is None]
    if missing or (topic_id and topic.topic_id != topic_id):
        view = await cluster.refresh([name], timeout_s=left(), fresh=True)
        topic = view.topics.get(name, topic)
    if topic_id and topic.topic_id != topic_id:
        raise recreated(name)
    for number in missing:
        if topic.partition(number) is None:
            raise topic.unknown(number)
    return topic


def recreated(name: str) -> UnknownTopic:
    """Return the error for offsets of a topic whose name belongs to another topic now."""
    return UnknownTopic(
        f"topic {name!r} was deleted and created again since",
        hint="plan the read again: the planned offsets are those of the deleted topic",
    )


async def deletion_of(cluster: Cluster, name: str, topic_id: bytes, partition: int) -> TinymqError | None:
    """Return UnknownTopic or UnknownPartition if the partition was deleted; None if it exists or nobody answers."""
    try:
        if await cluster.still_there(name, topic_id, cluster.attempt_s, partition):
            return None
    except TinymqError as error:
        LOG.debug("%s/%d not looked up: %s", name, partition, error)
        return None
    topic = cluster.view.topics.get(name)
    if topic is not None and topic.topic_id == topic_id:
        return UnknownPartition(f"{name}/{partition}: the partition was deleted")
    return UnknownTopic(f"topic {name!r} was deleted, or created again")
