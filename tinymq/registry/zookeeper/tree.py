"""The layout of the registry's state in ZooKeeper: its nodes, their contents, and the writes of a command. Pure.

    /cluster                          the id of the registry's cluster; never changes
    /version                          counts changes; next producer id, feature level, the registered brokers, and the
                                      feature levels that brokers announced
    /brokers/<id>                     ephemeral: exists while the broker's session lives
    /topics/<name>                    settings, partitions and their replicas
    /consumers/<topic id>-<partition> the partition's consumers, by channel; only if there is one
    /records/<kind>:<name>            records of other parts of a broker; from feature level 2 on
    /deleted/<version>-<topic id>     the last 10,000 deleted topics
    /changes/<version>                the last 1024 commands and their replies

Every change is one transaction: it checks that /version is the one on which the command was decided, sets it to the
next one, adds to /changes, and writes the nodes that differ. Brokers follow /changes. The other nodes are for brokers
that start or were away for long, and for people. Contents are the messages of registry.proto as JSON, with bytes in
base64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from tinymq.base.errors import CorruptData, UnsupportedVersion
from tinymq.base.types import GroupId, TopicId
from tinymq.format.feature_level import FIRST_LEVEL, KNOWN_LEVEL
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state import bounds
from tinymq.registry.state.codec import Contents
from tinymq.registry.state.effects import (
    ConsumersChanged,
    Effect,
    FeatureLevelRaised,
    PartitionAdded,
    PartitionDeleted,
    RecordChanged,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
)
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord, MetadataRecord, QueueRecord, TopicRecord
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

FORMAT = 1  # the format of the tree
FORMAT_LEVELLED = 2  # a tree above feature level 1: builds without feature levels refuse to read it or register in it
CLUSTER, VERSION = "/cluster", "/version"
BROKERS, TOPICS, CONSUMERS, DELETED, CHANGES = FOLDERS = "/brokers", "/topics", "/consumers", "/deleted", "/changes"
RECORDS = "/records"  # made when the feature level is raised
OP_BYTES = 64  # of a request around a path and its data, at most

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class CreateNode:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class PutNode:
    path: str
    data: bytes
    version: int = -1  # of the node; -1: any version


@dataclass(frozen=True, slots=True)
class RemoveNode:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckNode:
    path: str
    version: int


Op = CreateNode | PutNode | RemoveNode | CheckNode


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A command and its reply."""

    command: pb.Command
    reply: pb.Reply


def size_of(ops: Iterable[Op]) -> int:
    """Bytes of a transaction on the wire, at most."""
    sizes = (len(op.path.encode()) + len(op.data if isinstance(op, CreateNode | PutNode) else b"") for op in ops)
    return sum(size + OP_BYTES for size in sizes)


# ---- paths ------------------------------------------------------------------------------------------------


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def consumers_path(queue: GroupId) -> str:
    return f"{CONSUMERS}/{queue.topic_id.hex()}-{queue.partition}"


def record_path(kind: str, name: str) -> str:
    return f"{RECORDS}/{kind}:{name}"


def deleted_name(version: int, topic_id: TopicId) -> str:
    """The name of a deleted topic's node. Names sort by age."""
    return f"{version:020d}-{topic_id.hex()}"


def change_name(version: int) -> str:
    return f"{version:020d}"


def change_path(version: int) -> str:
    return f"{CHANGES}/{change_name(version)}"


# ---- the writes of a command --------------------------------------------------------------------------------


def first_ops(cluster_id: bytes) -> list[Op]:
    """The operations that create an empty registry."""
    cluster = {"format": FORMAT, "cluster_id": cluster_id.hex()}
    return [
        CreateNode(CLUSTER, json.dumps(cluster).encode()),
        CreateNode(VERSION, pack_version(RegistryState())),
        *map(CreateNode, FOLDERS),
    ]


