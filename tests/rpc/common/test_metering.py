"""Calls of the meter: the streams report each batch and fetch, and an interceptor reports unary calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from tests.fakes.batches import payload
from tests.fakes.raw_client import batch
from tests.rpc.test_streams import Line, Streams, T, ask, settle
from tinymq.base.config import Limits
from tinymq.base.meter import Unmetered
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER
from tinymq.rpc.common.metering import Metering
from tinymq.rpc.services.fetch import FetchStream

PRODUCE, FETCH = "Broker.Produce", "Broker.Fetch"


class Told(Unmetered):
    """Records its calls; each reading of its clock is one second later than the previous one."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.now_s = 0.0

    def now(self) -> float:
        self.now_s += 1
        return self.now_s

    def produced(
        self, topic_id: bytes, batch_bytes: int, records: int, arrived_s: float, appended_s: float | None
    ) -> None:
        self.said.append(("produced", topic_id, batch_bytes, records, arrived_s, appended_s))

    def appended(self, topic_id: bytes, batch_bytes: int, records: int) -> None:
        self.said.append(("appended", topic_id, batch_bytes, records))

    def duplicated(self, topic_id: bytes, arrived_s: float) -> None:
        self.said.append(("duplicated", topic_id, arrived_s))

    def fetched(self, topic_id: bytes, frame_bytes: int, asked_s: float, ready_s: float) -> None:
        self.said.append(("fetched", topic_id, frame_bytes, asked_s, ready_s))

    def called(self, call: str, began_s: float) -> None:
        self.said.append(("called", call, began_s))

    def refused(self, call: str, code: str) -> None:
        self.said.append(("refused", call, code))


