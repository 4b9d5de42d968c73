"""The registry's state: `apply` is pure and total, applies each command once, and gives equal bytes on every broker."""

from __future__ import annotations

import random

import pytest

from tests.registry.records import broker
from tinymq.base.errors import CorruptData
from tinymq.base.topic_config import TopicConfig
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state import bounds as room
from tinymq.registry.state.effects import BrokersChanged, TopicCreated, TopicDeleted
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.wire import broker_to_wire, config_to_wire


def command(rng: random.Random, **kind: object) -> pb.Command:
    return pb.Command(command_id=rng.randbytes(16), time_us=5, **kind)  # type: ignore[arg-type]


def create(rng: random.Random, name: str, partitions: int = 2, factor: int = 1) -> pb.Command:
    wanted = pb.CreateTopic(name=name, topic_id=rng.randbytes(16), partitions=partitions, replication_factor=factor)
    return command(rng, create_topic=wanted)


def alter(name: str, *settings: tuple[str, str]) -> pb.AlterTopic:
    return pb.AlterTopic(name=name, settings=[pb.Setting(name=n, value=v) for n, v in settings])


def odd_config(**fields: object) -> pb.CreateTopic:
    config = config_to_wire(TopicConfig())
    for name, value in fields.items():
        setattr(config, name, value)
    return pb.CreateTopic(name="u", topic_id=b"u" * 16, partitions=1, replication_factor=1, config=config)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(1)


@pytest.fixture
def three(rng: random.Random) -> RegistryState:
    state = RegistryState()
    for number in (1, 2, 3):
        _, effects = state.apply(command(rng, register_broker=broker_to_wire(broker(number))))
        assert effects == [BrokersChanged()]
    return state


def test_a_command_applies_once(three: RegistryState, rng: random.Random) -> None:
    once = create(rng, "t")
    reply, effects = three.apply(once)
    assert [type(e) for e in effects] == [TopicCreated]
    assert three.apply(once) == (reply, [])
    assert three.version == 4
    other = RegistryState()
    other.load(three.dump())
    assert other.apply(once) == (reply, []), "remembered across a restart"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ({"alter_topic": pb.AlterTopic(name="nope")}, "UnknownTopic"),
        ({"alter_topic": alter("t", ("max_bytes", "0"))}, "InvalidConfig"),
        ({"alter_topic": alter("t", ("storage", "memory"))}, "InvalidConfig"),
        ({"alter_topic": alter("t", ("x" * 100_000, "5"))}, "InvalidConfig"),
        ({"alter_topic": alter("t", *[("max_bytes", "5")] * 65)}, "InvalidRequest"),
        ({"create_queue": pb.AddPartition(topic="nope")}, "UnknownTopic"),
        ({"delete_queue": pb.DeletePartition(topic="nope")}, "UnknownTopic"),
        ({"delete_queue": pb.DeletePartition(topic="t", partition=2)}, "UnknownPartition"),
        ({"delete_queue": pb.DeletePartition(topic="t", partition=(1 << 32) - 1)}, "UnknownPartition"),
        ({"set_consumer": pb.SetConsumer(topic="t", partition=2, channel="c", consumer="me")}, "UnknownPartition"),
        ({"set_consumer": pb.SetConsumer(topic="t", channel="", consumer="me")}, "InvalidName"),
        ({"set_consumer": pb.SetConsumer(topic="t", channel="c", consumer="a/b")}, "InvalidName"),
        ({"unset_consumer": pb.UnsetConsumer(topic="nope", channel="c")}, "UnknownTopic"),
        ({"unset_consumer": pb.UnsetConsumer(topic="t", partition=2, channel="c")}, "UnknownPartition"),
        ({"create_topic": odd_config(storage="tape")}, "InvalidConfig"),
        ({"create_topic": odd_config(on_full="")}, "InvalidConfig"),
        ({"create_topic": odd_config(retention_ms=0)}, "InvalidConfig"),
        ({"create_topic": odd_config(segment_bytes=-1)}, "InvalidConfig"),
        ({"create_topic": odd_config(storage="memory")}, "InvalidConfig"),
    ],
    ids=str,
)
def test_commands_that_no_caller_sends_are_refused(
    three: RegistryState, rng: random.Random, kind: dict[str, object], code: str
) -> None:
    """A command may come from any broker with any build, so `apply` checks everything."""
    three.apply(create(rng, "t"))
    before = three.dump()
    reply, effects = three.apply(command(rng, **kind))
    assert (reply.error_code, effects) == (code, [])
    assert len(reply.error_message) + len(reply.error_hint) < 2000
    after = RegistryState()
    after.load(three.dump())
    after.version, after._answered = three.version - 1, RegistryState()._answered
    known = RegistryState()
    known.load(before)
    known._answered = RegistryState()._answered
    assert after.dump() == known.dump(), "nothing else has changed"


