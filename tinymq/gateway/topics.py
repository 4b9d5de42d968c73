"""Creates and deletes queues for QueueService: the first queue creates its topic, the last one deletes it."""

from __future__ import annotations

from tinymq.base import topic_config
from tinymq.base.errors import TopicExists, UnknownTopic
from tinymq.base.topic_config import TopicConfig
from tinymq.gateway.call import Call
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.lookup import find_queue, find_topic
from tinymq.rpc.common.presence import require


async def create_queue(request: pb.CreateQueueRequest, call: Call) -> pb.CreateQueueReply:
    """Add a queue, or create the topic with its first one, depending on the registry at that moment."""
    broker, name = call.broker, request.topic
    config = topic_config.make((setting.name, setting.value) for setting in request.settings)
    while True:
        try:
            return pb.CreateQueueReply(queue=await _create(request, call, config))
        except (UnknownTopic, TopicExists):
            if (_of_new_topic(request) and broker.registry.get_topic(name) is not None) or call.left_s() <= 0:
                raise
            await broker.refresh()  # another call has just created it, or deleted it


async def _create(request: pb.CreateQueueRequest, call: Call, config: TopicConfig) -> int:
    broker, name = call.broker, request.topic
    timeout_s = max(0.001, call.left_s())
    try:
        await find_topic(broker, name)
    except UnknownTopic:
        factor = request.replication_factor or None
        return (await broker.create_topic(name, 1, factor, timeout_s, config=config)).queues[0].partition
    if _of_new_topic(request):
        hint = "leave replication_factor and settings out"
        raise TopicExists(f"topic {name!r} exists, and has its settings", hint=hint)
    return (await broker.add_partition(name, timeout_s)).partition


def _of_new_topic(request: pb.CreateQueueRequest) -> bool:
    """Does the request have settings that only a new topic takes?"""
    return bool(request.settings or request.replication_factor)


async def delete_queue(request: pb.DeleteQueueRequest, call: Call) -> pb.DeleteQueueReply:
    """Delete a queue, and with the last queue its topic. The registry decides whether it is the last one of the topic
    that the request names. Raises InvalidRequest for a request without a queue."""
    require(request, "queue")
    broker, name, number = call.broker, request.topic, request.queue
    topic = await find_topic(broker, name)
    await find_queue(broker, topic, number)
    timeout_s = max(0.001, call.left_s())
    await broker.delete_partition(name, number, timeout_s, with_topic=True, topic_id=topic.topic_id)
    return pb.DeleteQueueReply()
