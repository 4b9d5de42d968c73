"""The stream port of real brokers: the same answers as over gRPC, and a reason for each refused connection."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.client.running import run
from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch, until
from tests.test_app import config, refused
from tinymq.app.broker_app import BrokerApp
from tinymq.base.config import KIB, Limits, parse_address
from tinymq.base.errors import Closed, InvalidFrame, PortInUse
from tinymq.format.entry import iter_entries
from tinymq.net import frame_stream
from tinymq.net.connection_limits import ConnectionRefusal, Place
from tinymq.net.frame_stream import FrameStream
from tinymq.net.framing import PREFIX
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.server import stream_server
from tinymq.rpc.server.stream_server import StreamServer
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

FETCH = pb.StreamHello(protocol=1, kind=pb.STREAM_FETCH)
PRODUCE = pb.StreamHello(protocol=1, kind=pb.STREAM_PRODUCE)


def port_of(cluster: Cluster, broker_id: int) -> int:
    return parse_address(cluster.brokers[broker_id].serving.stream_address)[1]


def streams_of(cluster: Cluster, broker_id: int) -> StreamServer:
    ports = cluster.brokers[broker_id]._ports
    assert ports is not None
    assert ports.streams is not None
    return ports.streams


@asynccontextmanager
async def over(sock: socket.socket) -> AsyncIterator[FrameStream]:
    """The client's end of a connection."""
    bounds = Limits().grpc_message_bytes_max, 1 << 20
    _, stream = await asyncio.get_running_loop().create_connection(lambda: FrameStream(*bounds), sock=sock)
    try:
        yield stream
    finally:
        stream.abort()


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[FrameStream]:
    async with over(socket.create_connection(("127.0.0.1", port))) as stream:
        yield stream


async def greet(stream: FrameStream, hello: pb.StreamHello) -> None:
    await stream.send(hello.SerializeToString())
    welcome = pb.StreamWelcome.FromString((await stream.receive())[0])
    assert welcome == pb.StreamWelcome(protocol=1)


@asynccontextmanager
async def welcomed(port: int, hello: pb.StreamHello) -> AsyncIterator[FrameStream]:
    async with dialled(port) as stream:
        await greet(stream, hello)
        yield stream


async def sent(stream: FrameStream, made: pb.ProduceBatch) -> pb.ProduceResult:
    """Send one batch as a frame: its metadata is the head, its payload the body."""
    data = made.payload
    made.ClearField("payload")
    await stream.send(made.SerializeToString(), (data,))
    (result,) = pb.ProduceReply.FromString((await stream.receive())[0]).results
    return result


def test_it_says_what_grpc_says(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("framed")
        leader = await asyncio.to_thread(tinymq_cluster.wait_leader, "framed")  # the reply may guess at it
        async with Raw(tinymq_cluster.address(leader)) as raw:
            said = await raw.broker.Metadata(pb.MetadataRequest())
            assert said.stream_address == tinymq_cluster.brokers[leader].serving.stream_address
            meant = pb.StreamHello(
                protocol=1, kind=pb.STREAM_PRODUCE, cluster_id=said.cluster_id, broker_id=said.broker_id
            )
            port = port_of(tinymq_cluster, leader)
            async with welcomed(port, meant) as produce:
                for number in range(3):
                    made = batch(topic.topic_id, payload(2000 if number else 1), number)
                    result = await sent(produce, made)
                    assert not result.HasField("error"), result.error
                    assert (result.request_id, result.base_offset) == (number, (0, 1, 2001)[number])
                damaged = await sent(produce, batch(topic.topic_id, b"not Arrow", 9))
                assert damaged.error.code == "InvalidBatch", "and the stream continues"
                assert (await sent(produce, batch(topic.topic_id, payload(1), 10))).base_offset == 4001
            async with welcomed(port, FETCH) as fetch:
                for offset in (0, 2001):
                    asked = {"topic_id": topic.topic_id, "offset": offset, "max_bytes": 1 << 20}
                    await fetch.send(pb.FetchRequest(request_id=1, **asked).SerializeToString())
                    head, frames = await fetch.receive()
                    reply = pb.FetchReply.FromString(head)
                    by_grpc = await raw.fetch(topic.topic_id, offset)
                    assert bytes(frames) == by_grpc.frames
                    assert len(list(iter_entries(by_grpc.frames))) > 1
                    by_grpc.ClearField("frames")
                    assert reply == by_grpc
                await fetch.send(pb.FetchRequest(request_id=2, topic_id=b"?" * 16).SerializeToString())
                head, frames = await fetch.receive()
                assert pb.FetchReply.FromString(head).error.code in ("NotReady", "UnknownTopic")
                assert not frames

    run(main())


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (pb.StreamHello(protocol=2, kind=pb.STREAM_FETCH), "UnsupportedVersion"),
        (pb.StreamHello(protocol=1), "InvalidRequest"),
        (pb.StreamHello(protocol=1, kind=7), "InvalidRequest"),  # type: ignore[arg-type]
        (pb.StreamHello(protocol=1, kind=pb.STREAM_FETCH, broker_id=2), "WrongBroker"),
        (pb.StreamHello(protocol=1, kind=pb.STREAM_FETCH, cluster_id=b"another's"), "WrongBroker"),
        (b"\xff\xff", "InvalidFrame"),
    ],
)
def test_a_refused_client_gets_the_reason(tinymq_cluster: Cluster, hello: pb.StreamHello | bytes, code: str) -> None:
    async def main() -> None:
        async with dialled(port_of(tinymq_cluster, 1)) as stream:
            await stream.send(hello if isinstance(hello, bytes) else hello.SerializeToString())
            welcome = pb.StreamWelcome.FromString((await stream.receive())[0])
            assert welcome.error.code == code
            assert welcome.error.hint
            with pytest.raises(Closed):
                await stream.receive()

    run(main())