def change_ops(
    before: RegistryState,
    after: RegistryState,
    node_version: int,
    change: StoredChange,
    effects: Sequence[Effect],
    deleted: Mapping[TopicId, str],
) -> list[Op]:
    """The transaction for `change`, without the nodes below /brokers.

    `node_version` is that of the node /version at the state `before`. `deleted` are the names below /deleted.
    """
    version = after.version
    ops: list[Op] = [
        PutNode(VERSION, pack_version(after), node_version),
        CreateNode(change_path(version), pack_change(change)),
    ]
    if version > bounds.ANSWERED_MAX:
        ops.append(RemoveNode(change_path(version - bounds.ANSWERED_MAX)))
    for effect in effects:
        ops += _written(effect, before, after, change.command)
    ops += [CreateNode(f"{DELETED}/{deleted_name(version, topic_id)}") for topic_id in after.deleted
            if topic_id not in before.deleted]  # fmt: skip
    ops += [
        RemoveNode(f"{DELETED}/{deleted[topic_id]}") for topic_id in before.deleted if topic_id not in after.deleted
    ]
    return ops


def _written(effect: Effect, before: RegistryState, after: RegistryState, command: pb.Command) -> Iterator[Op]:
    match effect:
        case TopicCreated(topic):
            yield CreateNode(topic_path(topic.name), pack_topic(topic))
        case TopicAltered(topic):
            yield PutNode(topic_path(topic.name), pack_topic(topic))
        case TopicDeleted(topic):
            yield RemoveNode(topic_path(topic.name))
            for queue in topic.queues:
                yield from _consumers_written(queue.group, before, after)
        case PartitionAdded(queue) | PartitionDeleted(queue):
            yield PutNode(topic_path(queue.topic), pack_topic(after.topics[queue.topic]))
            yield from _consumers_written(queue.group, before, after)
        case RecordChanged(kind, name):
            path, record = record_path(kind, name), after.records.get(kind, name)
            if record is None:
                yield RemoveNode(path)
            elif before.records.get(kind, name) is None:
                yield CreateNode(path, pack_record(record))
            else:
                yield PutNode(path, pack_record(record))
        case FeatureLevelRaised() if before.feature_level == FIRST_LEVEL:
            yield CreateNode(RECORDS)
        case ConsumersChanged():
            yield from _consumers_written(_queue_of(command, after).group, before, after)


def _queue_of(command: pb.Command, state: RegistryState) -> QueueRecord:
    """The partition whose consumers a command changed."""
    named = command.set_consumer if command.HasField("set_consumer") else command.unset_consumer
    return state.queue(named.topic, named.partition)


def _consumers_written(queue: GroupId, before: RegistryState, after: RegistryState) -> Iterator[Op]:
    path, old, new = consumers_path(queue), before.consumers.of(queue), after.consumers.of(queue)
    if not new:
        if old:
            yield RemoveNode(path)
        return
    data = _json(pb.State(consumers=map(consumer_to_wire, new)))
    yield PutNode(path, data) if old else CreateNode(path, data)


# ---- contents ---------------------------------------------------------------------------------------------


def pack_version(state: RegistryState) -> bytes:
    brokers = [broker_to_wire(state.brokers[broker_id]) for broker_id in sorted(state.brokers)]
    return _json(
        pb.State(
            format=FORMAT if state.feature_level == FIRST_LEVEL else FORMAT_LEVELLED,
            version=state.version,
            feature_level=state.feature_level,
            next_producer_id=state.next_producer_id,
            brokers=brokers,
            announced=[pb.Announced(broker_id=b, feature_level=n) for b, n in sorted(state.announced.items())],
        )
    )


def unpack_version(data: bytes) -> pb.State:
    """Raises CorruptData, as all of these do."""
    state = _from_json(VERSION, data, pb.State())
    if state.format not in (FORMAT, FORMAT_LEVELLED):
        raise CorruptData(f"{VERSION} in ZooKeeper has format {state.format}, this build knows {FORMAT_LEVELLED}")
    if state.feature_level > KNOWN_LEVEL:
        message = f"this tinymq knows feature level {KNOWN_LEVEL}, and the registry in ZooKeeper is at"
        raise UnsupportedVersion(f"{message} {state.feature_level}", hint="install a newer tinymq on this broker")
    return state


def pack_broker(broker: BrokerRecord) -> bytes:
    return _json(broker_to_wire(broker))


