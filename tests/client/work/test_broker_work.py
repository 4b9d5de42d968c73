"""A worker's stream to one broker, against a stream whose messages a test lets through one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.client.running import run
from tests.client.work.test_partition_work import Place
from tests.fakes.manual_clock import ManualClock
from tinymq.base.clock import Clock, SystemClock
from tinymq.base.errors import OutcomeUnknown
from tinymq.client.net.ports import Link
from tinymq.client.work.broker_work import BrokerWork
from tinymq.client.work.partition_work import PartitionWork
from tinymq.proto import tinymq_pb2 as pb

TIMEOUT_S = 10.0
TIMES = {"lease_ms": 30_000, "session_ms": 10_000, "rejoin_ms": 3_000}


class OneWriter:
    """A stream as gRPC's: a second write beside a first one breaks it, and the reader is never told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.go_on = asyncio.Event()
        self._writing = False
        self._replies: asyncio.Queue[pb.WorkReply | None] = asyncio.Queue()

    async def write(self, request: pb.WorkRequest) -> None:
        await self._alone([field.name for field, _ in request.ListFields()])

    async def finish(self) -> None:
        await self._alone(["finish"])
        self._replies.put_nowait(None)

    async def _alone(self, said: list[str]) -> None:
        assert not self._writing, f"{said} beside another message"
        self._writing = True
        await self.go_on.wait()
        self._writing = False
        self.said += said

    def reply(self, reply: pb.WorkReply) -> None:
        self._replies.put_nowait(reply)

    async def read(self) -> pb.WorkReply:
        reply = await self._replies.get()
        if reply is None:
            raise OutcomeUnknown("the broker ended the stream")
        return reply

    def cancel(self) -> None:
        self._replies.put_nowait(None)


class OneLink:
    def __init__(self, stream: OneWriter) -> None:
        self.stream = stream

    async def open_work(self, timeout_s: float) -> OneWriter:
        return self.stream


def work_of(
    stream: OneWriter, clock: Clock | None = None, arrived: Callable[[PartitionWork], None] = lambda work: None
) -> BrokerWork:
    def failed(error: Exception) -> None:
        raise error

    return BrokerWork(
        cast(Link, OneLink(stream)),
        clock or SystemClock(),
        timeout_s=TIMEOUT_S,
        arrived=arrived,
        ended=lambda work, error: None,
        failed=failed,
    )


async def opened(stream: OneWriter) -> BrokerWork:
    """The work of a broker to which the attachment of a partition is under way."""
    broker = work_of(stream)
    broker.start()
    broker.attach(Place().work)
    while not stream._writing:
        await asyncio.sleep(0)
    return broker


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ending", [False, True])
def test_a_worker_that_leaves_while_it_attaches_says_one_thing_after_the_other(ending: bool) -> None:
    async def scenario() -> None:
        stream = OneWriter()
        broker = await opened(stream)
        if ending:
            stream.reply(pb.WorkReply(ending=True))
            await _turns()
        closing: asyncio.Task[Any] = asyncio.create_task(broker.close())
        await _turns()
        assert stream.said == []
        stream.go_on.set()
        await closing
        assert stream.said == ["attach", "detach", "finish"]

    run(scenario())


def test_what_is_due_is_said_before_a_worker_leaves() -> None:
    async def scenario() -> None:
        stream = OneWriter()
        broker = await opened(stream)
        second = Place().work
        broker.attach(second)
        closing: asyncio.Task[Any] = asyncio.create_task(broker.close())
        await _turns()
        stream.go_on.set()
        await closing
        assert stream.said == ["attach", "attach", "detach", "finish"]

    run(scenario())


def test_a_worker_asks_its_broker_before_it_begins_a_job_after_a_silence() -> None:
    async def scenario() -> None:
        stream, clock, place = OneWriter(), ManualClock(0.0), Place()
        stream.go_on.set()
        resumed: list[int] = []
        broker = work_of(
            stream, clock, lambda work: resumed.extend(job.offset for job in work.resume(clock.monotonic()))
        )
        broker.start()
        broker.attach(place.work)
        await _turns()
        stream.reply(pb.WorkReply(attached=[pb.WorkAttached(attachment=1, term=5, known=True, **TIMES)]))
        await _turns()
        place.grant(0)
        clock.advance(5.0)
        place.work.parked.append(place.work.held[0])
        broker.send()
        await _turns()
        assert (stream.said, resumed) == (["attach", "ping"], [])
        broker.send()
        await _turns()
        assert stream.said == ["attach", "ping"], "one question at a time"
        stream.reply(pb.WorkReply(pong=1))
        await _turns()
        assert resumed == [0]
        await broker.close()

    run(scenario())