def test_a_topic_without_settings_has_the_usual_ones(three: RegistryState, rng: random.Random) -> None:
    """Logs have commands from before topics had settings."""
    three.apply(create(rng, "t"))
    assert three.topics["t"].config == TopicConfig()


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (pb.CreateTopic(name="..", partitions=1, replication_factor=1), "InvalidName"),
        (pb.CreateTopic(name="a/b", partitions=1, replication_factor=1), "InvalidName"),
        (pb.CreateTopic(name="", partitions=1, replication_factor=1), "InvalidName"),
        (pb.CreateTopic(name="x" * 250, partitions=1, replication_factor=1), "InvalidName"),
        (pb.CreateTopic(name="a\nb", partitions=1, replication_factor=1), "InvalidName"),
        (pb.CreateTopic(name="t", partitions=0, replication_factor=1), "InvalidRequest"),
        (pb.CreateTopic(name="t", partitions=1025, replication_factor=1), "InvalidRequest"),
        (pb.CreateTopic(name="t", partitions=1, replication_factor=0), "InvalidRequest"),
        (pb.CreateTopic(name="t", partitions=1, replication_factor=4), "InvalidRequest"),
        (pb.CreateTopic(name="there", partitions=1, replication_factor=1), "TopicExists"),
    ],
)
def test_a_refusal_is_a_reply_and_changes_nothing(
    three: RegistryState, rng: random.Random, wanted: pb.CreateTopic, code: str
) -> None:
    three.apply(create(rng, "there"))
    wanted.topic_id = rng.randbytes(16)
    topics = dict(three.topics)
    reply, effects = three.apply(command(rng, create_topic=wanted))
    assert (reply.error_code, effects, three.topics) == (code, [], topics)