def pack_topic(topic: TopicRecord) -> bytes:
    return _json(topic_to_wire(topic))


def pack_record(record: MetadataRecord) -> bytes:
    return _json(record_to_wire(record))


def unpack_record(name: str, data: bytes) -> MetadataRecord:
    record = record_from_wire(_from_json(f"{RECORDS}/{name}", data, pb.Record()))
    if record_path(record.kind, record.name) != f"{RECORDS}/{name}":
        raise _corrupt(f"{RECORDS}/{name}", ValueError(f"it is record {record.kind[:60]}:{record.name[:60]}"))
    return record


def pack_change(change: StoredChange) -> bytes:
    parts = {"command": _fields(change.command), "reply": _fields(change.reply)}
    return json.dumps(parts, separators=(",", ":")).encode()


def unpack_change(name: str, data: bytes) -> StoredChange:
    try:
        parts = json.loads(data)
        command, reply = parts["command"], parts["reply"]
        return StoredChange(
            json_format.ParseDict(command, pb.Command(), ignore_unknown_fields=True),
            json_format.ParseDict(reply, pb.Reply(), ignore_unknown_fields=True),
        )
    except (ValueError, KeyError, TypeError, RecursionError, json_format.ParseError) as error:
        raise _corrupt(f"{CHANGES}/{name}", error) from None


def cluster_of(data: bytes) -> str:
    """The cluster's id, in hexadecimal."""
    try:
        return str(json.loads(data)["cluster_id"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(CLUSTER, error) from None


def unpack_topic(name: str, data: bytes) -> TopicRecord:
    """Also raises InvalidConfig, for settings of another build."""
    topic = _from_json(topic_path(name), data, pb.Topic())
    if topic.name != name:
        raise _corrupt(topic_path(name), ValueError(f"it is of topic {topic.name[:100]!r}"))
    return topic_from_wire(topic)


def unpack_consumers(name: str, data: bytes) -> list[pb.Consumer]:
    return list(_from_json(f"{CONSUMERS}/{name}", data, pb.State()).consumers)


def deleted_names(names: Iterable[str]) -> dict[TopicId, str]:
    """Names below /deleted by topic id, the oldest first."""
    try:
        return {TopicId(bytes.fromhex(name.partition("-")[2])): name for name in sorted(names)}
    except ValueError as error:
        raise _corrupt(DELETED, error) from None


def contents_of(
    version: pb.State,
    topics: Iterable[TopicRecord],
    consumers: Iterable[pb.Consumer],
    deleted: Iterable[TopicId],
    changes: Iterable[StoredChange],
    records: Iterable[MetadataRecord] = (),
) -> Contents:
    """The contents of a state, from the nodes that were read. `deleted` and `changes` are given oldest first."""
    topics = sorted(topics, key=lambda topic: topic.name)
    names = {topic.topic_id: topic.name for topic in topics}
    read = [consumer_from_wire(each, names.get(TopicId(each.topic_id), "")) for each in consumers]
    return Contents(
        version=version.version,
        feature_level=version.feature_level,
        brokers=[broker_from_wire(broker) for broker in version.brokers],
        topics=topics,
        consumers=sorted(read, key=lambda each: (each.topic_id, each.partition, each.channel)),
        deleted=list(deleted),
        next_producer_id=version.next_producer_id,
        answered=[(change.command.command_id, change.reply) for change in changes],
        announced=[(each.broker_id, each.feature_level) for each in version.announced],
        records=sorted(records, key=lambda record: (record.kind, record.name)),
    )


def _fields(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _json(message: Message) -> bytes:
    return json.dumps(_fields(message), separators=(",", ":")).encode()


def _from_json(path: str, data: bytes, message: M) -> M:
    try:
        return json_format.Parse(data, message, ignore_unknown_fields=True)  # of a newer build
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise _corrupt(path, error) from None


def _corrupt(path: str, error: Exception) -> CorruptData:
    hint = "only tinymq may write there: restore the earlier content, or restore ZooKeeper's snapshot"
    return CorruptData(f"{path} in ZooKeeper is not what a broker wrote: {str(error)[:200]}", hint=hint)
