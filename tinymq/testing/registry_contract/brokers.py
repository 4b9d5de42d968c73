"""The contract of every RegistryService: brokers, topics, versions."""

from __future__ import annotations

import asyncio

import pytest

from tinymq.base.config import Timing
from tinymq.base.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    TopicExists,
    UnknownTopic,
)
from tinymq.base.topic_config import OnFull, Storage, TopicConfig
from tinymq.registry.state.effects import BrokersChanged, Effect, TopicAltered, TopicCreated, TopicDeleted
from tinymq.testing.registry_contract.bench import Bench, Scenario, broker


def test_brokers_register_and_leave(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        assert await b.registry.register_broker(broker(2)) == Timing().registration_lease_s
        await b.register(1)
        assert b.registry.get_all_brokers() == [broker(1), broker(2)]
        assert b.registry.get_broker(2) == broker(2)
        assert b.registry.get_broker(9) is None
        await b.registry.register_broker(broker(2, session=5))
        await b.registry.unregister_broker(2, session=1)
        assert b.registry.get_broker(2) == broker(2, session=5)
        await b.registry.unregister_broker(2)
        await b.registry.unregister_broker(2)
        assert b.registry.get_all_brokers() == [broker(1)]
        assert b.effects == [BrokersChanged()] * 4

    run(scenario)


def test_a_broker_that_is_gone_is_unregistered_by_itself(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2)
        for _ in range(8):
            b.clock.advance(Timing().registration_renew_s)
            await asyncio.sleep(0)
            await b.register(1)
        await b.until(lambda: b.registry.get_all_brokers() == [broker(1)])
        await b.register(2)
        assert b.registry.get_all_brokers() == [broker(1), broker(2)]

    run(scenario)


def test_a_renewal_changes_nothing(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        version = b.registry.version
        await b.register(1, 1, 1)
        assert b.registry.version == version

    run(scenario)


def test_topics_and_queues(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2, 3)
        topic = await b.registry.register_topic("flights", 6, 3)
        assert b.registry.get_topic("flights") == topic
        assert b.registry.get_topic_by_id(topic.topic_id) == topic
        assert b.registry.get_all_topics() == [topic]
        queues = b.registry.get_queues_by_topic("flights")
        assert [q.partition for q in queues] == list(range(6))
        assert sorted(q.replicas[0].broker_id for q in queues) == [1, 1, 2, 2, 3, 3]
        other = await b.registry.register_topic("a", 1, 1)
        assert [t.name for t in b.registry.get_all_topics()] == ["a", "flights"]
        await b.registry.unregister_topic("flights")
        assert b.registry.get_topic("flights") is None
        assert b.registry.is_deleted(topic.topic_id)
        assert not b.registry.is_deleted(other.topic_id)
        assert b.effects[3:] == [TopicCreated(topic), TopicCreated(other), TopicDeleted(topic)]
        again = await b.registry.register_topic("flights", 1, 1)
        assert again.topic_id != topic.topic_id

    run(scenario)


def test_a_topic_has_its_settings_and_they_change_one_by_one(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        config = TopicConfig(
            storage=Storage.MEMORY,
            sync_interval_ms=0,
            retention_ms=None,
            retention_bytes=5,
            segment_bytes=1 << 20,
            segment_ms=2000,
            max_records=7,
            max_bytes=8,
            on_full=OnFull.DROP_OLDEST,
        )
        topic = await b.registry.register_topic("t", 1, 1, config)
        assert topic.config == config
        altered = await b.registry.alter_topic("t", [("retention_ms", "60000"), ("max_records", "none")])
        assert altered == b.registry.get_topic("t") == b.registry.get_topic_by_id(topic.topic_id)
        assert (altered.config.retention_ms, altered.config.max_records, altered.config.max_bytes) == (60_000, None, 8)
        assert altered.config_version == b.registry.version > topic.config_version
        assert b.effects[1:] == [TopicCreated(topic), TopicAltered(altered)]
        assert await b.registry.alter_topic("t", [("max_bytes", "8")]) == altered, "an unchanged value is no change"
        assert await b.registry.alter_topic("t", []) == altered
        assert len(b.effects) == 3
        assert (await b.registry.register_topic("u", 1, 1)).config == TopicConfig()

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ([("retention_m", "5")], "retention_ms"),
        ([("retention_ms", "5000"), ("retention_ms", "6000")], ""),
        ([("retention_ms", "1")], "between"),
        ([("retention_ms", "soon")], "whole number"),
        ([("segment_bytes", "none")], "whole number"),
        ([("on_full", "panic")], "reject"),
        ([("storage", "memory")], "another topic"),
        ([("max_bytes", "70000"), ("retention_ms", "x")], "whole number"),
    ],
)
def test_settings_are_all_taken_or_none(run: Scenario, settings: list[tuple[str, str]], hint: str) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        topic = await b.registry.register_topic("t", 1, 1)
        with pytest.raises(InvalidConfig) as refused:
            await b.registry.alter_topic("t", settings)
        assert hint in refused.value.hint
        assert b.registry.get_topic("t") == topic

    run(scenario)


def test_a_change_under_the_same_id_is_made_once(run: Scenario) -> None:
    """A repeated command id changes nothing, even if the topic changed or was deleted in between."""

    async def scenario(b: Bench) -> None:
        await b.register(1)
        topic = await b.registry.register_topic("t", 2, 1, command_id=b"c" * 16)
        assert await b.registry.register_topic("t", 2, 1, command_id=b"c" * 16) == topic
        altered = await b.registry.alter_topic("t", [("max_records", "5")], command_id=b"a" * 16)
        later = await b.registry.alter_topic("t", [("max_records", "6")])
        assert await b.registry.alter_topic("t", [("max_records", "5")], command_id=b"a" * 16) == later != altered
        await b.registry.unregister_topic("t", command_id=b"d" * 16)
        with pytest.raises(UnknownTopic, match="as soon as it was made"):
            await b.registry.register_topic("t", 2, 1, command_id=b"c" * 16)
        again = await b.registry.register_topic("t", 1, 1, command_id=b"e" * 16)
        await b.registry.unregister_topic("t", command_id=b"d" * 16)
        assert b.registry.get_topic("t") == again
        with pytest.raises(InvalidRequest):
            await b.registry.unregister_topic("t", command_id=b"short")

    run(scenario)


def test_what_is_refused(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2, 3)
        await b.registry.register_topic("t", 1, 1)
        topics = b.registry.get_all_topics()
        for name in ("", "x" * 250, "..", ".", "a/b", "a\0b", "ä", "\ud800"):
            with pytest.raises(InvalidName):
                await b.registry.register_topic(name, 1, 1)
            with pytest.raises(InvalidName):
                await b.registry.alter_topic(name, [])
            with pytest.raises(InvalidName):
                await b.registry.unregister_topic(name)
        with pytest.raises(TopicExists):
            await b.registry.register_topic("t", 1, 1)
        for partitions, factor in ((0, 1), (1, 0), (1, 4), (100_000, 1), (-1, 1), (1, -1), (1 << 32, 1), (1, 1 << 70)):
            with pytest.raises(InvalidRequest) as refused:
                await b.registry.register_topic("u", partitions, factor)
            assert not refused.value.retriable
            assert refused.value.hint
        with pytest.raises(InvalidRequest):
            await b.registry.alter_topic("t", [(f"s{n}", "1") for n in range(65)])
        with pytest.raises(UnknownTopic):
            await b.registry.alter_topic("nope", [("max_records", "5")])
        with pytest.raises(UnknownTopic):
            await b.registry.unregister_topic("nope")
        with pytest.raises(UnknownTopic):
            b.registry.get_queues_by_topic("nope")
        assert b.registry.get_all_topics() == topics

    run(scenario)


def test_who_is_told_of_a_change_reads_it(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        seen: list[object] = []

        def look(effects: list[Effect]) -> None:
            topic = b.registry.get_topic("t")
            seen.append((effects, topic, b.registry.version))

        b.registry.watch(look)  # type: ignore[arg-type]
        topic = await b.registry.register_topic("t", 1, 1)
        altered = await b.registry.alter_topic("t", [("max_records", "5")])
        assert seen == [
            ([TopicCreated(topic)], topic, altered.config_version - 1),
            ([TopicAltered(altered)], altered, altered.config_version),
        ]

    run(scenario)


def test_producer_ids(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        first = await b.registry.take_producer_ids(5)
        second = await b.registry.take_producer_ids(5)
        assert (list(first), list(second)) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
        for count in (0, 100_001):
            with pytest.raises(InvalidRequest):
                await b.registry.take_producer_ids(count)

    run(scenario)


def test_versions(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        version = b.registry.version
        await b.registry.wait_version(version, 5.0)
        waiting = asyncio.ensure_future(b.registry.wait_version(version + 1, 5.0))
        too_far = asyncio.ensure_future(b.registry.wait_version(version + 100, 5.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await b.register(1)
        await waiting
        assert await b.registry.refresh(1.0) == b.registry.version == version + 1
        b.clock.advance(5.1)
        with pytest.raises(DeadlineExceeded):
            await too_far

    run(scenario)


def test_many_changes_at_once_are_made_one_after_the_other(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        version = b.registry.version
        made = [b.registry.register_topic(f"t{n}", 1, 1) for n in range(10)]
        taken = [b.registry.take_producer_ids(3) for _ in range(10)]
        topics, ids = await asyncio.gather(*made), await asyncio.gather(*taken)
        assert b.registry.version == version + 20
        assert b.registry.get_all_topics() == topics
        assert sorted(n for block in ids for n in block) == list(range(1, 31))

    run(scenario)
