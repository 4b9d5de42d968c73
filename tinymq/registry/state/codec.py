"""The registry's state as bytes, and back: the content of a snapshot. It loads only states that `apply` can make.

crc32c of the rest u32, little-endian | registry.v1.State, no maps: equal states are equal bytes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData, TinymqError
from tinymq.base.types import TopicId, check_channel_name, check_consumer_name, check_topic_name
from tinymq.format.entry import crc32c
from tinymq.format.feature_level import FIRST_LEVEL
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state import bounds
from tinymq.registry.state.records import check_record
from tinymq.registry.state.values import BrokerRecord, MetadataRecord, QueueConsumer, TopicRecord
from tinymq.registry.state.wire import (
    broker_from_wire,
    broker_to_wire,
    consumer_from_wire,
    consumer_to_wire,
    record_from_wire,
    record_to_wire,
    topic_from_wire,
    topic_to_wire,
)

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Contents:
    """All parts of a state, in the order in which they are stored."""

    version: int
    feature_level: int
    brokers: Sequence[BrokerRecord]  # by id
    topics: Sequence[TopicRecord]  # by name
    consumers: Sequence[QueueConsumer]  # by topic id, partition, channel
    deleted: Sequence[TopicId]  # oldest first
    next_producer_id: int
    answered: Sequence[tuple[bytes, pb.Reply]]  # oldest first
    announced: Sequence[tuple[int, int]] = ()  # (broker id, feature level), by broker id
    records: Sequence[MetadataRecord] = ()  # by kind and name


def pack(contents: Contents) -> bytes:
    state = pb.State(
        format=FORMAT,
        version=contents.version,
        brokers=map(broker_to_wire, contents.brokers),
        topics=map(topic_to_wire, contents.topics),
        deleted_topic_ids=contents.deleted,
        next_producer_id=contents.next_producer_id,
        answered=[pb.Answered(command_id=i, reply=reply) for i, reply in contents.answered],
        feature_level=contents.feature_level,
        consumers=map(consumer_to_wire, contents.consumers),
        announced=[pb.Announced(broker_id=broker_id, feature_level=level) for broker_id, level in contents.announced],
        records=map(record_to_wire, contents.records),
    )
    body = state.SerializeToString(deterministic=True)
    return crc32c(body).to_bytes(4, "little") + body


def unpack(data: bytes) -> Contents:
    """The inverse of `pack`. Raises CorruptData."""
    body = data[4:]
    if data[:4] != crc32c(body).to_bytes(4, "little"):
        raise CorruptData("the registry's state does not match its checksum")
    try:
        state = pb.State.FromString(body)
    except DecodeError as error:
        raise CorruptData(f"the registry's state does not parse: {error}") from None
    if state.format != FORMAT:
        raise CorruptData(f"the registry's state has format {state.format}, this build knows {FORMAT}")
    try:
        contents = _from_wire(state)
        sound = all(_checks(contents))
    except TinymqError as error:
        raise CorruptData(f"the registry's state is not one that commands can make: {error.message}") from None
    if not sound:
        raise CorruptData("the registry's state is not one that commands can make")
    return contents


def _from_wire(state: pb.State) -> Contents:
    topics = [topic_from_wire(topic) for topic in state.topics]
    names = {topic.topic_id: topic.name for topic in topics}
    consumers = [
        consumer_from_wire(consumer, names.get(TopicId(consumer.topic_id), "")) for consumer in state.consumers
    ]
    return Contents(
        version=state.version,
        feature_level=state.feature_level,
        brokers=[broker_from_wire(broker) for broker in state.brokers],
        topics=topics,
        consumers=consumers,
        deleted=[TopicId(topic_id) for topic_id in state.deleted_topic_ids],
        next_producer_id=state.next_producer_id,
        answered=[(answered.command_id, answered.reply) for answered in state.answered],
        announced=[(each.broker_id, each.feature_level) for each in state.announced],
        records=[record_from_wire(record) for record in state.records],
    )


def _checks(contents: Contents) -> Iterator[bool]:
    """The invariants on which `apply` relies. May raise InvalidName for a bad name."""
    topics, deleted = contents.topics, contents.deleted
    ids = [topic.topic_id for topic in topics] + list(deleted)
    yield len({topic.name for topic in topics}) == len(topics)
    yield all(_topic_holds(topic) for topic in topics)
    yield len(set(ids)) == len(ids) and all(len(topic_id) == 16 for topic_id in ids)
    yield len({broker.broker_id for broker in contents.brokers} - {0}) == len(contents.brokers)
    yield len(deleted) <= bounds.DELETED_MAX and len(contents.answered) <= bounds.ANSWERED_MAX
    yield 0 < contents.next_producer_id < 1 << 63 and contents.version < 1 << 63
    yield _consumers_hold(contents)
    yield contents.feature_level >= FIRST_LEVEL and all(level > FIRST_LEVEL for _, level in contents.announced)
    yield len(dict(contents.announced)) == len(contents.announced) <= bounds.ANNOUNCED_MAX
    yield _records_hold(contents)


def _topic_holds(topic: TopicRecord) -> bool:
    check_topic_name(topic.name)
    numbers = [queue.partition for queue in topic.queues]
    return (
        bool(numbers)
        and all(low < high for low, high in pairwise([*numbers, topic.next_partition]))
        and topic.next_partition <= bounds.PARTITION_NUMBER_MAX + 1
        and all(queue.replicas for queue in topic.queues)
    )


def _consumers_hold(contents: Contents) -> bool:
    queues = {queue.group for topic in contents.topics for queue in topic.queues}
    keys = [(consumer.topic_id, consumer.partition, consumer.channel) for consumer in contents.consumers]
    per_queue = Counter((topic_id, partition) for topic_id, partition, _ in keys)
    for consumer in contents.consumers:
        check_channel_name(consumer.channel)
        check_consumer_name(consumer.consumer)
    return (
        len(set(keys)) == len(keys) <= bounds.CONSUMERS_MAX
        and all(queue in queues and count <= bounds.CONSUMERS_PER_QUEUE_MAX for queue, count in per_queue.items())
        and all(0 < consumer.epoch <= contents.version for consumer in contents.consumers)
    )


def _records_hold(contents: Contents) -> bool:
    records = contents.records
    for record in records:
        check_record(record.kind, record.name, record.value)
    sizes = [len(record.kind) + len(record.name) + len(record.value) for record in records]
    return (
        len({(record.kind, record.name) for record in records}) == len(records) <= bounds.RECORDS_MAX
        and sum(sizes) <= bounds.RECORDS_BYTES_MAX
        and all(0 < record.version <= contents.version for record in records)
    )
