"""The stream port in the simulated network: what a connection promises, over TCP and over virtual links alike; and what
faults do to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from tests.chaos.worlds import in_world
from tinymq.base.config import MIB, Limits
from tinymq.base.errors import Closed
from tinymq.client.net.streams import connect_stream
from tinymq.net.acceptor import Acceptor
from tinymq.net.connection_limits import Place, Places
from tinymq.net.frame_stream import FrameStream
from tinymq.simulation.link_conditions import NetworkConditions
from tinymq.simulation.memory_network import HOST
from tinymq_chaos.sim.network.byte_streams import StreamConnection
from tinymq_chaos.sim.network.client_network import ClientNetwork
from tinymq_chaos.sim.network.links import MemoryConnector
from tinymq_chaos.sim.network.stream_ports import STREAM_PORTS, MemoryAcceptor, StreamConnector
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.user_threads import UserThreads
from tinymq_chaos.sim.world.world import World

FRAME_BYTES_MAX = 8 * MIB
CLIENT, BROKER = 101, 1


def new_stream() -> FrameStream:
    return FrameStream(FRAME_BYTES_MAX, FRAME_BYTES_MAX)


class Port(Protocol):
    """A port that accepts streams."""

    async def open(self) -> None: ...
    async def connect(self) -> tuple[FrameStream, FrameStream]:
        """Return both ends of a new connection: the client's and the server's."""
        ...

    async def close(self) -> None: ...


class Accepted:
    """The streams that a port has accepted, in order."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[FrameStream] = asyncio.Queue()
        self.places = Places("streams", 8)

    def make(self, place: Place) -> FrameStream:
        def lost(stream: FrameStream) -> None:
            place.leave()

        return FrameStream(FRAME_BYTES_MAX, FRAME_BYTES_MAX, on_made=self.streams.put_nowait, on_lost=lost)


class TcpPort:
    """tinymq's acceptor and dialer on this machine."""

    def __init__(self) -> None:
        self.accepted = Accepted()
        self._acceptor = Acceptor(self.accepted.places, self.accepted.make)
        self._port = 0

    async def open(self) -> None:
        self._port = await self._acceptor.start("127.0.0.1", self._port, setting="stream_listen")

    async def connect(self) -> tuple[FrameStream, FrameStream]:
        return await connect_stream(new_stream, "127.0.0.1", self._port, None), await self.accepted.streams.get()

    async def close(self) -> None:
        self._acceptor.close()


