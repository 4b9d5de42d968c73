"""A replaced leader that does not know it yet counts no queue: newer acknowledged records would be missing."""

from __future__ import annotations

import random

from tests.chaos.worlds import in_world
from tinymq.base.types import GroupId
from tinymq.proto import tinymq_pb2 as pb
from tinymq.simulation.memory_network import HOST
from tinymq_chaos.sim.network.links import client_connector
from tinymq_chaos.sim.world.world import World

QUEUE = "tinymq.v1.QueueService"
NEWS_S = 0.4  # for which answers are in flight to the old leader
PUT = pb.ProduceMessageRequest(topic="q", queue=0, value=b"x")


def groups(world: World) -> set[GroupId]:
    return {group.id for broker in world.brokers.values() for group in broker.groups()}


def test_only_a_leader_that_a_majority_confirms_counts_a_size() -> None:
    async def check(world: World) -> None:
        caller, before = world.caller(random.Random(1)), groups(world)
        await caller.ask(f"{QUEUE}/CreateQueue", pb.CreateQueueRequest(topic="q"), 4.0)
        await caller.ask(f"{QUEUE}/ProduceMessage", PUT, 4.0)
        (group,) = groups(world) - before
        old = world.leader(group)
        assert old is not None
        await world.clock.sleep(0.5)  # the followers have everything
        new, third = (broker for broker in world.brokers.values() if broker is not old)
        for other in (new, third):
            world.network.delay(other.id, old.id, NEWS_S, both=False)
        until_s = world.loop.time() + NEWS_S
        assert old.process.do(lambda: old.app.host.transfer(group, new.id))
        while world.leader(group) is not new:
            await world.clock.sleep(0.001)
        at = {n: client_connector(world.clients).link(f"{HOST}:{n}") for n in (old.id, new.id)}
        await at[new.id].ask(f"{QUEUE}/ProduceMessage", PUT, 0.2)
        (led,) = [known for known in old.groups() if known.id == group]
        assert led.is_leader, "for all it knows"
        assert world.loop.time() < until_s
        size = await at[old.id].ask(f"{QUEUE}/GetQueueSize", pb.GetQueueSizeRequest(topic="q", queue=0), 4.0)
        assert size.messages == 2

    in_world(check)
