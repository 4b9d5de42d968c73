"""A stream uses the stream port if the broker has one that can be reached, else gRPC; and its errors when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.client.running import run
from tests.fakes.manual_clock import ManualClock
from tests.rpc.server.test_stream_server import streams_of
from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable, CorruptData, OutcomeUnknown, TinymqError
from tinymq.client.net.ports import PackedBatch
from tinymq.client.net.streams import PORT_RETRY_S, BrokerLink, FramedFetch, FramedProduce
from tinymq.net.frame_stream import FrameStream
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.services.produce import RESULTS_MAX
from tinymq.testing.cluster import Cluster

WELCOME = pb.StreamWelcome(protocol=1).SerializeToString()
Answer = Callable[[FrameStream, bytes], Any]


class ByGrpc:
    """A gRPC link that tells the address of the stream port. Its own streams are only names."""

    address = "broker:1"

    def __init__(self, stream_address: str) -> None:
        self.stream_address = stream_address
        self.asked = 0
        self.failure: TinymqError | None = None

    async def call(self, request: Any, timeout_s: float) -> pb.MetadataReply:
        assert isinstance(request, pb.MetadataRequest)
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return pb.MetadataReply(cluster_id=b"c", broker_id=7, stream_address=self.stream_address)

    async def open_produce(self, timeout_s: float) -> Any:
        return "produce by gRPC"

    async def open_fetch(self, timeout_s: float) -> Any:
        assert timeout_s > 0
        return "fetch by gRPC"

    async def close(self) -> None:
        pass


class Port:
    """A stream port that calls a function of the test with the first frame of each connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.hellos: list[pb.StreamHello] = []
        self.streams: list[FrameStream] = []
        self.address = ""

    def made(self, stream: FrameStream) -> None:
        self.streams.append(stream)
        self._task = asyncio.get_running_loop().create_task(self._serve(stream))

    async def _serve(self, stream: FrameStream) -> None:
        head, _ = await stream.receive()
        self.hellos.append(pb.StreamHello.FromString(head))
        await self._answer(stream, head)


@asynccontextmanager
async def port(answer: Answer) -> AsyncIterator[Port]:
    made = Port(answer)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FrameStream(1 << 22, 1 << 22, on_made=made.made), "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for stream in made.streams:
            stream.abort()


def link_to(grpc: ByGrpc, clock: ManualClock | None = None) -> BrokerLink:
    return BrokerLink(grpc, Limits(), "me", clock or ManualClock())  # type: ignore[arg-type]


async def welcome(stream: FrameStream, head: bytes) -> None:
    await stream.send(WELCOME)


async def refuse(stream: FrameStream, head: bytes) -> None:
    await stream.send(pb.StreamWelcome(error=pb.Error(code="WrongBroker", message="not me")).SerializeToString())


async def gibberish(stream: FrameStream, head: bytes) -> None:
    await stream.send(b"\xff\xff")


async def hang_up(stream: FrameStream, head: bytes) -> None:
    stream.abort()


def test_frames_where_the_broker_takes_them() -> None:
    async def scenario() -> None:
        async with port(welcome) as there:
            link = link_to(ByGrpc(there.address))
            produce, fetch = await link.open_produce(5), await link.open_fetch(5)
            assert (type(produce), type(fetch)) == (FramedProduce, FramedFetch)
            assert [h.kind for h in there.hellos] == [pb.STREAM_PRODUCE, pb.STREAM_FETCH]
            assert {(h.protocol, h.cluster_id, h.broker_id, h.client_id) for h in there.hellos} == {(1, b"c", 7, "me")}

            big = pa.py_buffer(b"m" * 300_000)
            await produce.write([PackedBatch(b"one", b"head", pa.py_buffer(b"")), PackedBatch(b"two", b"", big)])
            at_broker = there.streams[0]
            assert [(h, len(b)) for h, b in [await at_broker.receive(), await at_broker.receive()]] == [
                (b"one", 4), (b"two", 300_000)
            ]  # fmt: skip
            await at_broker.send(pb.ProduceReply(results=[pb.ProduceResult(request_id=3)]).SerializeToString())
            assert (await produce.read()).results[0].request_id == 3
            many = [pb.ProduceResult(error=pb.Error(code="NotLeader", message="x" * 500))] * RESULTS_MAX
            await at_broker.send(pb.ProduceReply(results=many).SerializeToString())
            assert len((await produce.read()).results) == RESULTS_MAX

            await fetch.write(pb.FetchRequest(request_id=4))
            assert pb.FetchRequest.FromString((await there.streams[1].receive())[0]).request_id == 4
            frames = bytes(range(256)) * 1000
            await there.streams[1].send(pb.FetchReply(request_id=4, next_offset=9).SerializeToString(), (frames,))
            answered = await fetch.read()
            assert (answered.request_id, answered.next_offset, bytes(answered.frames)) == (4, 9, frames)
            await there.streams[1].send(b"\xff\xff")
            with pytest.raises(CorruptData):
                await fetch.read()

            for stream in there.streams:
                stream.abort()
            for broken in (produce.read(), fetch.read(), produce.write([PackedBatch(b"", b"", big)] * 9)):
                with pytest.raises(OutcomeUnknown, match="broker:1"):
                    await broken
            produce.cancel()
            fetch.cancel()

    run(scenario())


