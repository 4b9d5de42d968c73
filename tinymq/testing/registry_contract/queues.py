"""The contract of every RegistryService: creating and deleting queues, and their consumers."""

from __future__ import annotations

from collections import Counter

import pytest

from tinymq.base.errors import InvalidName, InvalidRequest, QuotaExceeded, UnknownPartition, UnknownTopic
from tinymq.base.types import GroupId, TopicId
from tinymq.registry.state import bounds
from tinymq.registry.state.effects import ConsumersChanged, PartitionAdded, PartitionDeleted, TopicDeleted
from tinymq.registry.state.values import QueueConsumer
from tinymq.testing.registry_contract.bench import Bench, Scenario


def test_queues_come_and_go_by_number(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2, 3)
        topic = await b.registry.register_topic("t", 3, 2)
        del b.effects[:]
        gone = b.registry.get_queue("t", 1)
        await b.registry.unregister_queue("t", 1)
        first = await b.registry.register_queue("t")
        last = await b.registry.register_queue("t")
        assert [q.partition for q in b.registry.get_queues_by_topic("t")] == [0, 2, 3, 4]
        assert b.effects == [PartitionDeleted(gone), PartitionAdded(first), PartitionAdded(last)]
        now = b.registry.get_topic("t")
        assert now is not None
        assert now == b.registry.get_topic_by_id(topic.topic_id)
        assert (now.next_partition, now.topic_id, now.config) == (5, topic.topic_id, topic.config)
        assert [now.queue(n) and now.queue(n) is not None for n in range(-1, 6)] == [
            None, True, None, True, True, True, None,
        ]  # fmt: skip
        assert b.registry.get_queue("t", 3) == first
        await b.registry.unregister_queue("t", 4)
        assert (await b.registry.register_queue("t")).partition == 5, "a number is never used again"

    run(scenario)


