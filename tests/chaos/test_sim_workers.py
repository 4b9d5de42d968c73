"""Workers of queue groups in the simulator: what needs a network that is cut, or time that passes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.chaos.worlds import in_world
from tinymq.client import AsyncClient
from tinymq.client.work.partition_work import PartitionWork
from tinymq_chaos.group_changes import ENDED, GRANTED
from tinymq_chaos.sim.observers.queue_groups import watched_queues
from tinymq_chaos.sim.world.world import World
from tinymq_chaos.workloads.clients.threaded_client import leave

SHORT: dict[str, object] = {"session_ms": 1000, "lease_ms": 1000, "ask_ms": 100, "rejoin_ms": 500}


def a_worker(client: AsyncClient, **settings: Any) -> Any:
    return client.worker("t", group="g", group_settings=SHORT, **settings)


def test_an_idle_worker_shows_signs_of_life_within_a_short_session() -> None:
    async def check(world: World) -> None:
        with watched_queues(world):
            client = world.client(random.Random(2))
            lost: list[int] = []
            worker = a_worker(client, on_lost=lambda job, error: lost.append(job.offset))
            (job,) = await worker.poll(5.0, max_records=1)
            await world.clock.sleep(4.0)
            assert lost == []
            job.ack()
            await worker.flush(5.0)
            await worker.close()
            ended = [lease for lease in world.history.leases if lease.what == ENDED]
            assert [lease.offset for lease in ended if lease.at_s < world.history.now() - 4.0] == []

    in_world(check)


def test_a_worker_starts_nothing_while_it_is_not_attached() -> None:
    """What it had only prefetched is free at once then, and another worker may begin with it."""

    async def check(world: World) -> None:
        client, other = world.client(random.Random(2)), world.client(random.Random(3))
        one, two = a_worker(client), a_worker(other)
        held = await one.poll(5.0, max_records=1)
        number = max(world.clients.clients) - 1
        world.cut(
            "test", [(broker, number) for broker in world.brokers] + [(number, broker) for broker in world.brokers]
        )
        for broker in world.brokers:
            world.clients.reset(number, broker)
        await world.clock.sleep(0.01)  # it hears of the end
        assert await one.poll(0.5) == []
        taken = await two.poll(5.0)
        assert taken
        world.mend("test")
        again = await one.poll(5.0)
        places = [(job.partition, job.offset) for job in (*held, *taken, *again)]
        assert len(places) == len(set(places))
        await leave(one)
        await leave(two)

    in_world(check)


def test_a_worker_that_leaves_ends_its_sessions_at_once() -> None:
    async def check(world: World) -> None:
        with watched_queues(world):
            client = world.client(random.Random(2))
            worker = a_worker(client)
            assert await worker.poll(5.0)  # and settles nothing
            left_s = world.history.now()
            await leave(worker)
            ended = [lease.at_s for lease in world.history.leases if lease.what == ENDED]
            granted = [lease for lease in world.history.leases if lease.what == GRANTED]
            assert len(ended) == len(granted)
            assert max(ended) < left_s + 0.1

    in_world(check)


def test_a_bug_ends_the_worker_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PartitionWork, reply: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PartitionWork, "on_attached", broken)

    async def check(world: World) -> None:
        worker = a_worker(world.client(random.Random(2)))
        with pytest.raises(ZeroDivisionError):
            await worker.poll(5.0)
        await leave(worker)

    in_world(check)
