"""QueueService and Channels in the simulator: any broker forwards calls over the virtual network, whatever happens."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.chaos.worlds import in_world
from tinymq.base.errors import Closed, DeadlineExceeded, OutcomeUnknown, TinymqError, Unavailable
from tinymq.proto import tinymq_pb2 as pb
from tinymq.simulation.memory_network import HOST
from tinymq_chaos.sim.network.links import MemoryLink, client_connector
from tinymq_chaos.sim.world.world import World

MESSAGES = 150
TAKERS = 12
UNCLEAR = (Unavailable, OutcomeUnknown, DeadlineExceeded, Closed)


class Caller:
    """Calls without tinymq's client: by path, to any broker, repeated where the outcome is unknown."""

    def __init__(self, world: World, seed: int) -> None:
        self._rng = random.Random(seed)
        self._world = world
        connector = client_connector(world.clients)
        self._links: list[MemoryLink] = [connector.link(f"{HOST}:{n}") for n in world.brokers]

    async def ask(self, name: str, request: Any, service: str = "QueueService") -> Any:
        while True:
            link = self._rng.choice(self._links)
            try:
                return await link.ask(f"tinymq.v1.{service}/{name}", request, 2.0)
            except UNCLEAR:
                await self._world.clock.sleep(0.05)


def test_every_message_is_taken_once_under_faults_of_brokers_and_links() -> None:
    async def check(world: World) -> None:
        setting_up = Caller(world, 0)
        await setting_up.ask("CreateQueue", pb.CreateQueueRequest(topic="q"))
        for number in range(MESSAGES):
            await setting_up.ask("ProduceMessage", pb.ProduceMessageRequest(topic="q", queue=0, value=b"%d" % number))
        size = pb.GetQueueSizeRequest(topic="q")
        there = (await setting_up.ask("GetQueueSize", size)).messages
        assert there >= MESSAGES, "an unclear one may be there twice"
        taken: list[int] = []

        async def take(number: int) -> None:
            caller, rng = Caller(world, number), random.Random(number)
            while True:
                request = pb.ConsumeMessageRequest(topic="q", queue=0, channel="c", request_id=rng.randbytes(16))
                reply = await caller.ask("ConsumeMessage", request)
                if not reply.HasField("message"):
                    return
                taken.append(reply.message.offset)

        async def disturb() -> None:
            for turn in range(6):
                await world.clock.sleep(0.3)
                broker = world.brokers[turn % 3 + 1]
                if turn % 2:
                    broker.kill()
                else:
                    world.cut("test", [(broker.id, other) for other in world.brokers if other != broker.id])
                    await world.clock.sleep(0.7)
                    world.mend("test")

        await asyncio.gather(disturb(), *(take(number) for number in range(1, TAKERS + 1)))
        assert sorted(taken) == list(range(there))

    in_world(check)


def test_channels_are_served_and_refusals_are_typed() -> None:
    async def check(world: World) -> None:
        caller = Caller(world, 0)
        request = pb.SetConsumerRequest(topic="t", partition=0, channel="c", consumer="me")
        assert (await caller.ask("SetConsumer", request, "Channels")).epoch > 0
        link = client_connector(world.clients).link(f"{HOST}:1")
        for path, asked, code in [
            ("QueueService/FetchMessage", pb.FetchMessageRequest(topic="nowhere"), "UnknownTopic"),
            ("QueueService/ConsumeMessage", pb.ConsumeMessageRequest(topic="t", channel="?"), "InvalidName"),
        ]:
            refused: TinymqError | None = None
            try:
                await link.ask(f"tinymq.v1.{path}", asked, 5.0)
            except TinymqError as error:
                refused = error
            assert refused is not None
            assert refused.code == code

    in_world(check)
