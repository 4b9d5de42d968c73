"""The two streams without a network: what they bound, what they coalesce, what a broken stream leaves behind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.broker.test_partition import Bench
from tests.fakes.batches import payload
from tests.fakes.raw_client import batch
from tinymq.broker.deadlines import Deadlines
from tinymq.broker.partition import Partition
from tinymq.config import Limits, Timing
from tinymq.errors import UnknownPartition
from tinymq.log.runner import InlineRunner
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.fetch import FetchStream
from tinymq.rpc.packing import FetchAnswer
from tinymq.rpc.produce import ProduceStream, unpacked
from tinymq.rpc.serving import Serving, State

T = b"t" * 16


class OneTopic:
    """Stands for a Broker that holds partition 0 of topic T."""

    def __init__(self, partition: Partition, deadlines: Deadlines, limits: Limits) -> None:
        self.partition = partition
        self.deadlines = deadlines
        self.limits = limits
        self.timing = Timing()
        self.around = self
        self.runner = InlineRunner()

    def find(self, topic_id: bytes, partition: int) -> Partition:
        if partition:
            raise UnknownPartition(f"{topic_id.hex()}/{partition}")
        return self.partition


class Line:
    """Requests that a test sends, and replies that it reads when it likes."""

    def __init__(self, room: int = 1000) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: list[Any] = []
        self.room = asyncio.Semaphore(room)

    def send(self, request: object) -> None:
        self.requests.put_nowait(request)

    def end(self) -> None:
        self.requests.put_nowait(None)

    async def incoming(self) -> AsyncIterator[Any]:
        while (request := await self.requests.get()) is not None:
            yield request

    async def write(self, message: Any) -> None:
        await self.room.acquire()
        packed = isinstance(message, FetchAnswer)
        self.replies.append(pb.FetchReply.FromString(message.SerializeToString()) if packed else message)


class Streams:
    def __init__(self, limits: Limits) -> None:
        self.bench = Bench()
        self.limits = limits
        self.serving = Serving()
        self.serving.state = State.RUNNING
        self.serving.broker = OneTopic(self.bench.partition, self.bench.deadlines, limits)  # type: ignore[assignment]

    def produce(self, line: Line) -> asyncio.Task[None]:
        return asyncio.ensure_future(ProduceStream(self.serving, line).run(unpacked(line.incoming())))

    def fetch(self, line: Line) -> asyncio.Task[None]:
        return asyncio.ensure_future(FetchStream(self.serving, line, self.limits).run(line.incoming()))


def run(scenario: Callable[[Streams], Coroutine[Any, Any, None]], **limits: int) -> None:
    async def main() -> None:
        await scenario(Streams(dataclasses.replace(Limits(), **limits)))

    asyncio.run(main())


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def ask(number: int, offset: int = 0, **fields: int) -> pb.FetchRequest:
    settings = {"max_bytes": 1, "min_bytes": 1, "max_wait_ms": 1000} | fields
    return pb.FetchRequest(request_id=number, topic_id=T, offset=offset, **settings)


def results(line: Line) -> list[int]:
    return [result.request_id for reply in line.replies for result in reply.results]


# ---- produce ---------------------------------------------------------------------------------------------


def test_what_is_ready_together_travels_together() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.produce(line)
        line.send(pb.ProduceRequest(batches=[batch(T, payload(), n) for n in range(10)]))
        line.send(pb.ProduceRequest(batches=[batch(T, payload(), 10)]))
        await settle()
        assert line.replies == []
        s.bench.group.commit()
        await settle()
        assert results(line) == list(range(11))
        assert len(line.replies) == 1
        line.end()
        await stream

    run(scenario)


def test_a_stream_ends_when_everything_is_answered() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.produce(line)
        line.send(pb.ProduceRequest(batches=[batch(T, payload(), 1), batch(T, payload(), 2, partition=1)]))
        line.end()
        await settle()
        assert results(line) == [2], "the refusal does not wait for the other"
        assert not stream.done()
        s.bench.group.commit()
        await stream
        assert results(line) == [2, 1]

    run(scenario)


def test_over_the_bound_the_stream_is_not_read() -> None:
    data = payload(1, value=b"x" * 1000)

    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.produce(line)
        for number in range(20):
            line.send(pb.ProduceRequest(batches=[batch(T, data, number)]))
        await settle()
        appended = len(s.bench.group.log.entries) - 1
        assert appended == 4 * len(data) // len(data), "four of them fit"
        s.bench.group.commit()
        await settle()
        assert len(s.bench.group.log.entries) - 1 == 2 * appended
        for _ in range(5):
            s.bench.group.commit()
            await settle()
        line.end()
        await stream
        assert results(line) == list(range(20))

    run(
        scenario,
        stream_inflight_bytes_max=4 * len(data) + 1,
        batch_bytes_max=2 * len(data),
        record_bytes_max=2 * len(data),
    )


def test_refusals_that_nobody_reads_are_bounded() -> None:
    async def scenario(s: Streams) -> None:
        line = Line(room=0)
        stream = s.produce(line)
        for number in range(10):
            line.send(pb.ProduceRequest(batches=[batch(T, b"", 1000 * number + n) for n in range(1000)]))
        for _ in range(300):
            await settle()
        assert line.requests.qsize() >= 5, "not read"
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    run(scenario)


def test_acknowledgements_that_nobody_reads_are_bounded() -> None:
    async def scenario(s: Streams) -> None:
        line = Line(room=0)
        stream = s.produce(line)
        data = payload()
        for number in range(100):
            line.send(pb.ProduceRequest(batches=[batch(T, data, 100 * number + n) for n in range(100)]))
            await settle()
            s.bench.group.commit()
        assert line.requests.qsize() >= 50, "not read"
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    run(scenario)


def test_a_stream_that_breaks_leaves_no_waiters_that_matter() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.produce(line)
        line.send(pb.ProduceRequest(batches=[batch(T, payload(), 1)]))
        await settle()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        s.bench.group.commit()
        assert s.bench.partition.high_watermark == 1
        assert line.replies == []

    run(scenario)


# ---- fetch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cold", [False, True])
def test_a_slow_reader_holds_few_answers(cold: bool) -> None:
    async def scenario(s: Streams) -> None:
        for _ in range(30):
            s.bench.send(1)
        s.bench.group.commit()
        log = s.bench.group.log
        log.cold = cold
        reads = []
        frames = log._frames
        log._frames = lambda *span: reads.append(span) or frames(*span)  # type: ignore[method-assign,func-returns-value]
        line = Line(room=0)
        stream = s.fetch(line)
        for number in range(30):
            line.send(ask(number, number, max_bytes=10_000))
        await settle()
        assert len(reads) == (3 if cold else 1), "as many as fit into the bound, or the one that is being written"
        for _ in range(30):
            line.room.release()
            await settle()
        assert sorted(r.request_id for r in line.replies) == list(range(30))
        line.end()
        await stream

    run(
        scenario,
        stream_inflight_bytes_max=30_000,
        fetch_bytes_max=10_000,
        batch_bytes_max=10_000,
        record_bytes_max=10_000,
    )


def test_too_many_fetches_and_two_under_one_number() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.fetch(line)
        line.send(ask(1))
        line.send(ask(1))
        line.send(ask(2))
        line.send(ask(3))
        await settle()
        assert [(r.request_id, r.error.code) for r in line.replies] == [(1, "QuotaExceeded"), (3, "QuotaExceeded")]
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        assert len(s.bench.deadlines) == 0, "nothing waits for a reader that is gone"

    run(scenario, stream_requests_max=2)


def test_a_refusal_does_not_end_a_fetch_that_waits_under_the_same_number() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.fetch(line)
        line.send(ask(1))
        line.send(ask(1))
        await settle()
        s.bench.send(1)
        s.bench.group.commit()
        await settle()
        assert [(r.request_id, r.error.code) for r in line.replies] == [(1, "QuotaExceeded"), (1, "")]
        line.end()
        await stream

    run(scenario)


def test_answers_and_cancellations_while_the_writer_is_busy() -> None:
    async def scenario(s: Streams) -> None:
        line = Line(room=0)
        stream = s.fetch(line)
        for number in range(5):
            line.send(ask(number))
        await settle()
        s.bench.send(1)
        s.bench.group.commit()
        await settle()
        line.send(pb.FetchRequest(request_id=3, cancel=True))
        await settle()
        for _ in range(5):
            line.room.release()
        await settle()
        assert sorted(r.request_id for r in line.replies) == [0, 1, 2, 4]
        line.end()
        await stream

    run(scenario)