@pytest.mark.parametrize("hello", [FETCH, PRODUCE])
@pytest.mark.parametrize("sent", [b"\xff\xff", PREFIX.pack(1 << 30, 0), b"GET / HTTP/1.1\r\n\r\n"])
def test_nonsense_ends_its_own_stream_alone(tinymq_cluster: Cluster, hello: pb.StreamHello, sent: bytes) -> None:
    async def main() -> None:
        port = port_of(tinymq_cluster, 1)
        async with welcomed(port, hello) as well, welcomed(port, hello) as ill:
            if len(sent) == 2:
                await ill.send(sent)  # a frame whose head is not a message
            else:
                assert ill._transport is not None
                ill._transport.write(sent)
            with pytest.raises((Closed, InvalidFrame)):
                await ill.receive()
            if hello is FETCH:
                await well.send(pb.FetchRequest(request_id=1, topic_id=b"?" * 16).SerializeToString())
            else:
                await well.send(pb.ProduceBatch(request_id=1, topic_id=b"?" * 16).SerializeToString())
            assert (await well.receive())[0]

    run(main())


def test_a_stranger_has_room_for_a_hello_and_no_more(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with dialled(port_of(tinymq_cluster, 1)) as stream:
            await stream.send(FETCH.SerializeToString() + b"\0" * stream_server.HELLO_BYTES_MAX)
            with pytest.raises(Closed):
                await stream.receive()

    run(main())


def test_the_oldest_of_many_strangers_is_let_go(tinymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_server, "STRANGERS_MAX", 2)

    async def main() -> None:
        port = port_of(tinymq_cluster, 1)
        async with welcomed(port, FETCH) as friend, dialled(port) as first, dialled(port) as second:
            async with dialled(port) as third:
                with pytest.raises(Closed):
                    await first.receive()
                for late in (second, third):
                    await late.send(FETCH.SerializeToString())
                    assert not pb.StreamWelcome.FromString((await late.receive())[0]).HasField("error")
            await friend.send(pb.FetchRequest(request_id=1, topic_id=b"?" * 16).SerializeToString())
            assert (await friend.receive())[0]

    run(main())


def stands_still(stream: FrameStream) -> bool:
    """Has the stream stopped reading because its sender waits for buffer space?"""
    return not stream._reading and stream._taken is not None and not stream._taken.done()


@pytest.mark.parametrize("hello", [FETCH, PRODUCE])
def test_a_client_that_leaves_without_reading_is_forgotten(
    tinymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, hello: pb.StreamHello
) -> None:
    """The stream is blocked because the answers find no buffer space. Only its end releases it."""
    # A pair of local sockets holds only its send buffer. TCP would have buffers of megabytes
    # on both sides, and the kernel drops segments when they are small.
    monkeypatch.setattr(frame_stream, "UNSENT_BYTES_MAX", 4 * KIB)
    monkeypatch.setattr(frame_stream, "UNREAD_FRAMES_MAX", 16)

    async def main() -> None:
        streams = streams_of(tinymq_cluster, 1)
        before = set(streams._streams)
        client_end, broker_end = socket.socketpair()
        broker_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
        place = streams.places.take("")
        assert isinstance(place, Place)
        assert streams._acceptor is not None
        tinymq_cluster.run(streams._acceptor._connect(broker_end, place))
        async with over(client_end) as rude:
            await greet(rude, hello)
            (here,) = set(streams._streams) - before
            assert rude._transport is not None
            rude._transport.pause_reading()
            made = pb.FetchRequest if hello is FETCH else pb.ProduceBatch
            asked = made(request_id=1, topic_id=b"?" * 16).SerializeToString()

            async def ask() -> None:
                while True:
                    await rude.send(asked)

            asking = asyncio.ensure_future(ask())
            await until(lambda: stands_still(here))
            asking.cancel()
        await until(lambda: here not in streams._streams)
        assert set(streams._streams) <= before, "connections of other tests may end in between"

    run(main())


def test_a_client_delayed_by_its_quota_does_not_delay_a_stop() -> None:
    with Cluster(nodes=1, limits=Limits(client_produce_bytes_per_s=1)) as cluster:
        cluster.client().admin.create_topic("t", partitions=1)

        async def main() -> None:
            async with Raw(cluster.address(1)) as raw:
                topic = await raw.topic("t")
            async with welcomed(port_of(cluster, 1), PRODUCE) as stream:
                assert (await sent(stream, batch(topic.topic_id, payload(1000)))).throttled_ms > 20_000
                await asyncio.to_thread(cluster.stop, 1)

        run(main(), timeout_s=20)


def test_a_silent_connection_is_closed(tinymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_server, "HELLO_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with dialled(port_of(tinymq_cluster, 1)) as stream:
            with pytest.raises(Closed):
                await stream.receive()

    run(main())


def test_the_number_of_connections_is_bounded(tinymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        port = port_of(tinymq_cluster, 1)
        streams = streams_of(tinymq_cluster, 1)
        async with welcomed(port, FETCH):
            await until(lambda: streams.places.open == 1)  # connections of earlier tests have ended
            monkeypatch.setattr(streams.places, "connections_max", 1)
            async with dialled(port) as one_more:
                with pytest.raises(Closed):
                    await one_more.receive()
            assert streams.places.refused[ConnectionRefusal.FULL] == 1
        await until(lambda: streams.places.open < streams.places.connections_max)
        async with welcomed(port, FETCH):
            pass

    run(main())


def test_a_broker_that_stops_answers_what_it_has_taken() -> None:
    with Cluster(nodes=1) as cluster:
        client = cluster.client()
        client.admin.create_topic("t", partitions=1)
        with client.producer(linger_ms=0) as producer:
            deliveries = [producer.send("t", b"%d" % i) for i in range(200)]
            offsets = [delivery.result(20).offset for delivery in deliveries[:100]]
            cluster.stop(1)
            cluster.start(1)
            assert [*offsets, *(d.result(20).offset for d in deliveries[100:])] == list(range(200))


def test_where_it_is_said_to_be(tmp_path: Path) -> None:
    async def main() -> None:
        first = BrokerApp(config(tmp_path))
        await first.start()
        assert parse_address(first.serving.stream_address)[0] == "127.0.0.1"
        other = dataclasses.replace(config(tmp_path, 2, "other"), stream_listen=first.serving.stream_address)
        await refused(other, PortInUse)
        await first.stop()
        for settings, wanted in (
            ({"stream_listen": ""}, ""),
            ({"stream_listen": "", "stream_advertise": "b.example:7370"}, ""),
            ({"stream_advertise": "b.example:7370"}, "b.example:7370"),
            ({"advertise": "b.example:7070"}, ""),  # clients elsewhere would look for it on their own machines
            ({"advertise": "localhost:7070"}, "127.0.0.1:{port}"),
            ({"advertise": "b.example:7070", "stream_listen": "0.0.0.0:0"}, "b.example:{port}"),
        ):
            app = BrokerApp(dataclasses.replace(config(tmp_path), **settings))  # type: ignore[arg-type]
            await app.start()
            assert app._ports is not None
            assert app.serving.stream_address == wanted.format(port=app._ports._stream_port)
            await app.stop()

    run(main(), timeout_s=60)
