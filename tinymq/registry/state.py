"""The registry's state and its one function: `apply(command)` gives a reply and effects, and reads no clock.

Pure and total: the same commands give the same state, byte for byte, on every broker; a command that cannot be
done is a reply with an error and changes nothing but the list of answered commands. A command applies once
however often it is sent, by its random id.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tinymq.entry import crc32c
from tinymq.errors import CorruptData, InvalidRequest, TinymqError, TopicExists, UnknownTopic, UnsupportedVersion
from tinymq.proto import registry_pb2 as pb
from tinymq.proto.errors import make_error
from tinymq.registry.placement import place
from tinymq.registry.values import BrokerRecord, QueueRecord, TopicRecord
from tinymq.registry.wire import broker_from_wire, broker_to_wire, topic_from_wire, topic_to_wire
from tinymq.types import TopicId, check_topic_name

# Part of the replicated behaviour, not settings: brokers that differed here would differ in state.
FORMAT = 1
FEATURE_LEVEL = 1
ANSWERED_MAX = 1024
DELETED_MAX = 10_000
PARTITIONS_PER_TOPIC_MAX = 1024
PARTITIONS_MAX = 20_000
PRODUCER_IDS_MAX = 100_000  # in one command


@dataclass(frozen=True, slots=True)
class TopicCreated:
    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """One registered, registered anew, or is gone."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The state was replaced whole: look at everything again."""


Effect = TopicCreated | TopicDeleted | BrokersChanged | Reloaded


