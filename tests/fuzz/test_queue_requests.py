"""Random requests of QueueService and Channels: a reply, or a status with a typed error, never an internal error."""

from __future__ import annotations

from typing import Any

import grpc
from hypothesis import given

from tests.fuzz.driver import allocating
from tests.fuzz.test_requests import (
    CALL_BYTES_MAX,
    CALL_S_MAX,
    QUICK,
    _running,
    bench,
    call,
    calls,
    check,
    harmless,
    made,
)
from tinymq.base.config import MIB
from tinymq.base.errors import BY_CODE
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import TRAILER, from_wire
from tinymq.proto.methods import Method, method_named
from tinymq.rpc.common.statuses import status_of

__all__ = ["_running"]


def refusal(failed: Any) -> pb.Error:
    """Return the typed error of a call, after a check that its status is that of the error."""
    trailers: dict[str, Any] = dict(failed.trailing_metadata() or ())
    assert TRAILER in trailers, failed
    error = pb.Error.FromString(trailers[TRAILER])
    assert error.code in BY_CODE
    assert failed.code() is status_of(from_wire(error))
    return error


def code_of(method: Method, request: Any) -> str:
    """Return the code of the call's error; "" if it succeeds."""
    try:
        call(method, request)
    except grpc.RpcError as failed:
        return refusal(failed).code
    return ""


@given(calls("QueueService"))
@QUICK
def test_single_messages(drawn: tuple[Method, dict[str, Any]]) -> None:
    method, values = drawn
    request = made(method.request, harmless(method, values))
    with allocating(CALL_BYTES_MAX, f"{method.label} with {request.ByteSize()} bytes"):
        assert code_of(method, request) != "BrokenInvariant"
    bench().still_serves()


@given(calls("Channels"))
@QUICK
def test_channels(drawn: tuple[Method, dict[str, Any]]) -> None:
    method, values = drawn
    request = made(method.request, values)
    with allocating(CALL_BYTES_MAX, f"{method.label} with {request.ByteSize()} bytes"):
        check(call(method, request))
    bench().still_serves()


def test_a_small_request_gets_no_huge_reply() -> None:
    many = 200_000
    stub: Any = pb_grpc.ChannelsStub(bench().channel)
    for request in (
        pb.ChannelsRequest(topic_id=bench().topic_id, commands=[pb.ChannelCommand()] * many),
        pb.ListChannelsRequest(topic_id=bench().topic_id, partitions=[9] * many),
    ):
        reply = (stub.Change if isinstance(request, pb.ChannelsRequest) else stub.List)(request, timeout=CALL_S_MAX)
        check(reply)
        assert reply.ByteSize() < MIB


def test_a_message_that_is_too_large_is_refused() -> None:
    produce = method_named("QueueService", "ProduceMessage")
    for size, code in ((MIB - 1024, ""), (MIB + 1, "BatchTooLarge")):
        assert code_of(produce, pb.ProduceMessageRequest(topic="t", queue=1, value=bytes(size))) == code
    taken = call(method_named("QueueService", "FetchMessage"), pb.FetchMessageRequest(topic="t", queue=1))
    assert taken.high_watermark >= 1
