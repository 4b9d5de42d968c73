"""Finds topics and partitions that a request names, in this broker's copy of the registry."""

from __future__ import annotations

from tinymq.base.errors import TinymqError, UnknownPartition
from tinymq.broker.serve.broker import Broker
from tinymq.registry.state.values import QueueRecord, TopicRecord


async def find_topic(broker: Broker, name: str) -> TopicRecord:
    """A topic by name. Raises InvalidName, UnknownTopic, NotReady."""
    broker.check_metadata_known()
    (topic,) = await broker.topics([name])
    if isinstance(topic, TinymqError):
        raise topic
    return topic


async def find_queue(broker: Broker, topic: TopicRecord, number: int) -> QueueRecord:
    """A queue that may have been added a moment ago. Raises UnknownPartition, NotReady."""
    queue = topic.queue(number)
    if queue is None:
        await broker.refresh()
        newer = broker.registry.get_topic_by_id(topic.topic_id)
        queue = newer.queue(number) if newer is not None else None
    if queue is None:
        raise UnknownPartition(
            f"topic {topic.name!r} has no queue {number}", hint="queues are numbered from 0, and may leave some out"
        )
    return queue
