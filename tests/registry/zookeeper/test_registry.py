"""The registry in ZooKeeper, on a real server: many brokers, one state; the outcome of a lost answer;
refused starts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from kazoo.client import KazooClient

from tests.registry.records import broker
from tests.registry.zookeeper_bench import bench, until
from tests.registry.zookeeper_server import ZookeeperServer, shared_server
from tinymq.base.clock import SystemClock
from tinymq.base.config import Timing, parse_zookeeper
from tinymq.base.errors import (
    CorruptData,
    DeadlineExceeded,
    Denied,
    InvalidConfig,
    InvalidRequest,
    NotReady,
    OutcomeUnknown,
    TinymqError,
    UnknownTopic,
    WrongCluster,
)
from tinymq.base.types import GroupId, TopicId
from tinymq.registry.state import bounds
from tinymq.registry.state.effects import Reloaded, TopicCreated, TopicDeleted
from tinymq.registry.zookeeper import registry as zookeeper
from tinymq.registry.zookeeper import stored_state
from tinymq.registry.zookeeper.registry import ZookeeperRegistry
from tinymq.registry.zookeeper.session import Disconnected, StaleTree, ZookeeperSession
from tinymq.registry.zookeeper.tree import Op


@pytest.fixture
def zookeeper_server() -> ZookeeperServer:
    return shared_server()


def test_brokers_that_change_at_once_end_in_one_state(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            registries = await b.start(3)
            await b.check_same()
            version = registries[0].version
            blocks = await asyncio.gather(*(registries[n % 3].take_producer_ids(10) for n in range(30)))
            topics = await asyncio.gather(*(registries[n % 3].register_topic(f"t{n}", 2, 3) for n in range(9)))
            assert sorted(n for block in blocks for n in block) == list(range(1, 301))
            assert len({topic.topic_id for topic in topics}) == 9
            await b.check_same()
            assert registries[0].version == version + 39, "each once"
            assert all([e for e in seen if isinstance(e, TopicCreated)] ==
                       [e for e in b.effects[0] if isinstance(e, TopicCreated)] for seen in b.effects)  # fmt: skip

    asyncio.run(main())


def test_a_complete_read_equals_the_followed_state(
    zookeeper_server: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random runs with small bounds: two brokers send commands of every kind, and a third rereads the tree now and
    then.
    """
    monkeypatch.setattr(bounds, "ANSWERED_MAX", 8)
    monkeypatch.setattr(bounds, "DELETED_MAX", 2)

    async def main() -> None:
        rng = random.Random(5)
        async with bench(zookeeper_server) as b:
            registries = await b.start(2)
            for step in range(120):
                try:
                    await _something(rng, registries[step % 2], 7 + step % 2)
                except TinymqError:
                    assert True  # a refusal is a change as well
                if step % 20 == 19:
                    await b.check_same()
                    reader = b.make()
                    await reader.start([])
                    assert reader._state.dump() == await b.check_same()
                    assert reader._stored.deleted == registries[0]._stored.deleted
            assert len(registries[0]._stored.deleted) == 2
            assert len(await b.raw(lambda client: client.get_children("/changes"))) == 8
            assert len(await b.raw(lambda client: client.get_children("/deleted"))) == 2

    asyncio.run(main())


async def _something(rng: random.Random, registry: ZookeeperRegistry, number: int) -> None:
    name = rng.choice("abc")
    do: Sequence[Callable[[], object]] = (
        lambda: registry.register_topic(name, rng.randint(1, 3), rng.randint(1, 2)),
        lambda: registry.unregister_topic(name),
        lambda: registry.unregister_topic(name),
        lambda: registry.alter_topic(name, [("retention_ms", str(rng.randint(1000, 9000)))]),
        lambda: registry.register_queue(name),
        lambda: registry.unregister_queue(name, rng.randint(0, 3)),
        lambda: registry.set_queue_consumer(name, rng.randint(0, 2), rng.choice("xy"), rng.choice("pq")),
        lambda: registry.unset_queue_consumer(name, rng.randint(0, 2), rng.choice("xy")),
        lambda: registry.take_producer_ids(rng.randint(1, 5)),
        lambda: registry.register_broker(broker(number, session=rng.randint(1, 2))),
        lambda: registry.unregister_broker(number),
    )
    await rng.choice(do)()  # type: ignore[misc]