def test_the_cluster_has_a_bound(three: RegistryState, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PARTITIONS_MAX", 3)
    assert not three.apply(create(rng, "a", 2))[0].error_code
    assert three.apply(create(rng, "b", 2))[0].error_code == "InvalidRequest"


def test_a_recreated_topic_is_another_topic(three: RegistryState, rng: random.Random) -> None:
    first = create(rng, "t")
    three.apply(first)
    _, effects = three.apply(command(rng, delete_topic=pb.DeleteTopic(name="t")))
    assert [type(e) for e in effects] == [TopicDeleted]
    again = pb.Command.FromString(first.SerializeToString())
    again.command_id = rng.randbytes(16)
    assert three.apply(again)[0].error_code == "InvalidRequest", "an id is never used twice"
    three.apply(create(rng, "t"))
    assert three.topics["t"].topic_id != first.create_topic.topic_id
    assert list(three.deleted) == [first.create_topic.topic_id]
    assert three.apply(command(rng, delete_topic=pb.DeleteTopic(name="x")))[0].error_code == "UnknownTopic"


def test_only_its_own_registration_is_ended(three: RegistryState, rng: random.Random) -> None:
    three.apply(command(rng, register_broker=broker_to_wire(broker(2, session=2))))
    three.apply(command(rng, unregister_broker=pb.UnregisterBroker(broker_id=2, session=1)))
    assert sorted(three.brokers) == [1, 2, 3]
    three.apply(command(rng, unregister_broker=pb.UnregisterBroker(broker_id=2, session=2)))
    assert sorted(three.brokers) == [1, 3]


def test_producer_ids_are_never_handed_out_twice(three: RegistryState, rng: random.Random) -> None:
    take = [command(rng, take_producer_ids=pb.TakeProducerIds(count=10)) for _ in range(2)]
    assert [three.apply(c)[0].first_producer_id for c in [*take, take[0]]] == [1, 11, 1]
    assert three.apply(command(rng, take_producer_ids=pb.TakeProducerIds()))[0].error_code == "InvalidRequest"


def test_apply_is_total(three: RegistryState, rng: random.Random) -> None:
    for nonsense in (b"", b"\xff\xff", rng.randbytes(100), pb.Command(command_id=b"x").SerializeToString()):
        _, reply, effects = three.apply_bytes(nonsense)
        assert reply.error_code
        assert effects == []
    assert three.version == 7, "counted all the same"


def test_remembered_answers_are_bounded(
    three: RegistryState, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "ANSWERED_MAX", 5)
    monkeypatch.setattr(room, "DELETED_MAX", 2)
    for number in range(6):
        three.apply(create(rng, f"t{number}", 1))
        three.apply(command(rng, delete_topic=pb.DeleteTopic(name=f"t{number}")))
    assert len(three.deleted) == 2
    assert len(pb.State.FromString(three.dump()[4:]).answered) == 5


def test_equal_commands_give_equal_bytes_through_any_checkpoint(rng: random.Random) -> None:
    commands = [command(rng, register_broker=broker_to_wire(broker(n))) for n in (3, 1, 2)]
    for number in range(120):
        name = f"t{rng.randrange(8)}"
        commands.append(
            rng.choice(
                [
                    create(rng, name, rng.randrange(1, 5), rng.randrange(1, 5)),
                    command(rng, delete_topic=pb.DeleteTopic(name=name)),
                    command(rng, alter_topic=alter(name, ("max_records", str(number + 1)))),
                    command(rng, create_queue=pb.AddPartition(topic=name)),
                    command(rng, delete_queue=pb.DeletePartition(topic=name, partition=rng.randrange(4))),
                    command(rng, set_consumer=pb.SetConsumer(topic=name, channel=name, consumer="me")),
                    command(rng, take_producer_ids=pb.TakeProducerIds(count=number)),
                    commands[rng.randrange(len(commands))],
                ]
            )
        )
    straight = RegistryState()
    for c in commands:
        straight.apply(c)
    for cut in (0, 1, 20, 40, 80, len(commands)):
        early, late = RegistryState(), RegistryState()
        for c in commands[:cut]:
            early.apply(c)
        late.load(early.dump())
        for c in commands[cut:]:
            late.apply(c)
        assert late.dump() == straight.dump()


def test_damage_is_refused(three: RegistryState) -> None:
    data = three.dump()
    fresh = RegistryState()
    for position in range(len(data)):
        with pytest.raises(CorruptData):
            fresh.load(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    with pytest.raises(CorruptData):
        fresh.load(b"")
    assert fresh.version == 0


def test_a_fork_does_not_change_the_state(three: RegistryState, rng: random.Random) -> None:
    three.apply(create(rng, "t"))
    wanted = pb.SetConsumer(topic="t", partition=0, channel="c", consumer="x")
    three.apply(command(rng, set_consumer=wanted))
    before, fork = three.dump(), three.fork()
    assert fork.dump() == before
    later = [
        create(rng, "u"),
        command(rng, set_consumer=pb.SetConsumer(topic="t", partition=0, channel="d", consumer="x")),
        command(rng, set_consumer=pb.SetConsumer(topic="t", partition=1, channel="c", consumer="x")),
        command(rng, unregister_broker=pb.UnregisterBroker(broker_id=2)),
        command(rng, take_producer_ids=pb.TakeProducerIds(count=5)),
        command(rng, delete_topic=pb.DeleteTopic(name="t")),
    ]
    for each in later:
        assert not fork.apply(each)[0].error_code
    assert three.dump() == before
    for each in later:
        three.apply(each)
    assert three.dump() == fork.dump()