@pytest.mark.parametrize("answer", [refuse, gibberish, hang_up])
def test_grpc_where_the_port_is_of_no_use_and_not_asked_again_for_a_while(answer: Answer) -> None:
    async def scenario() -> None:
        async with port(answer) as there:
            clock, grpc = ManualClock(), ByGrpc(there.address)
            link = link_to(grpc, clock)
            assert await link.open_fetch(5) == "fetch by gRPC"
            assert await link.open_produce(5) == "produce by gRPC"
            assert await link.open_blocking(5) is None
            assert len(there.hellos) == 1
            clock.advance(PORT_RETRY_S + 1)
            assert await link.open_fetch(5) == "fetch by gRPC"
            assert len(there.hellos) == 2
            grpc.stream_address = (
                f"localhost:{there.address.rpartition(':')[2]}"  # the broker tells another address now
            )
            await link.open_fetch(5)
            assert len(there.hellos) == 3

    run(scenario())


def test_grpc_without_a_listener_an_answer_or_a_port() -> None:
    async def silence(stream: FrameStream, head: bytes) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with port(welcome) as there:
            gone = there.address
        assert await link_to(ByGrpc(gone)).open_blocking(5) is None
        for address in (gone, "", "no such host.invalid:1", "not an address", "a..b:1", f"{'x' * 64}.invalid:1"):
            assert await link_to(ByGrpc(address)).open_fetch(5) == "fetch by gRPC", address
        async with port(silence) as there:
            assert await link_to(ByGrpc(there.address)).open_fetch(0.2) == "fetch by gRPC"

    run(scenario())


@pytest.mark.parametrize("answer", [refuse, gibberish, hang_up])
def test_no_stream_that_blocks_where_the_port_is_of_no_use(answer: Answer) -> None:
    async def scenario() -> None:
        async with port(answer) as there:
            assert await link_to(ByGrpc(there.address)).open_blocking(5) is None
            assert len(there.hellos) == 1

    run(scenario())


def test_a_stream_that_blocks() -> None:
    async def scenario() -> None:
        async with port(welcome) as there:
            stream = await link_to(ByGrpc(there.address)).open_blocking(5)
            assert stream is not None
            assert there.hellos[0].kind == pb.STREAM_PRODUCE
            stream.send(b"head", (b"body",), 1)
            assert await there.streams[0].receive() == (b"head", b"body")
            await there.streams[0].send(b"answer")
            assert await asyncio.to_thread(stream.receive, 10) == (b"answer", b"")
            stream.close()

    run(scenario())


@pytest.mark.parametrize("error", [BrokerUnreachable("refused"), OutcomeUnknown("no answer in time")])
def test_a_call_without_a_connection_was_never_sent(error: TinymqError) -> None:
    async def scenario() -> None:
        grpc = ByGrpc("127.0.0.1:1")
        grpc.failure = error
        link = link_to(grpc)
        for opened in (link.open_produce(5), link.open_fetch(5), link.open_blocking(5)):
            with pytest.raises(BrokerUnreachable, match=error.message):
                await opened

    run(scenario())


def test_a_cancelled_dial_leaves_nothing_open() -> None:
    async def scenario() -> None:
        reached, left = asyncio.Event(), asyncio.Event()

        async def silence(stream: FrameStream, head: bytes) -> None:
            reached.set()
            with pytest.raises(TinymqError):
                await stream.receive()
            left.set()

        async with port(silence) as there:
            opening = asyncio.ensure_future(link_to(ByGrpc(there.address)).open_fetch(60))
            await reached.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await left.wait()

    run(scenario())


def test_a_client_uses_the_stream_port_and_works_without_it() -> None:
    """Real brokers: records use the stream port, and gRPC when that is closed for good."""
    with Cluster(nodes=1) as cluster:
        client = cluster.client()
        client.admin.create_topic("t", partitions=1)
        assert client.send("t", b"0").offset == 0
        streams = streams_of(cluster, 1)
        assert len(streams._streams) == 1, "the producer's"
        with client.reader("t", start="earliest") as reader:
            assert reader.poll(timeout=20)[0].value == b"0"
            assert len(streams._streams) == 2
            cluster.run(streams.stop(None))
            assert client.send("t", b"1").offset == 1
            assert [record.value for record in reader.poll(timeout=20)] == [b"1"]
        assert not streams._streams