def test_a_broker_that_was_away_for_long_reads_everything_again(
    zookeeper_server: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            first, second = await b.start(2)
            await b.check_same()
            monkeypatch.setattr(stored_state, "FOLLOWED_MAX", 3)
            async with second._stored._reading:  # it follows no changes meanwhile
                for n in range(6):
                    await first.register_topic(f"t{n}", 1, 1)
                b.effects[1].clear()
            await until(lambda: second.version == first.version)
            assert b.effects[1] == [Reloaded()]
            await b.check_same()

    asyncio.run(main())


def test_a_tree_that_changes_during_a_read_is_read_again(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (first,) = await b.start(1)
            await first.register_topic("t", 1, 1)
            reader = b.make()
            children, changed = b.sessions[1].children, []

            async def children_later(path: str, *, watch: bool = False) -> list[str]:
                if path == "/consumers" and len(changed) < 2:  # its topics are read already
                    changed.append(await first.register_topic(f"u{len(changed)}", 1, 1))
                return await children(path, watch=watch)

            b.sessions[1].children = children_later  # type: ignore[method-assign]
            await reader.start([])
            assert [topic.name for topic in reader.get_all_topics()] == ["t", "u0", "u1"]
            await b.check_same()

    asyncio.run(main())


def test_a_decision_on_an_old_state_is_repeated(
    zookeeper_server: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without a conflict: the changes in between are no longer remembered."""
    monkeypatch.setattr(bounds, "ANSWERED_MAX", 2)

    async def main() -> None:
        async with bench(zookeeper_server) as b:
            first, second = await b.start(2)
            await b.check_same()
            async with second._stored._reading:  # it follows no changes meanwhile
                blocks = [await first.take_producer_ids(10) for _ in range(6)]
                late = asyncio.ensure_future(second.take_producer_ids(10))
                commits = Counted(b.sessions[1])
                await until(lambda: commits.count == 1)
            assert [*blocks, await late] == [range(1 + start, 11 + start) for start in range(0, 70, 10)]
            await b.check_same()

    asyncio.run(main())


class Counted:
    """Stands in for a session's `commit`, and counts those that have ended."""

    def __init__(self, session: ZookeeperSession) -> None:
        self._commit = session.commit
        self.count = 0
        session.commit = self  # type: ignore[method-assign,assignment]

    async def __call__(self, ops: Sequence[Op]) -> None:
        try:
            await self._commit(ops)
        finally:
            self.count += 1


class Lossy:
    """Stands in for a session's `commit`, and loses answers before or after the transaction."""

    def __init__(self, session: ZookeeperSession, *, made: bool, times: int = 1) -> None:
        self._commit = session.commit
        self._made = made
        self.left = times
        session.commit = self  # type: ignore[method-assign,assignment]

    async def __call__(self, ops: Sequence[Op]) -> None:
        if not self.left:
            return await self._commit(ops)
        self.left -= 1
        if self._made:
            await self._commit(ops)
        raise Disconnected("lost by the test", sent=True)


@pytest.mark.parametrize("made", [True, False])
def test_a_lost_answer_is_settled(zookeeper_server: ZookeeperServer, made: bool) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (registry,) = await b.start(1)
            version = registry.version
            for times in (1, 3):
                lossy = Lossy(b.sessions[0], made=made, times=times)
                ids = await registry.take_producer_ids(10)
                assert len(ids) == 10
                lossy.left = 0
            assert registry.version == version + 2, "applied once each"
            assert await registry.take_producer_ids(1) == range(21, 22)
            Lossy(b.sessions[0], made=made)
            topic = await registry.register_topic("t", 1, 1)
            assert registry.get_all_topics() == [topic]
            Lossy(b.sessions[0], made=made)
            await registry.unregister_broker(1)
            Lossy(b.sessions[0], made=made)
            await registry.register_broker(broker(1))
            assert registry.get_all_brokers() == [broker(1)]

    asyncio.run(main())


def test_outcomes_at_the_deadline(zookeeper_server: ZookeeperServer) -> None:
    """An unsent command was not done; a sent but unanswered command has an unknown outcome. Both end by the
    deadline.
    """

    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (registry,) = await b.start(1)
            Lossy(b.sessions[0], made=False, times=1 << 30)
            with pytest.raises(OutcomeUnknown, match="lost by the test"):
                await registry.register_topic("t", 1, 1, timeout_s=0.3)
            with zookeeper_server.frozen():
                with pytest.raises(DeadlineExceeded):
                    await registry.refresh(0.3)
                with pytest.raises((OutcomeUnknown, DeadlineExceeded)):
                    await registry.register_topic("t", 1, 1, timeout_s=0.3)

    asyncio.run(main())


def test_a_node_removed_by_another_client_stops_nothing(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            registry, other = await b.start(2)
            await registry.register_topic("t", 1, 1)
            await b.raw(lambda client: client.delete("/topics/t"))
            with pytest.raises(UnknownTopic):
                await registry.unregister_topic("t")
            await registry.register_topic("t", 1, 1)
            assert b.effects[0][-2:] == [Reloaded(), TopicCreated(registry.get_all_topics()[0])]
            del other

    asyncio.run(main())


def test_a_change_that_is_too_large_is_refused(
    zookeeper_server: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (registry,) = await b.start(1)
            version = registry.version
            monkeypatch.setattr(zookeeper, "REQUEST_BYTES_MAX", 5000)
            with pytest.raises(InvalidRequest, match="bytes"):
                await registry.register_topic("t", 100, 1)
            assert (registry.version, registry.get_all_topics()) == (version, [])
            await registry.register_topic("t", 1, 1)

    asyncio.run(main())


def test_the_largest_topic_is_created_and_deleted(zookeeper_server: ZookeeperServer) -> None:
    """The largest topic that the bounds allow: ZooKeeper accepts a megabyte per request."""

    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (registry,) = await b.start(1)
            for number in range(2, 6):
                await registry.register_broker(broker(number))
            name = "n" * 249
            topic = await registry.register_topic(name, bounds.PARTITIONS_PER_TOPIC_MAX, 5)
            (data, _) = await b.raw(lambda client: client.get(f"/topics/{name}"))
            assert 300_000 < len(data) < 500_000
            reader = b.make()
            await reader.start([])
            assert reader.get_topic(name) == topic
            await registry.unregister_topic(name)
            await b.check_same()
            assert b.effects[0][-1] == TopicDeleted(topic)

    asyncio.run(main())


# ---- starting ------------------------------------------------------------------------------------------------


def test_without_a_server_each_address_is_named(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        url = parse_zookeeper("zookeeper://127.0.0.1:1,no.such.host.invalid:2/x")
        session = ZookeeperSession(url, 1.0, SystemClock())
        timing = Timing(command_timeout_s=0.3)
        registry = ZookeeperRegistry(session, b"c" * 16, SystemClock(), random.Random(1), timing)
        with pytest.raises(NotReady) as refused:
            await registry.start([])
        assert "127.0.0.1:1: Connection refused" in refused.value.message
        assert "no.such.host.invalid:2: " in refused.value.message
        assert "URL" in refused.value.hint
        await registry.stop()

    asyncio.run(main())


def test_a_frozen_server_differs_from_a_missing_one(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            registry = b.make(timing=Timing(command_timeout_s=0.3))
            with zookeeper_server.frozen(), pytest.raises(NotReady, match="gives no session"):
                await registry.start([])

    asyncio.run(main())


def test_a_registry_belongs_to_one_cluster(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            await b.start(1)
            with pytest.raises(WrongCluster, match=(b"c" * 16).hex()):
                await b.make(cluster_id=b"d" * 16).start([])

    asyncio.run(main())


def test_brokers_that_start_together_create_one_registry(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            await asyncio.gather(*(b.make().start([]) for _ in range(5)))
            await b.check_same()

    asyncio.run(main())


def test_data_without_its_registry_is_not_served(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            group = GroupId(TopicId(b"t" * 16), 0)
            with pytest.raises(InvalidConfig, match="1 partition"):
                await b.make().start([group])
            await b.start(1)
            await b.make().start([group])

    asyncio.run(main())


NO_JSON = [b"", b"{", b"[1]", b"\xff"]
NOT_ITS_OWN = [b'{"unknown": 1}', b'{"name": "u"}']


@pytest.mark.parametrize(
    ("path", "data"),
    [(path, data) for path in ("/cluster", "/version", "/topics/t", "/changes") for data in NO_JSON + NOT_ITS_OWN]
    + [("/consumers", data) for data in NO_JSON],
)
def test_foreign_nodes_are_not_a_registry(zookeeper_server: ZookeeperServer, path: str, data: bytes) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (registry,) = await b.start(1)
            await registry.register_topic("t", 1, 1)
            await registry.set_queue_consumer("t", 0, "c", "x")

            def damage(client: object) -> None:
                there = client.get_children(path)  # type: ignore[attr-defined]
                client.set(f"{path}/{there[0]}" if there else path, data)  # type: ignore[attr-defined]

            await b.raw(damage)
            with pytest.raises(CorruptData, match=path):
                await b.make().start([])
            assert registry.get_topic("t") is not None, "a running broker continues with the metadata that it knows"

    asyncio.run(main())


def test_a_tree_of_another_format_is_not_read(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            await b.start(1)
            await b.raw(lambda client: client.set("/version", b'{"format": 99}'))
            with pytest.raises(CorruptData, match="format 99"):
                await b.make().start([])

    asyncio.run(main())


def test_fields_of_a_newer_build_are_skipped(zookeeper_server: ZookeeperServer) -> None:
    """Brokers are upgraded one by one, so an older build must skip unknown fields."""

    async def main() -> None:
        async with bench(zookeeper_server) as b:
            (registry,) = await b.start(1)
            topic = await registry.register_topic("t", 1, 1)

            def add(client: KazooClient) -> None:
                for path in ("/cluster", "/version", "/topics/t", "/changes/00000000000000000002"):
                    data, _ = client.get(path)
                    client.set(path, data[:-1] + b', "tomorrow": {"a": [1]}}')

            await b.raw(add)
            reader = b.make()
            await reader.start([])
            assert reader.get_all_topics() == [topic]

    asyncio.run(main())


def test_nodes_of_a_user_belong_to_that_user(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            registry = b.make(login="me:secret@")
            await registry.start([])
            await registry.register_broker(broker(1))
            await registry.register_topic("t", 1, 1)
            for login in ("", "me:wrong@"):
                with pytest.raises(Denied) as refused:
                    await b.make(login=login).start([])
                assert "secret" not in str(refused.value)

    asyncio.run(main())


def test_conflicts_are_named(zookeeper_server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(zookeeper_server) as b:
            await b.start(1)
            with pytest.raises(StaleTree, match="/version: NodeExists"):
                await b.sessions[0].commit([zookeeper.tree.CreateNode("/version")])

    asyncio.run(main())