class RegistryState:
    """Changed by `apply` and `load` alone."""

    def __init__(self) -> None:
        self.version = 0  # commands applied, refused ones included
        self.feature_level = FEATURE_LEVEL
        self.brokers: dict[int, BrokerRecord] = {}
        self.topics: dict[str, TopicRecord] = {}
        self.topics_by_id: dict[TopicId, TopicRecord] = {}
        self.deleted: OrderedDict[TopicId, None] = OrderedDict()  # oldest first, at most DELETED_MAX
        self.next_producer_id = 1
        self._answered: OrderedDict[bytes, pb.Reply] = OrderedDict()  # oldest first, at most ANSWERED_MAX

    def apply(self, command: pb.Command) -> tuple[pb.Reply, list[Effect]]:
        """Do `command`, once. Never raises."""
        known = self._answered.get(command.command_id)
        if known is not None:
            return known, []
        self.version += 1
        effects: list[Effect] = []
        reply = pb.Reply(version=self.version)
        try:
            self._do(command, reply, effects)
        except TinymqError as error:
            reply.error_code, reply.error_message, reply.error_hint = error.code, error.message, error.hint
        if command.command_id:
            self._answered[command.command_id] = reply
            if len(self._answered) > ANSWERED_MAX:
                self._answered.popitem(last=False)
        return reply, effects

    def apply_bytes(self, payload: bytes) -> tuple[bytes, pb.Reply, list[Effect]]:
        """(command id, reply, effects) of a packed command; bytes that are none count and change nothing else."""
        try:
            command = pb.Command.FromString(payload)
        except DecodeError:
            command = pb.Command()
        reply, effects = self.apply(command)
        return command.command_id, reply, effects

    def _do(self, command: pb.Command, reply: pb.Reply, effects: list[Effect]) -> None:
        kind = command.WhichOneof("command")
        if kind == "register_broker":
            self._register(broker_from_wire(command.register_broker), effects)
        elif kind == "unregister_broker":
            self._unregister(command.unregister_broker, effects)
        elif kind == "create_topic":
            self._create(command.create_topic, command.time_us, effects)
        elif kind == "delete_topic":
            self._delete(command.delete_topic.name, effects)
        elif kind == "take_producer_ids":
            self._take_producer_ids(command.take_producer_ids.count, reply)
        else:
            raise UnsupportedVersion("the registry does not know this command")

    def _register(self, broker: BrokerRecord, effects: list[Effect]) -> None:
        if not broker.broker_id or len(broker.incarnation) != 16 or not broker.address:
            raise InvalidRequest("a registration names a broker id, an incarnation and an address")
        if self.brokers.get(broker.broker_id) != broker:
            self.brokers[broker.broker_id] = broker
            effects.append(BrokersChanged())

    def _unregister(self, gone: pb.UnregisterBroker, effects: list[Effect]) -> None:
        known = self.brokers.get(gone.broker_id)
        if known is not None and gone.session in (0, known.session):
            del self.brokers[gone.broker_id]
            effects.append(BrokersChanged())

    def _create(self, wanted: pb.CreateTopic, time_us: int, effects: list[Effect]) -> None:
        name = check_topic_name(wanted.name)
        if name in self.topics:
            raise TopicExists(f"topic {name!r} exists")
        topic_id = TopicId(wanted.topic_id)
        if len(topic_id) != 16 or not any(topic_id) or topic_id in self.topics_by_id or topic_id in self.deleted:
            raise InvalidRequest("a topic needs a new id of 16 bytes")
        if not 1 <= wanted.partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidRequest(f"{wanted.partitions} partitions", hint=f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX}")
        existing = [queue for topic in self.topics.values() for queue in topic.queues]
        if len(existing) + wanted.partitions > PARTITIONS_MAX:
            raise InvalidRequest(
                f"the cluster has {len(existing)} partitions, and at most {PARTITIONS_MAX}", hint="delete topics first"
            )
        brokers = [self.brokers[broker_id] for broker_id in sorted(self.brokers)]
        if not 1 <= wanted.replication_factor <= len(brokers):
            raise InvalidRequest(
                f"replication factor {wanted.replication_factor} with {len(brokers)} live brokers",
                hint="ask for at least 1 and at most one replica per live broker, or start more brokers",
            )
        places = place(brokers, existing, wanted.partitions, wanted.replication_factor)
        queues = tuple(QueueRecord(name, topic_id, number, replicas) for number, replicas in enumerate(places))
        topic = TopicRecord(name, topic_id, wanted.replication_factor, time_us, queues)
        self._add(topic)
        effects.append(TopicCreated(topic))

    def _delete(self, name: str, effects: list[Effect]) -> None:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic {name[:300]!r}")
        del self.topics[name]
        del self.topics_by_id[topic.topic_id]
        self.deleted[topic.topic_id] = None
        if len(self.deleted) > DELETED_MAX:
            self.deleted.popitem(last=False)
        effects.append(TopicDeleted(topic))

    def _take_producer_ids(self, count: int, reply: pb.Reply) -> None:
        if not 1 <= count <= PRODUCER_IDS_MAX:
            raise InvalidRequest(f"a block of {count} producer ids")
        reply.first_producer_id = self.next_producer_id
        self.next_producer_id += count

    def _add(self, topic: TopicRecord) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def dump(self) -> bytes:
        """Equal states give equal bytes."""
        state = pb.State(
            format=FORMAT,
            version=self.version,
            brokers=[broker_to_wire(self.brokers[broker_id]) for broker_id in sorted(self.brokers)],
            topics=[topic_to_wire(self.topics[name]) for name in sorted(self.topics)],
            deleted_topic_ids=list(self.deleted),
            next_producer_id=self.next_producer_id,
            answered=[pb.Answered(command_id=i, reply=reply) for i, reply in self._answered.items()],
            feature_level=self.feature_level,
        )
        body = state.SerializeToString(deterministic=True)
        return crc32c(body).to_bytes(4, "little") + body

    def load(self, data: bytes) -> None:
        """Take over what `dump` made. Raises CorruptData, and then nothing has changed."""
        body = data[4:]
        if data[:4] != crc32c(body).to_bytes(4, "little"):
            raise CorruptData("the registry's state does not match its checksum")
        try:
            state = pb.State.FromString(body)
        except DecodeError as error:
            raise CorruptData(f"the registry's state does not parse: {error}") from None
        if state.format != FORMAT:
            raise CorruptData(f"the registry's state has format {state.format}, this build knows {FORMAT}")
        topics = [topic_from_wire(topic) for topic in state.topics]
        if not _holds_together(state, topics):
            raise CorruptData("the registry's state is none that commands could have made")
        self.version, self.feature_level = state.version, state.feature_level
        self.brokers = {b.broker_id: broker_from_wire(b) for b in state.brokers}
        self.topics, self.topics_by_id = {}, {}
        for topic in topics:
            self._add(topic)
        self.deleted = OrderedDict((TopicId(topic_id), None) for topic_id in state.deleted_topic_ids)
        self.next_producer_id = state.next_producer_id
        self._answered = OrderedDict((a.command_id, a.reply) for a in state.answered)


def _holds_together(state: pb.State, topics: list[TopicRecord]) -> bool:
    """What `apply` relies on, whoever made the state that is loaded."""
    ids = [topic.topic_id for topic in topics] + [TopicId(topic_id) for topic_id in state.deleted_topic_ids]
    queues = [queue for topic in topics for queue in topic.queues]
    return (
        len({topic.name for topic in topics}) == len(topics)
        and all(topic.queues for topic in topics)
        and all(queue.replicas for queue in queues)
        and len(set(ids)) == len(ids)
        and all(len(topic_id) == 16 for topic_id in ids)
        and len({broker.broker_id for broker in state.brokers} - {0}) == len(state.brokers)
        and len(ids) - len(topics) <= DELETED_MAX
        and len(state.answered) <= ANSWERED_MAX
        and 0 < state.next_producer_id < 1 << 63
        and state.version < 1 << 63
    )


def reply_error(reply: pb.Reply) -> TinymqError | None:
    """What a command was refused with."""
    return make_error(reply.error_code, reply.error_message, reply.error_hint, {}) if reply.error_code else None
