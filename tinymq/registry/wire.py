"""Registry values as protobuf messages, and back. One place, so that state, commands and requests agree."""

from __future__ import annotations

from tinymq.proto import registry_pb2 as pb
from tinymq.registry.values import BrokerRecord, QueueRecord, ReplicaPlace, TopicRecord
from tinymq.types import TopicId


def broker_to_wire(broker: BrokerRecord) -> pb.Broker:
    return pb.Broker(
        broker_id=broker.broker_id,
        incarnation=broker.incarnation,
        session=broker.session,
        address=broker.address,
        peer_address=broker.peer_address,
        rack=broker.rack,
    )


def broker_from_wire(broker: pb.Broker) -> BrokerRecord:
    return BrokerRecord(
        broker.broker_id, broker.incarnation, broker.session, broker.address, broker.peer_address, broker.rack
    )


def topic_to_wire(topic: TopicRecord) -> pb.Topic:
    return pb.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        replication_factor=topic.replication_factor,
        created_us=topic.created_us,
        partitions=[
            pb.Partition(
                replicas=[pb.Replica(broker_id=r.broker_id, incarnation=r.incarnation) for r in queue.replicas]
            )
            for queue in topic.queues
        ],
    )


def topic_from_wire(topic: pb.Topic) -> TopicRecord:
    topic_id = TopicId(topic.topic_id)
    queues = tuple(
        QueueRecord(
            topic.name, topic_id, number, tuple(ReplicaPlace(r.broker_id, r.incarnation) for r in partition.replicas)
        )
        for number, partition in enumerate(topic.partitions)
    )
    return TopicRecord(topic.name, topic_id, topic.replication_factor, topic.created_us, queues)
