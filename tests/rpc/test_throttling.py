"""Streams of a client over its quota: its answers and delays, and that no other client is delayed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.batches import payload
from tests.fakes.manual_clock import ManualClock
from tests.fakes.queue_client import QueueClient
from tests.fakes.raw_client import batch
from tests.rpc.test_streams import Line, Streams, T, ask, settle
from tinymq.base.config import Limits
from tinymq.broker.serve.quotas import Rate
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.services.fetch import FetchStream
from tinymq.rpc.services.produce import ProduceStream, unpacked
from tinymq.testing.cluster import Cluster
from tinymq_chaos.sim.campaign.run import no_collection
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.transcript import Transcript
from tinymq_chaos.sim.world.world import World, WorldOptions

DATA = payload(1, value=b"x" * 1000)


class Limited(Streams):
    """Streams of two clients, each with a rate of one batch per second."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.bench.clock = self.clock = ManualClock()
        self.rate = Rate(self.clock, len(DATA))

    def produce_as(self, client: str, line: Line) -> asyncio.Task[None]:
        return asyncio.ensure_future(
            ProduceStream(self.serving, line, self.guard(), self.rate.share(client)).run(unpacked(line.incoming()))
        )  # fmt: skip

    def fetch_as(self, client: str, line: Line) -> asyncio.Task[None]:
        share = self.rate.share(client)
        return asyncio.ensure_future(
            FetchStream(self.serving, line, self.limits, self.guard(), share).run(line.incoming())
        )


