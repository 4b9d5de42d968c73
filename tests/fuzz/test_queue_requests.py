"""Requests of QueueService and Channels at random: a reply, or a status with a typed error; never a bug's own words."""

from __future__ import annotations

from typing import Any

import grpc
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.driver import allocating
from tests.fuzz.test_requests import CALL_BYTES_MAX, CALL_S_MAX, QUICK, _running, bench, check, made, messages
from tinymq.base.config import MIB
from tinymq.base.errors import BY_CODE
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import from_wire
from tinymq.rpc.common.statuses import TRAILER, status_of

__all__ = ["_running"]

QUEUES = {
    "ProduceMessage": pb.ProduceMessageRequest,
    "AsyncProduceMessage": pb.ProduceMessageRequest,
    "ConsumeMessage": pb.ConsumeMessageRequest,
    "FetchMessage": pb.FetchMessageRequest,
    "CreateQueue": pb.CreateQueueRequest,
    "DeleteQueue": pb.DeleteQueueRequest,
    "GetQueueSize": pb.GetQueueSizeRequest,
}
CHANNELS = {
    "SetConsumer": pb.SetConsumerRequest,
    "UnsetConsumer": pb.UnsetConsumerRequest,
    "Change": pb.ChannelsRequest,
    "List": pb.ListChannelsRequest,
    "Trim": pb.TrimRequest,
    "Hold": pb.HoldRequest,
}


def calls(of: dict[str, Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.sampled_from(sorted(of)).flatmap(lambda name: st.tuples(st.just(name), messages(of[name].DESCRIPTOR)))


def refusal(failed: Any) -> pb.Error:
    """The error of a call that ended with a status, which is that of the error."""
    trailers: dict[str, Any] = dict(failed.trailing_metadata() or ())
    assert TRAILER in trailers, failed
    error = pb.Error.FromString(trailers[TRAILER])
    assert error.code in BY_CODE
    assert failed.code() is status_of(from_wire(error))
    return error


def ended(call: Any, request: Any) -> str:
    """The code of the error that it ended with; "": none."""
    try:
        call(request, timeout=CALL_S_MAX)
    except grpc.RpcError as failed:
        return refusal(failed).code
    return ""


@given(calls(QUEUES))
@QUICK
def test_single_messages(call: tuple[str, dict[str, Any]]) -> None:
    name, values = call
    if name == "DeleteQueue" and values.get("topic") == "t":
        values["topic"] = "a"
    request = made(QUEUES[name], values)
    stub: Any = pb_grpc.QueueServiceStub(bench().channel)
    with allocating(CALL_BYTES_MAX, f"{name} with {request.ByteSize()} bytes"):
        assert ended(getattr(stub, name), request) != "BrokenInvariant"
    bench().still_serves()


@given(calls(CHANNELS))
@QUICK
def test_channels(call: tuple[str, dict[str, Any]]) -> None:
    name, values = call
    request = made(CHANNELS[name], values)
    stub: Any = pb_grpc.ChannelsStub(bench().channel)
    with allocating(CALL_BYTES_MAX, f"{name} with {request.ByteSize()} bytes"):
        check(getattr(stub, name)(request, timeout=CALL_S_MAX))
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
    stub: Any = pb_grpc.QueueServiceStub(bench().channel)
    for size, code in ((MIB - 1024, ""), (MIB + 1, "BatchTooLarge")):
        assert ended(stub.ProduceMessage, pb.ProduceMessageRequest(topic="t", queue=1, value=bytes(size))) == code
    taken = stub.FetchMessage(pb.FetchMessageRequest(topic="t", queue=1), timeout=CALL_S_MAX)
    assert taken.high_watermark >= 1
