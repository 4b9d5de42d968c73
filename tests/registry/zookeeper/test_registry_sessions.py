"""ZooKeeper sessions that end, stall or are replaced: which brokers count as registered, and that all keep working."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.registry.records import broker
from tests.registry.zookeeper_bench import SHORT, ZookeeperBench, bench, until
from tests.registry.zookeeper_server import ZookeeperServer, shared_server
from tinymq.base.config import Timing
from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown
from tinymq.registry.state.effects import BrokersChanged
from tinymq.registry.zookeeper.session import Node
from tinymq.registry.zookeeper.tree import broker_path


@pytest.fixture
def server() -> ZookeeperServer:
    return shared_server()


async def node_of(b: ZookeeperBench, number: int, asked: int = 1) -> Node | None:
    return await b.sessions[asked - 1].get(broker_path(number))


def test_a_broker_whose_session_ends_is_unregistered_by_the_others(server: ZookeeperServer) -> None:
    """Once, by the first of them."""

    async def main() -> None:
        async with bench(server) as b:
            registries = await b.start(4)
            await b.check_same()
            version = registries[0].version
            await registries[3].stop()
            await until(lambda: all(registry.get_broker(4) is None for registry in registries[:3]))
            del b.registries[3]
            await b.check_same()
            assert registries[0].version == version + 1
            assert b.effects[0][-1] == BrokersChanged()

    asyncio.run(main())


def test_an_expired_session_is_replaced(server: ZookeeperServer) -> None:
    """The broker registers again, and sees the changes from the time in between and all later ones."""

    async def main() -> None:
        async with bench(server) as b:
            first, second = await b.start(2)
            topic = await second.register_topic("before", 1, 2)
            await b.expire(1)
            await until(lambda: first.get_broker(1) == broker(1) and first._nodes.stands(broker(1)))
            node = await node_of(b, 1)
            assert node is not None
            assert node.owner == b.sessions[0].session_id
            later = await second.register_topic("after", 1, 2)
            await until(lambda: first.get_topic("after") == later)
            assert first.get_topic("before") == topic
            await b.check_same()
            assert await first.take_producer_ids(1) == range(1, 2)

    asyncio.run(main())


def test_nodes_of_an_earlier_session_do_not_count(server: ZookeeperServer) -> None:
    """A restarted broker finds the node of its previous process. When that session ends, the broker stays registered,
    with a node of its own.
    """

    async def main() -> None:
        async with bench(server) as b:
            (earlier,) = await b.start(1)
            watching = b.make()
            await watching.start([])
            earlier.close()  # like a process that hangs: its session stays alive
            again = b.make()
            await again.start([])
            await again.register_broker(broker(1))  # the same registration
            node = await node_of(b, 1, asked=2)
            assert node is not None
            assert node.owner == b.sessions[2].session_id
            version = again.version
            await b.sessions[0].stop()
            del b.registries[0]
            await b.check_same()
            assert await node_of(b, 1, asked=2) == node
            assert (again.version, watching.get_all_brokers()) == (version, [broker(1)])

    asyncio.run(main())


def test_a_broker_that_returns_at_the_last_moment_stays_registered(server: ZookeeperServer) -> None:
    """The broker returns between the check of its node and the command that ends its registration."""

    async def main() -> None:
        async with bench(server) as b:
            first, _ = await b.start(2)
            await b.check_same()

            async def nobody(broker_id: int) -> bool:
                return False

            first._nodes.is_there = nobody  # type: ignore[method-assign]
            with pytest.raises((DeadlineExceeded, OutcomeUnknown), match="/brokers/2: NodeExists"):
                await first._trying.settled(partial(first._expire, broker(2)), 0.5)
            await b.check_same()
            assert first.get_all_brokers() == [broker(1), broker(2)]

    asyncio.run(main())


def test_a_removed_node_is_created_again(server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(server) as b:
            first, second = await b.start(2)
            await b.raw(lambda client: client.delete(broker_path(2)))
            for _ in range(1000):
                node = await node_of(b, 2)
                if node is not None:
                    break
            assert node is not None
            assert node.owner == b.sessions[1].session_id
            await until(lambda: second.get_broker(2) == broker(2) == first.get_broker(2))

    asyncio.run(main())


def test_two_processes_with_one_broker_id_do_not_fight_without_end(server: ZookeeperServer) -> None:
    """Each renewal registers again, and nothing else does."""

    async def main() -> None:
        async with bench(server) as b:
            first, second = await b.start(2)
            await second.register_broker(broker(1, session=7))
            await until(lambda: first.get_broker(1) == broker(1, session=7))
            version = first.version
            for _ in range(20):
                await first.refresh(1.0)
            assert first.version == version
            await first.register_broker(broker(1))
            assert first.get_broker(1) == broker(1)

    asyncio.run(main())


def test_a_lease_that_is_not_renewed_ends_though_the_session_lives(server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(server) as b:
            first, _ = await b.start(2, SHORT)
            await until(lambda: first.get_all_brokers() == [])  # neither is renewed, so both expire
            assert await node_of(b, 1) is None
            await first.register_broker(broker(1))
            assert first.get_broker(1) == broker(1)

    asyncio.run(main())


def test_reads_continue_while_zookeeper_is_frozen(server: ZookeeperServer) -> None:
    """Longer than the session's timeout: everything works afterwards, whether the session survived or not."""

    async def main() -> None:
        async with bench(server) as b:
            first, second = await b.start(2, SHORT)
            b.renew()
            topic = await first.register_topic("t", 1, 2)
            await b.check_same()
            with server.frozen():
                await until(lambda: not b.sessions[0].connected and not b.sessions[1].connected)
                assert first.get_all_topics() == [topic]
                with pytest.raises(DeadlineExceeded):
                    await first.register_topic("u", 1, 1, timeout_s=SHORT.registration_lease_s)
                waiting = asyncio.ensure_future(second.register_topic("v", 1, 1))
            later = await waiting
            await until(lambda: first.get_topic("v") == later)
            await until(lambda: first._nodes.stands(broker(1)) and second._nodes.stands(broker(2)))
            await b.check_same()
            assert first.get_all_brokers() == [broker(1), broker(2)]
            assert first.get_topic("u") is None

    asyncio.run(main())


def test_a_restarted_server_has_all_metadata(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sessions survive a restart unless it takes long. Everything works afterwards in both cases."""

    async def main(server: ZookeeperServer) -> None:
        async with bench(server) as b:
            first, second = await b.start(2, Timing(registration_lease_s=4.0, command_timeout_s=30.0))
            b.renew()
            topic = await first.register_topic("t", 2, 2)
            server.kill()
            await until(lambda: not b.sessions[0].connected)
            assert first.get_all_topics() == [topic]
            waiting = asyncio.ensure_future(second.unregister_topic("t"))
            await asyncio.to_thread(server.start)
            await waiting
            await until(lambda: first._nodes.stands(broker(1)) and second._nodes.stands(broker(2)))
            await b.check_same()
            assert first.get_all_brokers() == [broker(1), broker(2)]
            assert first.get_all_topics() == []

    server = ZookeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    try:
        asyncio.run(main(server))
    finally:
        server.kill()


def test_a_stop_ends_the_session_and_does_not_wait_for_a_frozen_server(server: ZookeeperServer) -> None:
    async def main() -> None:
        async with bench(server) as b:
            first, second = await b.start(2)
            await first.stop()
            assert await node_of(b, 1, asked=2) is None
            with server.frozen():
                async with asyncio.timeout(5):
                    await second.stop()

    asyncio.run(main())