def run(scenario: Callable[[Limited], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Limited())

    asyncio.run(main())


async def pass_time(s: Limited, seconds: float) -> None:
    s.clock.advance(seconds)
    await settle()
    s.bench.group.commit()
    await settle()


def test_a_produce_stream_is_read_at_the_clients_rate() -> None:
    async def scenario(s: Limited) -> None:
        greedy, modest = Line(), Line()
        streams = [s.produce_as("greedy", greedy), s.produce_as("modest", modest)]
        for number in range(5):
            greedy.send(pb.ProduceRequest(batches=[batch(T, DATA, number)]))
        modest.send(pb.ProduceRequest(batches=[batch(T, DATA, 0)]))
        await pass_time(s, 0.0)
        told = [result for reply in greedy.replies for result in reply.results]
        assert [result.throttled_ms for result in told] == [0, 1000], "the burst, and one batch on credit"
        assert len(modest.replies) == 1
        assert greedy.requests.qsize() == 3, "not read"
        for left in (2, 1, 0):
            await pass_time(s, 0.9)
            assert greedy.requests.qsize() == left + 1
            await pass_time(s, 0.11)
            assert greedy.requests.qsize() == left
        for line in (greedy, modest):
            line.end()
        await pass_time(s, 1.1)
        await asyncio.gather(*streams)
        assert [result.request_id for reply in greedy.replies for result in reply.results] == list(range(5))

    run(scenario)


def test_a_refused_call_counts_and_gets_the_delay() -> None:
    async def scenario(s: Limited) -> None:
        line = Line()
        stream = s.produce_as("c", line)
        for number in range(3):
            line.send(pb.ProduceRequest(batches=[batch(T, DATA, number, partition=1)]))
        await pass_time(s, 0.0)
        assert [result.throttled_ms for reply in line.replies for result in reply.results] == [0, 1000]
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    run(scenario)


def test_fetches_are_answered_at_the_clients_rate() -> None:
    async def scenario(s: Limited) -> None:
        for _ in range(4):
            s.bench.send()
        s.bench.group.commit()
        greedy, modest = Line(), Line()
        streams = [s.fetch_as("greedy", greedy), s.fetch_as("modest", modest)]
        for number in range(20):
            greedy.send(ask(number, max_bytes=1 << 20))
        modest.send(ask(0))
        await settle()
        answered = len(greedy.replies)
        assert 0 < answered < 20
        assert greedy.replies[-1].throttled_ms > 0
        assert len(modest.replies) == 1
        frame_bytes = len(greedy.replies[0].frames)
        for second in range(1, 6):
            await pass_time(s, 1.0)
            sent = len(greedy.replies) * frame_bytes
            assert sent <= (second + 1) * len(DATA) + frame_bytes
            assert sent >= (second + 1) * len(DATA) - frame_bytes or len(greedy.replies) == 20
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    run(scenario)


def test_a_single_message_waits_or_is_refused_with_the_time_to_wait() -> None:
    with Cluster(nodes=1, limits=Limits(client_produce_bytes_per_s=2000)) as cluster:

        async def main() -> None:
            async with QueueClient([cluster.address(1)], "greedy") as greedy:
                await greedy.call("CreateQueue", pb.CreateQueueRequest(topic="t"))
                await greedy.produce("t", b"x" * 4000, 0)
                request = pb.ProduceMessageRequest(topic="t", queue=0, value=b"y")
                _, error = await greedy.refused("ProduceMessage", request, timeout_s=0.4)
                assert error.code == "QuotaExceeded"
                assert 0 < int(error.detail["retry_after_ms"]) < 2000
                async with QueueClient([cluster.address(1)], "modest") as modest:
                    assert (await modest.produce("t", b"z", 0)).offset == 1
                assert (await greedy.produce("t", b"y", 0)).offset == 2, "with more time it waits"

        asyncio.run(main())


@pytest.mark.parametrize("direction", ["produce", "fetch"])
def test_a_limited_client_gets_its_rate_and_its_neighbour_what_it_asks_for(
    direction: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Real brokers and clients in virtual time: the test counts bytes. The limited client waits longer than its
    patience, because the broker announced the delay.
    """
    caplog.set_level(logging.INFO, "tinymq")
    rate, seconds = 40_000, 15.0
    counted: dict[str, int] = {}

    async def main(loop: VirtualLoop) -> None:
        transcript.begin(loop)
        world = World(loop, 1, WorldOptions(3, 1 << 20), transcript)
        world.limits = replace(world.limits, **{f"client_{direction}_bytes_per_s": rate})
        await world.form()
        await world.clock.sleep(1.0)
        greedy, modest = (world.client(random.Random(n), attempt_timeout_ms=300) for n in (1, 2))
        await greedy.admin.create_topic("t", 1, 3, timeout=10.0)
        if direction == "produce":
            await _produce(world, greedy, modest, seconds, counted)
        else:
            await _fetch(world, greedy, modest, seconds, counted)
        await world.close_clients()
        world.over = True
        transcript.end()

    transcript = Transcript()
    with transcript.listening(), no_collection():
        run_virtually(main)
    # a second's worth at once, and the bytes in flight at both ends
    most = rate * (seconds + 1) + 2 * PUSHED * len(VALUE)
    assert rate * seconds * 0.85 <= counted["greedy"] <= most
    assert counted["late"] == 0, "the other client never waited"
    assert counted["modest"] == CALLS
    assert not [record.getMessage() for record in caplog.records if "silent" in record.getMessage()]


VALUE = b"v" * 8000
PUSHED = 5  # side by side
CALLS = 50  # of the neighbour


async def _produce(world: World, greedy: Any, modest: Any, seconds: float, counted: dict[str, int]) -> None:
    end_s = world.loop.time() + seconds

    async def push() -> int:
        sent = 0
        while world.loop.time() < end_s:
            await greedy.send("t", VALUE, partition=0)
            sent += len(VALUE)
        return sent

    pushing = [asyncio.ensure_future(push()) for _ in range(PUSHED)]
    counted |= await _beside(world, lambda: modest.send("t", b"small", partition=0))
    counted["greedy"] = sum([await each for each in pushing])


async def _fetch(world: World, greedy: Any, modest: Any, seconds: float, counted: dict[str, int]) -> None:
    for _ in range(150):  # more than the rate permits
        await modest.send("t", VALUE, partition=0)
    end_s = world.loop.time() + seconds

    async def pull() -> int:
        got = 0
        async with greedy.reader("t", start="earliest", fetch_bytes_max=60_000) as reader:
            while world.loop.time() < end_s:
                got += sum(len(message.value) for message in await reader.poll(timeout=1.0))
        return got

    pulling = asyncio.ensure_future(pull())
    counted |= await _beside(world, lambda: modest.send("t", b"small", partition=0))
    counted["greedy"] = await pulling


async def _beside(world: World, call: Callable[[], Coroutine[Any, Any, Any]]) -> dict[str, int]:
    """Make small calls in turn. Returns their number, and how many took longer than a broker needs."""
    late = 0
    for _ in range(CALLS):
        began_s = world.loop.time()
        await call()
        late += world.loop.time() - began_s > 0.2
        await world.clock.sleep(0.2)
    return {"modest": CALLS, "late": late}


def test_a_reader_waits_on_where_brokers_have_no_room_for_its_waiting_fetches() -> None:
    """Its idle partitions are refused for longer than the timeout that fails a reader of a silent broker."""
    read: list[bytes] = []

    async def main(loop: VirtualLoop) -> None:
        transcript.begin(loop)
        world = World(loop, 1, WorldOptions(3, 1 << 20), transcript)
        world.limits = replace(world.limits, waiting_fetches_max=1)
        await world.form()
        await world.clock.sleep(1.0)
        client = world.client(random.Random(1))
        await client.admin.create_topic("t", 12, 3, timeout=10.0)
        async with client.reader("t", start="earliest", unreachable_ms_max=3000) as reader:
            for turn in range(2):
                assert await reader.poll(timeout=5.0) == []
                for partition in range(12):
                    await client.send("t", b"%d.%d" % (turn, partition), partition=partition)
                while len(read) < 12 * (turn + 1):
                    read.extend(message.value for message in await reader.poll(timeout=10.0))
        await world.close_clients()
        world.over = True
        transcript.end()

    transcript = Transcript()
    with transcript.listening(), no_collection():
        run_virtually(main)
    assert sorted(read) == sorted(b"%d.%d" % (turn, partition) for turn in range(2) for partition in range(12))