class SimPort:
    """The simulator's."""

    def __init__(self, loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        self.conditions = NetworkConditions(clock, random.Random(1))
        self.net = ClientNetwork(loop, self.conditions, random.Random(2))
        self.process = SimProcess("broker", BROKER)
        self.accepted = Accepted()
        self._acceptor = MemoryAcceptor(self.net, BROKER, self.process, self.accepted.places, self.accepted.make)
        threads = UserThreads(loop, random.Random(3))
        self._connector = StreamConnector(self.net, MemoryConnector(self.net, CLIENT), Limits(), clock, threads)

    async def open(self) -> None:
        await self._acceptor.start(HOST, STREAM_PORTS + BROKER, setting="stream_listen")

    async def connect(self) -> tuple[FrameStream, FrameStream]:
        client = await self._connector.connect(new_stream, HOST, STREAM_PORTS + BROKER)
        return client, await self.accepted.streams.get()

    async def close(self) -> None:
        self._acceptor.close()


async def with_port(port: Port, check: Callable[[Port], Awaitable[None]]) -> None:
    await port.open()
    try:
        await check(port)
    finally:
        await port.close()


def over_tcp(check: Callable[[Port], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20.0):
            await with_port(TcpPort(), check)

    asyncio.run(main())


def over_virtual_links(check: Callable[[Port], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        port = SimPort(loop)
        for direction in ((CLIENT, BROKER), (BROKER, CLIENT)):
            port.conditions.of(direction).jitter_s = 0.01
        async with asyncio.timeout(20.0):
            await with_port(port, check)

    run_virtually(main)


both = pytest.mark.parametrize("run", [over_tcp, over_virtual_links])
Run = Callable[[Callable[[Port], Awaitable[None]]], None]


@both
def test_frames_arrive_whole_and_in_order_both_ways(run: Run) -> None:
    rng = random.Random(3)
    bodies = [rng.randbytes(rng.choice((0, 1, 100, 5_000, 300_000))) for _ in range(60)]

    async def check(port: Port) -> None:
        client, server = await port.connect()

        async def echo() -> None:
            for _ in bodies:
                head, body = await server.receive()
                await server.send(head, (bytes(body),))

        async def send() -> None:
            for n, body in enumerate(bodies):
                await client.send(b"%d" % n, (body,))

        tasks = [asyncio.create_task(echo()), asyncio.create_task(send())]
        for n, body in enumerate(bodies):
            head, returned = await client.receive()
            assert (head, bytes(returned)) == (b"%d" % n, body)
        await asyncio.gather(*tasks)

    run(check)


@both
def test_a_sender_waits_for_a_receiver_that_does_not_read(run: Run) -> None:
    async def check(port: Port) -> None:
        client, server = await port.connect()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(60):
                await client.send(b"", (bytes(MIB),))
                sent += 1

        task = asyncio.create_task(send())
        await asyncio.wait([task], timeout=0.5)
        assert sent < 40, "what waits is bounded"
        for _ in range(60):
            await server.receive()
        await task

    run(check)


@both
def test_what_was_sent_before_the_end_arrives(run: Run) -> None:
    async def check(port: Port) -> None:
        client, server = await port.connect()
        for n in range(20):
            await client.send(b"%d" % n, (bytes(1000),))
        await client.finish()
        assert [(await server.receive())[0] for _ in range(20)] == [b"%d" % n for n in range(20)]
        with pytest.raises(Closed):
            await server.receive()
        with pytest.raises(Closed):
            await client.send(b"")

    run(check)


@both
def test_an_abort_ends_the_waits_of_both_ends(run: Run) -> None:
    async def check(port: Port) -> None:
        client, server = await port.connect()
        waits = [asyncio.create_task(stream.receive()) for stream in (client, server)]
        await asyncio.wait(waits, timeout=0.05)
        client.abort()
        assert [type(each) for each in await asyncio.gather(*waits, return_exceptions=True)] == [Closed, Closed]

    run(check)


@both
def test_a_closed_port_refuses_and_leaves_open_streams_alone(run: Run) -> None:
    async def check(port: Port) -> None:
        client, server = await port.connect()
        await port.close()
        with pytest.raises(ConnectionRefusedError):
            await port.connect()
        await client.send(b"on")
        assert (await server.receive())[0] == b"on"

    run(check)


def sim(check: Callable[[SimPort, FrameStream, FrameStream], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        port = SimPort(loop)
        await port.open()
        await check(port, *await port.connect())

    run_virtually(main)


def test_a_cut_holds_bytes_back() -> None:
    async def check(port: SimPort, client: FrameStream, server: FrameStream) -> None:
        port.conditions.cut([(CLIENT, BROKER)])
        await client.send(b"x")
        arrives = asyncio.create_task(server.receive())
        await port.net.clock.sleep(1.0)
        assert not arrives.done()
        port.conditions.heal()
        port.net.healed()
        assert (await arrives)[0] == b"x"

    sim(check)


def test_a_paused_broker_reads_when_it_goes_on() -> None:
    async def check(port: SimPort, client: FrameStream, server: FrameStream) -> None:
        port.process.pause()
        await client.send(b"x")
        await port.net.clock.sleep(1.0)
        assert server.received_bytes == 0
        port.process.resume()
        assert (await server.receive())[0] == b"x"

    sim(check)


@pytest.mark.parametrize("silently", [False, True])
def test_the_end_of_a_machine_is_not_told_and_that_of_a_process_is(silently: bool) -> None:
    async def check(port: SimPort, client: FrameStream, server: FrameStream) -> None:
        waits = asyncio.create_task(client.receive())
        port.process.kill()
        port.net.crash(BROKER, silently)
        await port.net.clock.sleep(1.0)
        assert waits.done() is not silently
        if not silently:
            with pytest.raises(Closed, match="reset by peer"):
                await waits
        waits.cancel()

    sim(check)


def test_a_reset_breaks_a_stream_and_frees_its_place() -> None:
    async def check(port: SimPort, client: FrameStream, server: FrameStream) -> None:
        assert port.accepted.places.open == 1
        port.net.reset(CLIENT, BROKER)
        for stream in (client, server):
            with pytest.raises(Closed, match="reset by peer"):
                await stream.receive()
        assert (port.accepted.places.open, list(port.net.calls)) == (0, [])

    sim(check)


def test_clients_of_a_world_use_the_stream_ports_of_the_brokers_that_have_one() -> None:
    async def check(world: World) -> None:
        ported = {n for n in world.brokers if world.config(n).stream_listen}
        assert ported not in (set(), {*world.brokers}), "brokers of either kind"
        used = {call.server.broker_id: isinstance(call, StreamConnection) for call in world.clients.calls}
        assert used == {n: n in ported for n in world.brokers}

    in_world(check)
