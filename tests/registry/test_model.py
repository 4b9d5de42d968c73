"""The registry's state machine against a plain model, in random runs that Hypothesis shrinks. The model follows the
registry's promises: names, ids, counts and registered brokers, in lists and dictionaries. It does not copy the
placement of replicas, but checks that they are enough, different, registered and balanced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.registry.records import broker
from tinymq.base.topic_config import make
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state import bounds as room
from tinymq.registry.state.effects import (
    BrokersChanged,
    ConsumersChanged,
    PartitionAdded,
    PartitionDeleted,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
)
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import BrokerRecord, TopicRecord
from tinymq.registry.state.wire import broker_to_wire

BOUNDS = {  # small, so that lives reach them
    "ANSWERED_MAX": 6,
    "DELETED_MAX": 3,
    "PARTITIONS_MAX": 6,
    "PARTITIONS_PER_TOPIC_MAX": 4,
    "PARTITION_NUMBER_MAX": 6,
    "CONSUMERS_PER_QUEUE_MAX": 2,
    "CONSUMERS_MAX": 4,
}

NAMES = st.sampled_from(["a", "b", "c", "d.e_f-1"])
BAD_NAMES = st.sampled_from(["", ".", "..", "a/b", "a\n", "é", "x" * 250])
SMALL = st.integers(1, 3)
CHANNELS = st.sampled_from(["c", "d", "e"])
SETTINGS = st.sampled_from(
    [("retention_ms", "5000"), ("retention_ms", "none"), ("max_records", "7"), ("on_full", "drop_oldest"),
     ("sync", "always"), ("retention_ms", "1"), ("storage", "memory"), ("nope", "1"), ("max_bytes", "x")]
)  # fmt: skip

Answer = tuple[str, int]
"""(error code, the reply's value: a first producer id, a partition or an epoch)"""


@dataclass
class ModelTopic:
    topic_id: bytes
    factor: int
    made: int
    numbers: list[int]
    next: int
    settings: dict[str, str]


@dataclass
class Model:
    """The model's state. Only `do` changes it."""

    version: int = 0
    brokers: dict[int, BrokerRecord] = field(default_factory=dict)
    topics: dict[str, ModelTopic] = field(default_factory=dict)
    consumers: dict[tuple[str, int, str], tuple[str, int]] = field(default_factory=dict)  # consumer, epoch
    deleted: list[bytes] = field(default_factory=list)
    handed_out: int = 0  # producer ids
    answers: list[tuple[bytes, Answer]] = field(default_factory=list)  # by command id, the newest last

    def do(self, command_id: bytes, call: Any) -> Answer:
        """Apply a command, once for each remembered id."""
        for known, answer in self.answers:
            if known == command_id:
                return answer
        self.version += 1
        answer = call()
        if command_id:
            self.answers = [*self.answers, (command_id, answer)][-BOUNDS["ANSWERED_MAX"] :]
        return answer

    def register(self, record: BrokerRecord) -> Answer:
        if not record.broker_id or len(record.incarnation) != 16 or not record.address:
            return "InvalidRequest", 0
        self.brokers[record.broker_id] = record
        return "", 0

    def unregister(self, broker_id: int, session: int) -> Answer:
        known = self.brokers.get(broker_id)
        if known and (not session or known.session == session):
            del self.brokers[broker_id]
        return "", 0

    def create(self, name: str, good: bool, topic_id: bytes, partitions: int, factor: int, now: int) -> Answer:
        if not good:
            return "InvalidName", 0
        if name in self.topics:
            return "TopicExists", 0
        in_use = [topic.topic_id for topic in self.topics.values()] + self.deleted
        if (
            len(topic_id) != 16 or topic_id == bytes(16) or topic_id in in_use or not self.has_room(partitions, factor)
            or not 1 <= partitions <= BOUNDS["PARTITIONS_PER_TOPIC_MAX"]
        ):  # fmt: skip
            return "InvalidRequest", 0
        self.topics[name] = ModelTopic(topic_id, factor, now, list(range(partitions)), partitions, {})
        return "", 0

    def has_room(self, partitions: int, factor: int) -> bool:
        there = sum(len(topic.numbers) for topic in self.topics.values())
        return there + partitions <= BOUNDS["PARTITIONS_MAX"] and 1 <= factor <= len(self.brokers)

    def alter(self, name: str, settings: list[tuple[str, str]]) -> Answer:
        if name not in self.topics:
            return "UnknownTopic", 0
        named = [setting for setting, _ in settings]
        refused = {("retention_ms", "1"), ("storage", "memory"), ("nope", "1"), ("max_bytes", "x")}
        if refused & set(settings) or len(set(named)) < len(named):
            return "InvalidConfig", 0
        self.topics[name].settings.update(settings)
        return "", 0

    def add_queue(self, name: str) -> Answer:
        topic = self.topics.get(name)
        if topic is None:
            return "UnknownTopic", 0
        if (
            len(topic.numbers) >= BOUNDS["PARTITIONS_PER_TOPIC_MAX"] or topic.next > BOUNDS["PARTITION_NUMBER_MAX"]
            or not self.has_room(1, topic.factor)
        ):  # fmt: skip
            return "InvalidRequest", 0
        topic.numbers.append(topic.next)
        topic.next += 1
        return "", topic.numbers[-1]

    def lacks(self, name: str, number: int) -> str:
        if name not in self.topics:
            return "UnknownTopic"
        return "" if number in self.topics[name].numbers else "UnknownPartition"

    def delete_partition(self, name: str, number: int, with_topic: bool = False) -> Answer:
        if lacks := self.lacks(name, number):
            return lacks, 0
        if len(self.topics[name].numbers) == 1:
            return self.delete(name) if with_topic else ("InvalidRequest", 0)
        self.topics[name].numbers.remove(number)
        self.forget(lambda topic, partition: (topic, partition) == (name, number))
        return "", 0

    def forget(self, gone: Any) -> None:
        self.consumers = {key: reads for key, reads in self.consumers.items() if not gone(*key[:2])}

    def set_consumer(self, name: str, number: int, channel: str, consumer: str) -> Answer:
        if lacks := self.lacks(name, number):
            return lacks, 0
        if not consumer:
            return "InvalidName", 0
        others = [key for key in self.consumers if key != (name, number, channel)]
        here = [key for key in others if key[:2] == (name, number)]
        if len(here) >= BOUNDS["CONSUMERS_PER_QUEUE_MAX"] or len(others) >= BOUNDS["CONSUMERS_MAX"]:
            return "QuotaExceeded", 0
        self.consumers[name, number, channel] = (consumer, self.version)
        return "", self.version

    def unset_consumer(self, name: str, number: int, channel: str, epoch: int) -> Answer:
        if lacks := self.lacks(name, number):
            return lacks, 0
        known = self.consumers.get((name, number, channel))
        if known and epoch in (0, known[1]):
            del self.consumers[name, number, channel]
        return "", 0

    def delete(self, name: str) -> Answer:
        if name not in self.topics:
            return "UnknownTopic", 0
        self.deleted = [*self.deleted, self.topics.pop(name).topic_id][-BOUNDS["DELETED_MAX"] :]
        self.forget(lambda topic, _: topic == name)
        return "", 0

    def take(self, count: int) -> Answer:
        if not 1 <= count <= 100_000:
            return "InvalidRequest", 0
        first, self.handed_out = self.handed_out + 1, self.handed_out + count
        return "", first


class RegistryLife(RuleBasedStateMachine):
    """A registry, a replica of it that takes checkpoints now and then, and the model."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for name, bound in BOUNDS.items():
            self.patch.setattr(room, name, bound)
        self.state, self.replica, self.model = RegistryState(), RegistryState(), Model()
        self.sent: list[tuple[pb.Command, Any]] = []
        self.numbers = 0
        for number in (1, 2, 3):
            self.register(number, 1, "", True)

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    # ---- commands ----------------------------------------------------------------------------------------------

    def send(self, command: pb.Command, call: Any, *, named: bool = True) -> None:
        self.numbers += 1
        command.command_id = self.numbers.to_bytes(16, "big") if named else b""
        command.time_us = self.numbers
        self.apply(command, call)
        if named:
            self.sent.append((command, call))

    def apply(self, command: pb.Command, call: Any) -> None:
        before = (dict(self.state.brokers), dict(self.state.topics))
        consumers = dict(self.model.consumers)
        version = self.model.version
        expected = self.model.do(command.command_id, call)
        packed = command.SerializeToString()
        came = self.state.apply_bytes(packed)
        assert came == self.replica.apply_bytes(packed)
        command_id, reply, effects = came
        assert command_id == command.command_id
        assert (reply.error_code, reply.first_producer_id or reply.partition or reply.epoch) == expected
        if self.model.version == version:
            assert effects == [], "a remembered answer"
            return
        assert reply.version == self.model.version
        brokers_changed = self.state.brokers != before[0]
        made = [self.state.topics[n] for n in self.state.topics if n not in before[1]]
        gone = [before[1][n] for n in before[1] if n not in self.state.topics]
        pairs = [(before[1][n], topic) for n, topic in self.state.topics.items() if n in before[1]]
        assert effects == [
            *([BrokersChanged()] if brokers_changed else []), *map(TopicCreated, made), *map(TopicDeleted, gone),
            *(TopicAltered(new) for old, new in pairs if old.config != new.config),
            *(PartitionAdded(queue) for old, new in pairs for queue in new.queues if queue not in old.queues),
            *(PartitionDeleted(queue) for old, new in pairs for queue in old.queues if queue not in new.queues),
            *([ConsumersChanged()] if self.told_of_consumers(command, consumers) else []),
        ]  # fmt: skip
        for topic in made:
            self.check_places(topic)
        assert all(new.config_version == self.model.version for old, new in pairs if old.config != new.config)

    def told_of_consumers(self, command: pb.Command, before: dict[tuple[str, int, str], tuple[str, int]]) -> bool:
        asked = command.WhichOneof("command") in ("set_consumer", "unset_consumer")
        return asked and before != self.model.consumers

    def check_places(self, topic: TopicRecord) -> None:
        """Check for enough replicas, on different registered brokers with their present incarnations, with leaders in
        turn.
        """
        live = self.model.brokers
        for number, queue in enumerate(topic.queues):
            assert (queue.topic, queue.topic_id, queue.partition) == (topic.name, topic.topic_id, number)
            ids = [replica.broker_id for replica in queue.replicas]
            assert len(set(ids)) == len(ids) == topic.replication_factor
            assert all(live[r.broker_id].incarnation == r.incarnation for r in queue.replicas)
        leads = Counter(queue.replicas[0].broker_id for queue in topic.queues)
        assert max(leads.values()) - min(leads[b] for b in live) <= 1
        racks = {record.rack for record in live.values()}
        if all(racks) and len(racks) >= topic.replication_factor:
            for queue in topic.queues:
                assert len({live[r.broker_id].rack for r in queue.replicas}) == topic.replication_factor

    @rule(number=st.integers(0, 5), session=SMALL, rack=st.sampled_from(["", "x", "y"]), whole=st.booleans())
    def register(self, number: int, session: int, rack: str, whole: bool) -> None:
        record = broker(number, session, rack) if whole or number % 2 else BrokerRecord(number, b"i", session, "", "")
        self.send(pb.Command(register_broker=broker_to_wire(record)), lambda: self.model.register(record))

    @rule(number=st.integers(0, 9), session=st.integers(0, 3))
    def unregister(self, number: int, session: int) -> None:
        gone = pb.UnregisterBroker(broker_id=number, session=session)
        self.send(pb.Command(unregister_broker=gone), lambda: self.model.unregister(number, session))

    @rule(name=NAMES, partitions=SMALL, factor=st.integers(1, 2))
    def create(self, name: str, partitions: int, factor: int) -> None:
        self.create_with(name, True, b"%016d" % self.numbers, partitions, factor)

    @rule(name=NAMES, which=st.integers(0, 5), factor=st.integers(1, 2))
    def create_with_a_used_id(self, name: str, which: int, factor: int) -> None:
        used = [topic.topic_id for topic in self.model.topics.values()] + self.model.deleted
        self.create_with(name, True, used[which % len(used)] if used else b"", 1, factor)

    @rule(
        name=NAMES,
        bad=st.none() | BAD_NAMES,
        topic_id=st.sampled_from([b"f" * 16, b"", bytes(16), b"s" * 15]),
        partitions=st.one_of(SMALL, st.sampled_from([0, 4, 5, 1025])),
        factor=st.integers(0, 4),
    )
    def create_oddly(self, name: str, bad: str | None, topic_id: bytes, partitions: int, factor: int) -> None:
        self.create_with(name if bad is None else bad, bad is None, topic_id, partitions, factor)

    def create_with(self, name: str, good: bool, topic_id: bytes, partitions: int, factor: int) -> None:
        wanted = pb.CreateTopic(name=name, topic_id=topic_id, partitions=partitions, replication_factor=factor)
        now = self.numbers + 1
        self.send(
            pb.Command(create_topic=wanted), lambda: self.model.create(name, good, topic_id, partitions, factor, now)
        )

    @precondition(lambda self: self.model.topics)
    @rule(which=st.integers(0, 5))
    def delete_one(self, which: int) -> None:
        names = sorted(self.model.topics)
        self.delete(names[which % len(names)])

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.send(pb.Command(delete_topic=pb.DeleteTopic(name=name)), lambda: self.model.delete(name))

    @rule(name=NAMES, settings=st.lists(SETTINGS, max_size=3))
    def alter(self, name: str, settings: list[tuple[str, str]]) -> None:
        wanted = pb.AlterTopic(name=name, settings=[pb.Setting(name=n, value=v) for n, v in settings])
        self.send(pb.Command(alter_topic=wanted), lambda: self.model.alter(name, settings))

    @rule(name=NAMES)
    def add_queue(self, name: str) -> None:
        self.send(pb.Command(create_queue=pb.AddPartition(topic=name)), lambda: self.model.add_queue(name))

    @rule(name=NAMES, number=st.integers(0, 7), with_topic=st.booleans())
    def delete_partition(self, name: str, number: int, with_topic: bool) -> None:
        wanted = pb.DeletePartition(topic=name, partition=number, with_topic=with_topic)
        self.send(pb.Command(delete_queue=wanted), lambda: self.model.delete_partition(name, number, with_topic))

    @rule(name=NAMES, number=st.integers(0, 4), channel=CHANNELS, consumer=st.sampled_from(["me", "you", ""]))
    def set_consumer(self, name: str, number: int, channel: str, consumer: str) -> None:
        wanted = pb.SetConsumer(topic=name, partition=number, channel=channel, consumer=consumer)
        call = lambda: self.model.set_consumer(name, number, channel, consumer)  # noqa: E731
        self.send(pb.Command(set_consumer=wanted), call)

    @precondition(lambda self: self.model.consumers)
    @rule(which=st.integers(0, 3), other=st.none() | st.integers(0, 3))
    def unset_one(self, which: int, other: int | None) -> None:
        """By its own epoch or another's."""
        keys = sorted(self.model.consumers)
        self.unset_consumer(*keys[which % len(keys)], back=other)

    @precondition(lambda self: self.model.topics)
    @rule(which=st.integers(0, 3), number=st.integers(0, 1), channel=CHANNELS, consumer=st.sampled_from(["me", "you"]))
    def set_one(self, which: int, number: int, channel: str, consumer: str) -> None:
        names = sorted(self.model.topics)
        name = names[which % len(names)]
        numbers = self.model.topics[name].numbers
        self.set_consumer(name, numbers[number % len(numbers)], channel, consumer)

    @rule(name=NAMES, number=st.integers(0, 4), channel=CHANNELS, back=st.none() | st.integers(0, 2))
    def unset_consumer(self, name: str, number: int, channel: str, back: int | None) -> None:
        epochs = sorted(epoch for _, epoch in self.model.consumers.values())
        epoch = 0 if back is None or not epochs else epochs[-1 - back % len(epochs)]
        wanted = pb.UnsetConsumer(topic=name, partition=number, channel=channel, epoch=epoch)
        call = lambda: self.model.unset_consumer(name, number, channel, epoch)  # noqa: E731
        self.send(pb.Command(unset_consumer=wanted), call)

    @rule(count=st.sampled_from([0, 1, 7, 100_000, 100_001]), named=st.booleans())
    def take(self, count: int, named: bool) -> None:
        asked = pb.Command(take_producer_ids=pb.TakeProducerIds(count=count))
        self.send(asked, lambda: self.model.take(count), named=named)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, 12))
    def send_again(self, back: int) -> None:
        """A retry: answered from memory, or, when that is long gone, applied once more."""
        self.apply(*self.sent[-1 - back % len(self.sent)])

    @rule(nonsense=st.binary(max_size=30))
    def nonsense(self, nonsense: bytes) -> None:
        """Invalid commands are counted and refused. The model ignores bytes that parse by chance."""
        try:
            pb.Command.FromString(nonsense)
        except Exception:
            came = self.state.apply_bytes(nonsense)
            assert came == self.replica.apply_bytes(nonsense)
            assert came[1].error_code == "UnsupportedVersion"
            self.model.version += 1

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        """The replica restarts from its dump."""
        dumped = self.replica.dump()
        self.replica = RegistryState()
        self.replica.load(dumped)
        assert self.replica.dump() == dumped

    # ---- invariants ------------------------------------------------------------------------------------------

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        state, model = self.state, self.model
        assert state.version == model.version
        assert state.brokers == model.brokers
        assert {
            topic.name: ModelTopic(
                topic.topic_id, topic.replication_factor, topic.created_us, [q.partition for q in topic.queues],
                topic.next_partition, model.topics[topic.name].settings,
            )
            for topic in state.topics.values()
        } == model.topics  # fmt: skip
        for topic in state.topics.values():
            assert topic.config == make(list(model.topics[topic.name].settings.items()))
            assert all((q.topic, q.topic_id) == (topic.name, topic.topic_id) for q in topic.queues)
        reads = {(c.topic, c.partition, c.channel): (c.consumer, c.epoch) for c in state.consumers}
        assert reads == model.consumers
        assert len(state.consumers) == len(reads)
        assert {t.topic_id: t for t in state.topics.values()} == state.topics_by_id
        assert list(state.deleted) == model.deleted
        assert state.next_producer_id == model.handed_out + 1

    @invariant()
    def replicas_agree(self) -> None:
        if hasattr(self, "model"):
            assert self.replica.dump() == self.state.dump()


TestRegistryLife = RegistryLife.TestCase
TestRegistryLife.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, database=None, deadline=None
)