def run(scenario: Callable[[Streams, Told], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        streams = Streams(Limits())
        streams.serving.meter = reports = Told()
        await scenario(streams, reports)

    asyncio.run(main())


def test_a_batch_is_reported_when_it_is_acknowledged() -> None:
    data = payload(3)

    async def scenario(s: Streams, reports: Told) -> None:
        line = Line()
        s.produce(line)
        line.send(pb.ProduceRequest(batches=[batch(T, data, 1), batch(T, data, 2, acks=pb.ACKS_LEADER)]))
        await settle()
        assert reports.said == [("produced", T, len(data), 3, 3.0, None)], "no request waits for a majority"
        s.bench.group.commit()
        assert reports.said[1:] == [("produced", T, len(data), 3, 1.0, 2.0)]
        line.send(pb.ProduceRequest(batches=[batch(T, data, 3, acks=pb.ACKS_NONE)]))
        await settle()
        assert reports.said[2:] == [("appended", T, len(data), 3)]

    run(scenario)


def test_a_duplicate_is_reported_as_one() -> None:
    data = payload(2, producer=5, sequence=0)

    async def scenario(s: Streams, reports: Told) -> None:
        line = Line()
        s.produce(line)
        line.send(pb.ProduceRequest(batches=[batch(T, data, 1), batch(T, data, 2)]))
        await settle()
        s.bench.group.commit()
        assert [said[0] for said in reports.said] == ["produced", "duplicated"]

    run(scenario)


def test_a_refusal_is_reported_even_if_no_call_waits_for_it() -> None:
    async def scenario(s: Streams, reports: Told) -> None:
        line = Line()
        s.produce(line)
        elsewhere = [batch(T, payload(), n, partition=1, acks=acks) for n, acks in ((1, 0), (2, pb.ACKS_NONE))]
        line.send(pb.ProduceRequest(batches=[*elsewhere, batch(T, payload(), 3)]))
        await settle()
        assert reports.said == [("refused", PRODUCE, "UnknownPartition")] * 2
        assert [result.request_id for reply in line.replies for result in reply.results] == [1]
        s.bench.group.lose_leadership(to=2)
        assert reports.said[2:] == [("refused", PRODUCE, "OutcomeUnknown")]

    run(scenario)


def test_a_fetch_is_reported_with_its_wait_apart() -> None:
    async def scenario(s: Streams, reports: Told) -> None:
        line = Line()
        s.fetch(line)
        line.send(ask(1))
        await settle()
        assert reports.said == [], "it waits"
        s.bench.send(2)
        s.bench.group.commit()
        await settle()
        (reply,) = line.replies
        assert reports.said == [("fetched", T, len(reply.frames), 1.0, 2.0)]
        line.send(ask(2, offset=99))
        line.send(ask(3, partition=1))
        await settle()
        assert reports.said[1:] == [("refused", FETCH, "UnknownPartition"), ("refused", FETCH, "OffsetOutOfRange")]

    run(scenario)


def test_a_cancelled_fetch_is_not_reported() -> None:
    async def scenario(s: Streams, reports: Told) -> None:
        line = Line()
        stream = FetchStream(s.serving, line, s.limits, s.guard())
        running = asyncio.ensure_future(stream.run(line.incoming()))
        for number in (1, 2):
            line.send(ask(number))
            line.send(pb.FetchRequest(request_id=number, cancel=True))
        line.send(ask(1))
        await settle()
        assert list(stream._asked) == [1], "nothing is kept of a cancelled fetch"
        s.bench.send(1)
        s.bench.group.commit()
        line.end()
        await running
        assert [said[0] for said in reports.said] == ["fetched"]
        assert len(line.replies) == 1

    run(scenario)


# ---- unary calls -----------------------------------------------------------------------------------------

REPLIES = {
    "fine": pb.CreateTopicReply(),
    "whole": pb.CreateTopicReply(error=pb.Error(code="TopicExists")),
    "parts": pb.MetadataReply(topics=[pb.TopicInfo(), pb.TopicInfo(error=pb.Error(code="UnknownTopic"))] * 2),
    "both": pb.MetadataReply(error=pb.Error(code="NotReady"), topics=[pb.TopicInfo(error=pb.Error(code="NotReady"))]),
}


async def _answer(request: pb.CreateTopicRequest, context: grpc.aio.ServicerContext[Any, Any]) -> object:
    if request.name in REPLIES:
        return REPLIES[request.name]
    if request.name == "bug":
        raise ZeroDivisionError
    trailer = ((TRAILER, pb.Error(code="UnknownPartition").SerializeToString()),) if request.name == "trailer" else ()
    await context.abort(grpc.StatusCode.NOT_FOUND, "gone", trailer)
    raise AssertionError("abort raises")


async def _stream(requests: Any, context: object) -> None:
    async for _ in requests:
        pass


async def _told_of(service: str, *names: str) -> list[tuple[Any, ...]]:
    """Return the calls of the meter for these calls to a service."""
    reports = Told()
    server = grpc.aio.server(interceptors=[Metering(reports)])
    unary = grpc.unary_unary_rpc_method_handler(
        _answer,  # type: ignore[arg-type]
        request_deserializer=pb.CreateTopicRequest.FromString,
        response_serializer=lambda reply: reply.SerializeToString(),
    )
    methods = {"CreateTopic": unary, "Stream": grpc.stream_stream_rpc_method_handler(_stream)}  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        make = channel.unary_unary(
            f"/{service}/CreateTopic", pb.CreateTopicRequest.SerializeToString, lambda data: data
        )  # fmt: skip
        for name in names:
            call = make(pb.CreateTopicRequest(name=name), timeout=20)
            assert (await call.code() is grpc.StatusCode.OK) == (name in REPLIES)
        stream = channel.stream_stream(f"/{service}/Stream")()
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        unknown = channel.unary_unary(f"/{service}/Nothing")(b"", timeout=20)
        assert await unknown.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)
    return reports.said


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("fine", []),
        ("whole", ["TopicExists"]),
        ("parts", ["UnknownTopic", "UnknownTopic"]),
        ("both", ["NotReady"]),
        ("status", ["NOT_FOUND"]),
        ("trailer", ["UnknownPartition"]),
        ("bug", ["UNKNOWN"]),
    ],
)
def test_a_unary_call_is_reported_with_its_errors(name: str, codes: list[str]) -> None:
    called = [("called", "Admin.CreateTopic", 1.0)] if name in REPLIES else []
    refused = [("refused", "Admin.CreateTopic", code) for code in codes]
    assert asyncio.run(_told_of("tinymq.v1.Admin", name)) == called + refused


def test_calls_of_other_services_are_not_reported() -> None:
    assert asyncio.run(_told_of("grpc.health.v1.Health", "fine", "whole")) == []


def test_a_stopping_server_waits_for_answers_up_to_its_grace_period() -> None:
    async def main() -> None:
        release, entered = asyncio.Event(), asyncio.Event()

        async def slow(request: pb.CreateTopicRequest, context: Any) -> pb.CreateTopicReply:
            entered.set()
            await release.wait()
            return pb.CreateTopicReply()

        calls = Metering(Told())
        server = grpc.aio.server(interceptors=[calls])
        unary = grpc.unary_unary_rpc_method_handler(
            slow,  # type: ignore[arg-type]
            request_deserializer=pb.CreateTopicRequest.FromString,
            response_serializer=pb.CreateTopicReply.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tinymq.v1.Admin", {"CreateTopic": unary}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/tinymq.v1.Admin/CreateTopic")(b"", timeout=20)
            await entered.wait()
            await calls.answered(0.01)
            assert not call.done()
            answered = asyncio.ensure_future(calls.answered(20))
            release.set()
            await answered
            await server.stop(None)
            assert await call.code() is grpc.StatusCode.OK

    asyncio.run(main())
