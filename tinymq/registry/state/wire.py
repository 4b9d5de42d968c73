"""Registry values as protobuf messages, and back, for the state, for commands and for requests."""

from __future__ import annotations

from typing import Any

from tinymq.base.topic_config import SETTINGS, TopicConfig
from tinymq.base.types import TopicId
from tinymq.format.feature_level import FIRST_LEVEL
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state.values import (
    BrokerRecord,
    MetadataRecord,
    QueueConsumer,
    QueueRecord,
    ReplicaPlace,
    TopicRecord,
)


def broker_to_wire(broker: BrokerRecord) -> pb.Broker:
    return pb.Broker(
        broker_id=broker.broker_id,
        incarnation=broker.incarnation,
        session=broker.session,
        address=broker.address,
        peer_address=broker.peer_address,
        rack=broker.rack,
        feature_level=broker.feature_level if broker.feature_level > FIRST_LEVEL else 0,  # 0: as older builds do
    )


def broker_from_wire(broker: pb.Broker) -> BrokerRecord:
    return BrokerRecord(
        broker_id=broker.broker_id,
        incarnation=broker.incarnation,
        session=broker.session,
        address=broker.address,
        peer_address=broker.peer_address,
        rack=broker.rack,
        feature_level=max(FIRST_LEVEL, broker.feature_level),
    )


def config_to_wire(config: TopicConfig) -> pb.TopicConfig:
    fields: dict[str, Any] = {s.field: s.to_wire(getattr(config, s.field)) for s in SETTINGS}
    return pb.TopicConfig(**fields)


def config_from_wire(config: pb.TopicConfig) -> TopicConfig:
    """Raises InvalidConfig."""
    return TopicConfig(**{s.field: s.from_wire(getattr(config, s.field)) for s in SETTINGS})


def topic_to_wire(topic: TopicRecord) -> pb.Topic:
    return pb.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        replication_factor=topic.replication_factor,
        created_us=topic.created_us,
        partitions=map(_queue_to_wire, topic.queues),
        config=config_to_wire(topic.config),
        next_partition=topic.next_partition,
        config_version=topic.config_version,
    )


def _queue_to_wire(queue: QueueRecord) -> pb.Partition:
    return pb.Partition(
        replicas=[pb.Replica(broker_id=r.broker_id, incarnation=r.incarnation) for r in queue.replicas],
        number=queue.partition,
        created_us=queue.created_us,
    )


def topic_from_wire(topic: pb.Topic) -> TopicRecord:
    """Raises InvalidConfig."""
    topic_id = TopicId(topic.topic_id)
    queues = tuple(
        QueueRecord(
            topic.name,
            topic_id,
            partition.number,
            tuple(ReplicaPlace(r.broker_id, r.incarnation) for r in partition.replicas),
            partition.created_us,
        )
        for partition in topic.partitions
    )
    return TopicRecord(
        name=topic.name,
        topic_id=topic_id,
        replication_factor=topic.replication_factor,
        created_us=topic.created_us,
        queues=queues,
        config=config_from_wire(topic.config),
        next_partition=topic.next_partition,
        config_version=topic.config_version,
    )


def consumer_to_wire(consumer: QueueConsumer) -> pb.Consumer:
    return pb.Consumer(
        topic_id=consumer.topic_id,
        partition=consumer.partition,
        channel=consumer.channel,
        consumer=consumer.consumer,
        epoch=consumer.epoch,
    )


def consumer_from_wire(consumer: pb.Consumer, topic: str) -> QueueConsumer:
    return QueueConsumer(
        topic, TopicId(consumer.topic_id), consumer.partition, consumer.channel, consumer.consumer, consumer.epoch
    )


def record_to_wire(record: MetadataRecord) -> pb.Record:
    return pb.Record(kind=record.kind, name=record.name, value=record.value, version=record.version)


def record_from_wire(record: pb.Record) -> MetadataRecord:
    return MetadataRecord(record.kind, record.name, record.value, record.version)
