"""The gRPC transport against real servers: requests that never left, that may have arrived, and that were answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.running import run
from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable, OutcomeUnknown, UnsupportedVersion
from tinymq.client.net.grpc_transport import GrpcConnector
from tinymq.proto import tinymq_pb2 as pb

CONNECTOR = GrpcConnector(Limits())


@pytest.fixture(scope="module")
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(FakeCluster()) as running:
        running.cluster.add_topic("t")
        yield running


@pytest.fixture
def nobody() -> str:
    """Return an address without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_question_is_answered(brokers: GrpcBrokers) -> None:
    async def scenario() -> None:
        link = CONNECTOR.link(brokers.servers[0])
        reply = await link.call(pb.MetadataRequest(topics=["t"]), 5)
        assert [t.name for t in reply.topics] == ["t"]
        assert link.address == brokers.servers[0]
        await link.close()
        await link.close()

    run(scenario())


class _Listening(grpc.GenericRpcHandler):
    """Notes the metadata of each call, and serves no method."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> None:
        self.callers += [str(value) for key, value in details.invocation_metadata or () if key == "tinymq-client-id"]


def test_every_call_says_who_calls() -> None:
    async def scenario() -> None:
        listening = _Listening()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((listening,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        link = GrpcConnector(Limits(), "me").link(address)
        with pytest.raises(UnsupportedVersion):
            await link.call(pb.MetadataRequest(), 5)
        for opened in (await link.open_produce(5), await link.open_fetch(5)):
            with pytest.raises(UnsupportedVersion):
                await opened.read()
        assert listening.callers == ["me"] * 3
        await link.close()
        await server.stop(None)

    run(scenario())


def test_a_refused_connection_is_certain(nobody: str) -> None:
    async def scenario() -> None:
        link = CONNECTOR.link(nobody)
        with pytest.raises(BrokerUnreachable, match=f"{nobody}: .*refused"):
            await link.call(pb.MetadataRequest(), 5)
        with pytest.raises(BrokerUnreachable, match="refused"):
            await link.open_produce(5)
        with pytest.raises(BrokerUnreachable):
            await link.open_fetch(5)
        await link.close()

    run(scenario())


def test_a_connection_that_never_comes_is_certain() -> None:
    async def scenario() -> None:
        with socket.socket() as deaf:  # it listens and never answers
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()
            link = CONNECTOR.link(f"127.0.0.1:{deaf.getsockname()[1]}")
            with pytest.raises(BrokerUnreachable, match=r"no connection within 0\.2 s"):
                await link.open_produce(0.2)
            await link.close()

    run(scenario())


def test_silence_is_of_unknown_outcome(brokers: GrpcBrokers) -> None:
    async def scenario() -> None:
        brokers.cluster.hung.add(2)
        link = CONNECTOR.link(brokers.servers[1])
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await link.call(pb.MetadataRequest(), 0.2)
        brokers.cluster.hung.clear()
        await link.close()

    run(scenario())


def test_a_method_that_is_not_there(brokers: GrpcBrokers) -> None:
    async def scenario() -> None:
        link = CONNECTOR.link(brokers.servers[0])
        with pytest.raises(UnsupportedVersion):
            await link.call(pb.SurveyRequest(), 5)
        await link.close()

    run(scenario())


def test_streams_carry_messages_and_say_when_they_break(brokers: GrpcBrokers) -> None:
    async def scenario() -> None:
        link = CONNECTOR.link(brokers.servers[0])
        stream = await link.open_fetch(5)
        topic_id = brokers.cluster.topics["t"][0]
        await stream.write(pb.FetchRequest(request_id=7, topic_id=topic_id, max_wait_ms=10))
        fetched = await stream.read()
        assert (fetched.request_id, fetched.leader, bytes(fetched.frames)) == (7, 1, b"")
        brokers.run(_break(brokers.cluster))
        with pytest.raises(OutcomeUnknown):
            await stream.read()
        with pytest.raises(OutcomeUnknown):
            await stream.write(pb.FetchRequest(request_id=8))
        produce = await link.open_produce(5)
        reading = asyncio.create_task(produce.read())
        await asyncio.sleep(0)
        produce.cancel()
        with pytest.raises(OutcomeUnknown, match="closed here"):
            await reading
        waiting = asyncio.create_task((await link.open_produce(5)).read())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await link.close()

    run(scenario())


async def _break(cluster: FakeCluster) -> None:
    cluster.break_streams(1)
