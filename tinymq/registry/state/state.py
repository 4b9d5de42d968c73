"""The registry's state and its one function: `apply(command)` returns a reply and effects, and reads no clock.

Pure, and never fails: the same commands give the same state, byte for byte, on every broker. A command that cannot be
carried out gets a reply with an error, and changes nothing but the list of answered commands. Each command has a random
id, and applies once no matter how often it is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from tinymq.base.errors import (
    InvalidRequest,
    TinymqError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
    UnsupportedVersion,
    VersionConflict,
)
from tinymq.base.topic_config import SETTINGS_MAX, TopicConfig
from tinymq.base.types import GroupId, TopicId, check_channel_name, check_consumer_name, check_topic_name
from tinymq.format.feature_level import FIRST_LEVEL
from tinymq.proto import registry_pb2 as pb
from tinymq.proto.errors import make_error
from tinymq.registry.state import bounds
from tinymq.registry.state.codec import Contents, pack, unpack
from tinymq.registry.state.consumers import Consumers
from tinymq.registry.state.effects import (
    BrokersChanged,
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
from tinymq.registry.state.placement import place
from tinymq.registry.state.records import Records, check_record
from tinymq.registry.state.values import BrokerRecord, QueueConsumer, QueueRecord, ReplicaPlace, TopicRecord
from tinymq.registry.state.wire import broker_from_wire, config_from_wire

# Part of the replicated behaviour, not settings: brokers with different values would compute different states.
EPOCH_SHIFT = 40  # of the count of recoveries in a version. Fewer than 1 << 32 commands lie between two recoveries.
BROKER_SHIFT = 32  # of the recovering broker, so that two recoveries that do not know of each other differ
EPOCHS_MAX = 1 << 22


class RegistryState:
    """The state of the registry. Only `apply`, `begin_recovery_epoch` and `load` change it."""

    def __init__(self) -> None:
        self.version = 0  # rises with every command, refused ones included, and with every recovery
        self.feature_level = FIRST_LEVEL  # never falls
        self.announced: dict[int, int] = {}  # feature levels above FIRST_LEVEL, by broker, registered or not
        self.brokers: dict[int, BrokerRecord] = {}
        self.topics: dict[str, TopicRecord] = {}
        self.topics_by_id: dict[TopicId, TopicRecord] = {}
        self.deleted: OrderedDict[TopicId, None] = OrderedDict()  # deleted topics, oldest first, bounded
        self.next_producer_id = 1
        self.consumers = Consumers()
        self.records = Records()
        self._answered: OrderedDict[bytes, pb.Reply] = OrderedDict()  # by command id, oldest first, bounded

    def apply(self, command: pb.Command) -> tuple[pb.Reply, list[Effect]]:
        """Carry out `command`, unless its id was answered before. Never raises."""
        answered = self._answered.get(command.command_id)
        if answered is not None:
            return answered, []
        # A refused command counts, too: every broker has to agree on the version that it got.
        self.version += 1
        effects: list[Effect] = []
        reply = pb.Reply(version=self.version)
        try:
            self._do(command, reply, effects)
        except TinymqError as error:
            reply.error_code, reply.error_message, reply.error_hint = error.code, error.message, error.hint
        if command.command_id:
            self._answered[command.command_id] = reply
            if len(self._answered) > bounds.ANSWERED_MAX:
                self._answered.popitem(last=False)
        return reply, effects

    def apply_bytes(self, payload: bytes) -> tuple[bytes, pb.Reply, list[Effect]]:
        """Apply a packed command; returns (command id, reply, effects). Bytes that do not parse count as an unknown
        command."""
        try:
            command = pb.Command.FromString(payload)
        except DecodeError:
            command = pb.Command()
        reply, effects = self.apply(command)
        return command.command_id, reply, effects

    def _do(self, command: pb.Command, reply: pb.Reply, effects: list[Effect]) -> None:
        match command.WhichOneof("command"):
            case "register_broker":
                self._register(broker_from_wire(command.register_broker), effects)
            case "unregister_broker":
                self._unregister(command.unregister_broker, effects)
            case "create_topic":
                self._create(command.create_topic, command.time_us, effects)
            case "alter_topic":
                self._alter(command.alter_topic, effects)
            case "delete_topic":
                self._delete(command.delete_topic.name, effects)
            case "create_queue":
                reply.partition = self._add_partition(command.create_queue.topic, command.time_us, effects)
            case "delete_queue":
                self._delete_partition(command.delete_queue, effects)
            case "set_consumer":
                reply.epoch = self.set_consumer(command.set_consumer, effects)
            case "unset_consumer":
                self._unset_consumer(command.unset_consumer, effects)
            case "take_producer_ids":
                reply.first_producer_id = self._take_producer_ids(command.take_producer_ids.count)
            case "put_record":
                self._put_record(command.put_record, effects)
            case "raise_feature_level":
                self._raise_feature_level(command.raise_feature_level, effects)
            case _:
                raise UnsupportedVersion("the registry does not know this command")

    def _register(self, broker: BrokerRecord, effects: list[Effect]) -> None:
        if not broker.broker_id or len(broker.incarnation) != 16 or not broker.address:
            raise InvalidRequest("a registration names a broker id, an incarnation and an address")
        remembered = broker.broker_id in self.announced or len(self.announced) < bounds.ANNOUNCED_MAX
        if broker.feature_level > FIRST_LEVEL and remembered:
            self.announced[broker.broker_id] = broker.feature_level
        else:
            self.announced.pop(broker.broker_id, None)
        if self.brokers.get(broker.broker_id) != broker:
            self.brokers[broker.broker_id] = broker
            effects.append(BrokersChanged())

    def _unregister(self, request: pb.UnregisterBroker, effects: list[Effect]) -> None:
        broker = self.brokers.get(request.broker_id)
        if broker is not None and request.session in (0, broker.session):
            del self.brokers[request.broker_id]
            effects.append(BrokersChanged())

    def _create(self, request: pb.CreateTopic, time_us: int, effects: list[Effect]) -> None:
        name = check_topic_name(request.name)
        if name in self.topics:
            raise TopicExists(f"topic {name!r} exists")
        topic_id = TopicId(request.topic_id)
        if len(topic_id) != 16 or not any(topic_id) or topic_id in self.topics_by_id or topic_id in self.deleted:
            raise InvalidRequest("a topic needs a new id of 16 bytes")
        if not 1 <= request.partitions <= bounds.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidRequest(
                f"{request.partitions} partitions", hint=f"a topic has 1 to {bounds.PARTITIONS_PER_TOPIC_MAX}"
            )
        config = config_from_wire(request.config) if request.HasField("config") else TopicConfig()
        places = self._place(request.partitions, request.replication_factor)
        queues = tuple(QueueRecord(name, topic_id, number, at, time_us) for number, at in enumerate(places))
        topic = TopicRecord(
            name=name,
            topic_id=topic_id,
            replication_factor=request.replication_factor,
            created_us=time_us,
            queues=queues,
            config=config,
            next_partition=len(queues),
            config_version=self.version,
        )
        self.put_topic(topic)
        effects.append(TopicCreated(topic))

    def _place(
        self, partitions: int, replication_factor: int, own: Sequence[QueueRecord] = ()
    ) -> list[tuple[ReplicaPlace, ...]]:
        """Choose replicas for new partitions of a topic whose present partitions are `own`."""
        existing = [queue for topic in self.topics.values() for queue in topic.queues]
        if len(existing) + partitions > bounds.PARTITIONS_MAX:
            have = f"the cluster has {len(existing)} partitions, and at most {bounds.PARTITIONS_MAX}"
            raise InvalidRequest(have, hint="delete topics first")
        brokers = [self.brokers[broker_id] for broker_id in sorted(self.brokers)]
        if not 1 <= replication_factor <= len(brokers):
            raise InvalidRequest(
                f"replication factor {replication_factor} with {len(brokers)} live brokers",
                hint="ask for at least 1 and at most one replica per live broker, or start more brokers",
            )
        return place(brokers, existing, partitions, replication_factor, own)

    def _alter(self, request: pb.AlterTopic, effects: list[Effect]) -> None:
        topic = self.topic(request.name)
        if len(request.settings) > SETTINGS_MAX:
            raise InvalidRequest(f"{len(request.settings)} settings", hint=f"at most {SETTINGS_MAX} at once")
        config = topic.config.altered([(setting.name, setting.value) for setting in request.settings])
        if config != topic.config:
            altered = replace(topic, config=config, config_version=self.version)
            self.put_topic(altered)
            effects.append(TopicAltered(altered))

    def _delete(self, name: str, effects: list[Effect]) -> None:
        topic = self.topic(name)
        del self.topics[name]
        del self.topics_by_id[topic.topic_id]
        for queue in topic.queues:
            self.consumers.drop(queue.group)
        self.deleted[topic.topic_id] = None
        if len(self.deleted) > bounds.DELETED_MAX:
            self.deleted.popitem(last=False)
        effects.append(TopicDeleted(topic))

    def _add_partition(self, name: str, time_us: int, effects: list[Effect]) -> int:
        topic = self.topic(name)
        if len(topic.queues) >= bounds.PARTITIONS_PER_TOPIC_MAX:
            most = f"a topic has at most {bounds.PARTITIONS_PER_TOPIC_MAX}"
            raise InvalidRequest(f"topic {topic.name!r} has {len(topic.queues)} partitions", hint=most)
        if topic.next_partition > bounds.PARTITION_NUMBER_MAX:
            raise InvalidRequest(f"topic {topic.name!r} has used up its partition numbers", hint="make another topic")
        [replicas] = self._place(1, topic.replication_factor, topic.queues)
        queue = QueueRecord(topic.name, topic.topic_id, topic.next_partition, replicas, time_us)
        self.put_topic(replace(topic, queues=(*topic.queues, queue), next_partition=queue.partition + 1))
        effects.append(PartitionAdded(queue))
        return queue.partition

    def _delete_partition(self, request: pb.DeletePartition, effects: list[Effect]) -> None:
        deleted = self.queue(request.topic, request.partition)
        topic = self.topics[deleted.topic]
        if request.topic_id not in (b"", topic.topic_id):
            raise UnknownTopic(f"the topic {topic.name!r} of the request is deleted, and another one has its name")
        if len(topic.queues) == 1:
            if request.with_topic:
                self._delete(topic.name, effects)
                return
            raise InvalidRequest(
                f"partition {deleted.partition} is the last of {deleted.topic!r}", hint="delete the topic"
            )
        self.put_topic(replace(topic, queues=tuple(queue for queue in topic.queues if queue is not deleted)))
        self.consumers.drop(deleted.group)
        effects.append(PartitionDeleted(deleted))

    def set_consumer(self, request: pb.SetConsumer, effects: list[Effect]) -> int:
        """Make a consumer the only one of its channel; return its epoch, which no consumer had before."""
        queue = self.queue(request.topic, request.partition)
        channel, consumer = check_channel_name(request.channel), check_consumer_name(request.consumer)
        epoch = self.version  # no two commands share a version, so no two consumers share an epoch
        self.consumers.set(QueueConsumer(queue.topic, queue.topic_id, queue.partition, channel, consumer, epoch))
        effects.append(ConsumersChanged())
        return epoch

    def _unset_consumer(self, request: pb.UnsetConsumer, effects: list[Effect]) -> None:
        queue = self.queue(request.topic, request.partition)
        if self.consumers.unset(queue.group, request.channel, request.epoch):
            effects.append(ConsumersChanged())

    def _take_producer_ids(self, count: int) -> int:
        if not 1 <= count <= bounds.PRODUCER_IDS_MAX:
            raise InvalidRequest(f"a block of {count} producer ids; one has 1 to {bounds.PRODUCER_IDS_MAX}")
        first, self.next_producer_id = self.next_producer_id, self.next_producer_id + count
        return first

    def _put_record(self, request: pb.PutRecord, effects: list[Effect]) -> None:
        check_record(request.kind, request.name, request.value)
        if self.records.put(request.kind, request.name, None if request.remove else request.value, request.version,
                            self.version):  # fmt: skip
            effects.append(RecordChanged(request.kind, request.name))

    def _raise_feature_level(self, request: pb.RaiseFeatureLevel, effects: list[Effect]) -> None:
        """Raise the level, if the proposer looked at all members in the state right before this command. In a later
        state a broker that announces a lower level may have registered."""
        if request.level <= self.feature_level:
            return
        if request.at_version != self.version - 1:
            raise VersionConflict(f"the registry was at version {self.version - 1}, not {request.at_version}")
        self.feature_level = request.level
        effects.append(FeatureLevelRaised(request.level))

    def announced_level(self, broker_id: int) -> int:
        """The feature level that a broker announced when it last registered; FIRST_LEVEL if it announced none."""
        broker = self.brokers.get(broker_id)
        return broker.feature_level if broker is not None else self.announced.get(broker_id, FIRST_LEVEL)

    def put_topic(self, topic: TopicRecord) -> None:
        """Store `topic`, in place of its earlier record."""
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    # ---- lookups -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicRecord:
        """Raises UnknownTopic."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic {name[:300]!r}")
        return topic

    def queue(self, name: str, partition: int) -> QueueRecord:
        """Raises UnknownTopic, UnknownPartition."""
        topic = self.topic(name)
        queue = topic.queue(partition)
        if queue is None:
            raise UnknownPartition(f"topic {name!r} has no partition {partition}")
        return queue

    def is_queue_deleted(self, group: GroupId) -> bool:
        """Was there such a partition, deleted since, by itself or with its topic?"""
        topic = self.topics_by_id.get(group.topic_id)
        if topic is None:
            return group.topic_id in self.deleted
        return group.partition < topic.next_partition and topic.queue(group.partition) is None

    # ---- checkpoints -------------------------------------------------------------------------------------

    def fork(self) -> RegistryState:
        """Return an equal copy. Commands applied to it do not change this state."""
        fork = RegistryState()
        fork.version, fork.feature_level, fork.announced = self.version, self.feature_level, self.announced.copy()
        fork.brokers, fork.topics, fork.topics_by_id = self.brokers.copy(), self.topics.copy(), self.topics_by_id.copy()
        fork.deleted, fork.next_producer_id = self.deleted.copy(), self.next_producer_id
        fork.consumers, fork.records = self.consumers.fork(), self.records.fork()
        fork._answered = self._answered.copy()
        return fork

    def dump(self) -> bytes:
        """Equal states give equal bytes."""
        return pack(
            Contents(
                version=self.version,
                feature_level=self.feature_level,
                brokers=[self.brokers[broker_id] for broker_id in sorted(self.brokers)],
                topics=[self.topics[name] for name in sorted(self.topics)],
                consumers=list(self.consumers),
                deleted=list(self.deleted),
                next_producer_id=self.next_producer_id,
                answered=list(self._answered.items()),
                announced=sorted(self.announced.items()),
                records=list(self.records),
            )
        )

    def load(self, data: bytes) -> None:
        """Take over what `dump` made. Raises CorruptData, and then nothing has changed."""
        contents = unpack(data)
        consumers = Consumers()
        for consumer in contents.consumers:
            consumers.set(consumer)
        self.version, self.feature_level = contents.version, contents.feature_level
        self.announced, self.records = dict(contents.announced), Records(contents.records)
        self.brokers = {broker.broker_id: broker for broker in contents.brokers}
        self.topics = {topic.name: topic for topic in contents.topics}
        self.topics_by_id = {topic.topic_id: topic for topic in contents.topics}
        self.consumers = consumers
        self.deleted = OrderedDict.fromkeys(contents.deleted)
        self.next_producer_id = contents.next_producer_id
        self._answered = OrderedDict(contents.answered)


def begin_recovery_epoch(state: RegistryState, recovery_epoch: int) -> bool:
    """Note a committed loss-of-quorum recovery, after which commands may be lost. Returns whether it is new.

    `recovery_epoch` has the count of recoveries, and in its lower 32 bits the recovering broker. Versions, and with
    them the epochs of consumers, and producer ids continue above all numbers that a lost command can have given out.
    """
    count, broker = min(recovery_epoch >> 32, EPOCHS_MAX), recovery_epoch & 0xFF
    least = count << EPOCH_SHIFT | broker << BROKER_SHIFT
    is_new = state.version < least
    state.version, state.next_producer_id = max(state.version, least), max(state.next_producer_id, least)
    return is_new


def reply_error(reply: pb.Reply) -> TinymqError | None:
    """The error in a reply; None: the command was carried out."""
    return make_error(reply.error_code, reply.error_message, reply.error_hint, {}) if reply.error_code else None
