"""Requests over their bounds on the gRPC port of a real broker: a typed error without any effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from tests.fakes.batches import payload
from tests.fakes.raw_client import WAIT_S, Raw, batch
from tests.fuzz.test_requests import errors_of
from tests.proto.test_bounds import item
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import BATCHES_MAX, REPEATED_MAX
from tinymq.proto.errors import TRAILER
from tinymq.testing.cluster import Cluster

CALLS = {
    f"/{service.full_name}/{method.name}": (method, f"{method.input_type.name}.{field.name}")
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    for field in method.input_type.fields
    if field.is_repeated and not method.client_streaming
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as cluster:
        yield cluster


def refused(failed: Any) -> pb.Error:
    """Return the error in the status of a call."""
    assert failed.code() is grpc.StatusCode.INVALID_ARGUMENT, failed
    return pb.Error.FromString(dict(failed.trailing_metadata())[TRAILER])


@pytest.mark.parametrize("path", CALLS)
def test_every_call_with_a_repeated_field(cluster: Cluster, path: str) -> None:
    method, name = CALLS[path]
    field, most = name.split(".")[1], REPEATED_MAX[name]
    kind = GetMessageClass(method.input_type)
    request = kind(**{field: [item(name)] * (most + 1)})
    with grpc.insecure_channel(cluster.address(1)) as channel:
        call = channel.unary_unary(path, kind.SerializeToString, GetMessageClass(method.output_type).FromString)
        try:
            (error,) = errors_of(call(request, timeout=WAIT_S))
        except grpc.RpcError as failed:
            error = refused(failed)
    assert (error.code, error.retriable) == ("InvalidRequest", False)
    assert f"more than {most} {field}" in error.message
    assert str(most) in error.hint


def test_a_call_that_is_no_message_is_answered_with_an_error(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(cluster.address(1)) as channel:
        created = channel.unary_unary("/tinymq.v1.Admin/CreateTopic", bytes, pb.CreateTopicReply.FromString)
        assert created(b"\xff\xff", timeout=WAIT_S).error.code == "InvalidRequest"
        status = channel.unary_unary("/tinymq.v1.Admin/ClusterStatus", bytes, pb.ClusterStatusReply.FromString)
        with pytest.raises(grpc.RpcError) as failed:
            status(b"\xff\xff", timeout=WAIT_S)
        assert refused(failed.value).code == "InvalidRequest"
    assert not [record for record in caplog.records if record.exc_info]


def test_a_produce_request_over_its_bound_ends_the_stream_and_nothing_of_it_is_written(cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t", factor=1)
            data = payload(3)
            few = [batch(topic.topic_id, data, number) for number in range(5)]
            many = [batch(topic.topic_id, payload(), number) for number in range(BATCHES_MAX + 1)]

            async def requests() -> AsyncIterator[pb.ProduceRequest]:
                yield pb.ProduceRequest(batches=few)
                yield pb.ProduceRequest(batches=many)

            answered: list[int] = []

            async def read() -> None:
                async for reply in raw.broker.Produce(requests(), timeout=WAIT_S):
                    answered.extend(result.base_offset for result in reply.results)

            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await read()
            assert refused(failed.value).code == "InvalidRequest"
            assert answered == [0, 3, 6, 9, 12], "earlier requests are answered"
            assert (await raw.fetch(topic.topic_id)).high_watermark == 15

    asyncio.run(main())


def test_a_fetch_request_of_junk_ends_its_stream(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.address(1)) as channel:
        fetch = channel.stream_stream("/tinymq.v1.Broker/Fetch", bytes, pb.FetchReply.FromString)
        with pytest.raises(grpc.RpcError) as failed:
            list(fetch(iter([b"\x08\x01" * 10_000]), timeout=WAIT_S))
        assert refused(failed.value).code == "InvalidRequest"