def test_a_queue_is_placed_as_those_of_a_new_topic(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        await b.registry.register_topic("o", 3, 1)
        await b.register(2, 3)
        await b.registry.register_topic("t", 1, 2)
        for _ in range(8):
            await b.registry.register_queue("t")
        queues = b.registry.get_queues_by_topic("t")
        assert Counter(q.replicas[0].broker_id for q in queues) == {1: 3, 2: 3, 3: 3}, (
            "the topic's own leaders are balanced"
        )
        assert Counter(r.broker_id for q in queues for r in q.replicas) == {1: 6, 2: 6, 3: 6}
        assert all(len({r.broker_id for r in q.replicas}) == 2 for q in queues)

    run(scenario)


def test_all_queues(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        assert b.registry.get_all_queues() == []
        await b.registry.register_topic("b", 2, 1)
        await b.registry.register_topic("a", 1, 1)
        await b.registry.unregister_queue("b", 0)
        await b.registry.register_queue("b")
        assert [(q.topic, q.partition) for q in b.registry.get_all_queues()] == [("a", 0), ("b", 1), ("b", 2)]
        assert len({q.group for q in b.registry.get_all_queues()}) == 3

    run(scenario)


def test_what_is_deleted_is_known_to_be(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        topic = await b.registry.register_topic("t", 2, 1)
        other = await b.registry.register_topic("u", 1, 1)

        def deleted(topic_id: TopicId) -> list[bool]:
            return [b.registry.is_queue_deleted(GroupId(topic_id, n)) for n in range(4)]

        assert deleted(topic.topic_id) == [False] * 4
        await b.registry.unregister_queue("t", 0)
        assert deleted(topic.topic_id) == [True, False, False, False], "a queue that was never created is not deleted"
        await b.registry.register_queue("t")
        await b.registry.unregister_queue("t", 2)
        assert deleted(topic.topic_id) == [True, False, True, False]
        await b.registry.unregister_topic("t")
        assert deleted(topic.topic_id) == [True] * 4
        assert deleted(other.topic_id) == [False] * 4
        assert deleted(TopicId(b"s" * 16)) == [False] * 4, "an unknown topic is not known to be deleted"

    run(scenario)


def test_the_last_queue_takes_its_topic_along_if_that_was_asked_for(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        first = await b.registry.register_topic("t", 2, 1)
        await b.registry.set_queue_consumer("t", 1, "c", "me")
        await b.registry.unregister_queue("t", 0, with_topic=True, topic_id=first.topic_id)
        assert [queue.partition for queue in b.registry.get_queues_by_topic("t")] == [1], (
            "the first of two queues leaves the topic in place"
        )
        with pytest.raises(UnknownPartition):
            await b.registry.unregister_queue("t", 0, with_topic=True)
        with pytest.raises(InvalidRequest):
            await b.registry.unregister_queue("t", 1)
        await b.registry.unregister_queue("t", 1, with_topic=True, command_id=b"l" * 16)
        assert b.registry.get_topic("t") is None
        assert b.registry.is_deleted(first.topic_id)
        second = await b.registry.register_topic("t", 2, 1)
        assert b.registry.get_queue_consumer("t", 1, "c") is None
        await b.registry.unregister_queue("t", 1, with_topic=True, command_id=b"l" * 16)
        for number in (0, 1):
            with pytest.raises(UnknownTopic):
                await b.registry.unregister_queue("t", number, with_topic=True, topic_id=first.topic_id)
        assert b.registry.get_topic("t") == second, "a retry does not touch the new topic of that name"

    run(scenario)


def test_queue_changes_under_the_same_id_are_made_once(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        await b.registry.register_topic("t", 1, 1)
        made = await b.registry.register_queue("t", command_id=b"m" * 16)
        assert await b.registry.register_queue("t", command_id=b"m" * 16) == made
        await b.registry.unregister_queue("t", made.partition, command_id=b"u" * 16)
        await b.registry.unregister_queue("t", made.partition, command_id=b"u" * 16)
        with pytest.raises(UnknownPartition):
            await b.registry.register_queue("t", command_id=b"m" * 16)
        first = await b.registry.set_queue_consumer("t", 0, "c", "me", command_id=b"s" * 16)
        second = await b.registry.set_queue_consumer("t", 0, "c", "you")
        assert await b.registry.set_queue_consumer("t", 0, "c", "me", command_id=b"s" * 16) == first
        assert b.registry.get_queue_consumer("t", 0, "c") == second, "the first one does not come back"
        await b.registry.unset_queue_consumer("t", 0, "c", command_id=b"o" * 16)
        third = await b.registry.set_queue_consumer("t", 0, "c", "me")
        await b.registry.unset_queue_consumer("t", 0, "c", command_id=b"o" * 16)
        assert b.registry.get_queue_consumer("t", 0, "c") == third

    run(scenario)


def test_what_is_refused_of_queues(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2)
        await b.registry.register_topic("t", 2, 2)
        await b.registry.unregister_queue("t", 0)
        queues = b.registry.get_all_queues()
        with pytest.raises(UnknownTopic):
            await b.registry.register_queue("nope")
        with pytest.raises(UnknownTopic):
            await b.registry.unregister_queue("nope", 0)
        with pytest.raises(UnknownTopic):
            b.registry.get_queue("nope", 0)
        for number in (0, 2, 1 << 31, -1):
            with pytest.raises(UnknownPartition):
                b.registry.get_queue("t", number)
            with pytest.raises(UnknownPartition if number >= 0 else InvalidRequest):
                await b.registry.unregister_queue("t", number)
        with pytest.raises(InvalidRequest) as last:
            await b.registry.unregister_queue("t", 1)
        assert "delete the topic" in last.value.hint
        for name in ("", "..", "a/b", "x" * 250):
            with pytest.raises(InvalidName):
                await b.registry.register_queue(name)
            with pytest.raises(InvalidName):
                await b.registry.unregister_queue(name, 0)
        with pytest.raises(InvalidRequest):
            await b.registry.register_queue("t", command_id=b"short")
        await b.registry.unregister_broker(2)
        with pytest.raises(InvalidRequest, match="1 live brokers"):
            await b.registry.register_queue("t")
        assert b.registry.get_all_queues() == queues

    run(scenario)


@pytest.mark.parametrize("bound", ["PARTITIONS_PER_TOPIC_MAX", "PARTITIONS_MAX", "PARTITION_NUMBER_MAX"])
def test_queues_are_bounded(run: Scenario, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(bounds, bound, 3)

    async def scenario(b: Bench) -> None:
        await b.register(1)
        await b.registry.register_topic("t", 3, 1)
        if bound == "PARTITION_NUMBER_MAX":
            await b.registry.register_queue("t")
            await b.registry.unregister_queue("t", 3)
        queues = b.registry.get_all_queues()
        with pytest.raises(InvalidRequest) as refused:
            await b.registry.register_queue("t")
        assert refused.value.hint
        assert b.registry.get_all_queues() == queues

    run(scenario)


def test_a_channel_has_one_consumer_and_its_epoch_rises(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        topic = await b.registry.register_topic("t", 2, 1)
        del b.effects[:]
        assert b.registry.get_queue_consumer("t", 0, "c") is None
        first = await b.registry.set_queue_consumer("t", 0, "c", "me")
        assert first == QueueConsumer("t", topic.topic_id, 0, "c", "me", first.epoch)
        assert b.registry.get_queue_consumer("t", 0, "c") == first
        second = await b.registry.set_queue_consumer("t", 0, "c", "you")
        assert b.registry.get_queue_consumer("t", 0, "c") == second
        third = await b.registry.set_queue_consumer("t", 0, "c", "you")
        elsewhere = await b.registry.set_queue_consumer("t", 1, "c", "me")
        other = await b.registry.set_queue_consumer("t", 0, "d", "me")
        epochs = [c.epoch for c in (first, second, third, elsewhere, other)]
        assert epochs == sorted(set(epochs)), "each epoch is above all earlier epochs of any consumer"
        assert epochs[0] > 0
        assert b.registry.get_queue_consumer("t", 0, "c") == third, "channels and partitions do not see each other"
        assert b.effects == [ConsumersChanged()] * 5

    run(scenario)


def test_consumers_end_by_themselves_and_with_what_they_read(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        await b.registry.register_topic("t", 2, 1)
        old = await b.registry.set_queue_consumer("t", 0, "c", "me")
        new = await b.registry.set_queue_consumer("t", 0, "c", "you")
        await b.registry.unset_queue_consumer("t", 0, "c", old.epoch)
        assert b.registry.get_queue_consumer("t", 0, "c") == new, "somebody else's assignment is left alone"
        del b.effects[:]
        await b.registry.unset_queue_consumer("t", 0, "c", new.epoch)
        assert b.registry.get_queue_consumer("t", 0, "c") is None
        await b.registry.unset_queue_consumer("t", 0, "c")
        await b.registry.unset_queue_consumer("t", 0, "never")
        assert b.effects == [ConsumersChanged()], "unsetting a missing consumer has no effect"
        last = await b.registry.set_queue_consumer("t", 0, "c", "me")
        kept = await b.registry.set_queue_consumer("t", 1, "c", "me")
        assert last.epoch > new.epoch
        await b.registry.unregister_queue("t", 0)
        with pytest.raises(UnknownPartition):
            b.registry.get_queue_consumer("t", 0, "c")
        assert b.registry.get_queue_consumer("t", 1, "c") == kept
        await b.registry.unregister_topic("t")
        assert isinstance(b.effects[-1], TopicDeleted)
        await b.registry.register_topic("t", 2, 1)
        assert b.registry.get_queue_consumer("t", 1, "c") is None, "another topic of the same name has its own"
        assert (await b.registry.set_queue_consumer("t", 1, "c", "me")).epoch > kept.epoch

    run(scenario)


def test_what_is_refused_of_consumers(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        await b.registry.register_topic("t", 1, 1)
        there = await b.registry.set_queue_consumer("t", 0, "c", "me")
        for topic, partition, error in (("nope", 0, UnknownTopic), ("t", 1, UnknownPartition)):
            with pytest.raises(error):
                await b.registry.set_queue_consumer(topic, partition, "c", "me")
            with pytest.raises(error):
                await b.registry.unset_queue_consumer(topic, partition, "c")
            with pytest.raises(error):
                b.registry.get_queue_consumer(topic, partition, "c")
        for name in ("", ".", "a b", "x" * 250, "\n", "é"):
            with pytest.raises(InvalidName):
                await b.registry.set_queue_consumer("t", 0, name, "me")
            with pytest.raises(InvalidName):
                await b.registry.set_queue_consumer("t", 0, "c", name)
            with pytest.raises(InvalidName):
                await b.registry.unset_queue_consumer("t", 0, name)
        for epoch in (-1, 1 << 64):
            with pytest.raises(InvalidRequest):
                await b.registry.unset_queue_consumer("t", 0, "c", epoch)
        for partition in (-1, 1 << 32):
            with pytest.raises(InvalidRequest):
                await b.registry.set_queue_consumer("t", partition, "c", "me")
        assert b.registry.get_queue_consumer("t", 0, "c") == there

    run(scenario)


@pytest.mark.parametrize(("bound", "where"), [("CONSUMERS_PER_QUEUE_MAX", "partition"), ("CONSUMERS_MAX", "cluster")])
def test_consumers_are_bounded(run: Scenario, monkeypatch: pytest.MonkeyPatch, bound: str, where: str) -> None:
    monkeypatch.setattr(bounds, bound, 3)

    async def scenario(b: Bench) -> None:
        await b.register(1)
        await b.registry.register_topic("t", 4, 1)
        numbers = [0, 0, 0, 0] if where == "partition" else [0, 1, 2, 3]
        for number, partition in enumerate(numbers[:3]):
            await b.registry.set_queue_consumer("t", partition, f"c{number}", "me")
        with pytest.raises(QuotaExceeded, match=where):
            await b.registry.set_queue_consumer("t", numbers[3], "c3", "me")
        await b.registry.set_queue_consumer("t", numbers[0], "c0", "you")  # in somebody's place
        await b.registry.unset_queue_consumer("t", numbers[1], "c1")
        await b.registry.set_queue_consumer("t", numbers[3], "c3", "me")
        await b.registry.unregister_queue("t", numbers[2])
        await b.registry.set_queue_consumer("t", 3, "c4", "me")
        await b.registry.unregister_topic("t")
        await b.registry.register_topic("t", 4, 1)
        for number, partition in enumerate(numbers[:3]):
            await b.registry.set_queue_consumer("t", partition, f"c{number}", "me")

    run(scenario)
