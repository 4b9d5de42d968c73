"""The two streams without a network: their bounds, their coalescing, and what a broken stream leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from grpc._cython import cygrpc
from structlog.testing import capture_logs

from tests.broker.partition.test_partition import Bench
from tests.fakes.batches import payload
from tests.fakes.raw_client import batch
from tinymq.access.caller import Credential
from tinymq.access.stream_guard import StreamGuard
from tinymq.base.config import MIB, Limits, Timing
from tinymq.base.errors import Closed, InvalidRequest, UnknownPartition
from tinymq.broker.partition.admission import PACKED_COST
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.fetch_waits import FetchWaits
from tinymq.broker.serve.slices import SLICE_COST
from tinymq.broker.serve.unpack_queue import UnpackQueue
from tinymq.format.batch import Codec, encode, pack_batch
from tinymq.log.files.runner import InlineRunner
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.broker_state import BrokerState, Serving
from tinymq.rpc.common.fetch_codec import FetchAnswer
from tinymq.rpc.common.reply_stream import GrpcReplies, quiet_departures
from tinymq.rpc.services.fetch import FetchStream
from tinymq.rpc.services.produce import ProduceStream, unpacked

T = b"t" * 16


class OneTopic:
    """Stands in for a Broker with partition 0 of topic T."""

    def __init__(self, partition: Partition, deadlines: Deadlines, limits: Limits) -> None:
        self.partition = partition
        self.deadlines = deadlines
        self.limits = limits
        self.timing = Timing()
        self.env = self
        self.runner = InlineRunner()
        self.unpack_queue = UnpackQueue(self.runner)
        self.fetch_waits = FetchWaits(limits.waiting_fetches_max)

    def find(self, topic_id: bytes, partition: int) -> Partition:
        if partition:
            raise UnknownPartition(f"{topic_id.hex()}/{partition}")
        return self.partition


class Line:
    """Requests that a test sends, and replies that it reads at any time."""

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
        self.serving.state = BrokerState.RUNNING
        self.serving.broker = OneTopic(self.bench.partition, self.bench.deadlines, limits)  # type: ignore[assignment]

    def produce(self, line: Line) -> asyncio.Task[None]:
        return asyncio.ensure_future(ProduceStream(self.serving, line, self.guard()).run(unpacked(line.incoming())))

    def guard(self) -> StreamGuard:
        return self.serving.gate.guard(Credential("127.0.0.1"), "test")

    def fetch(self, line: Line) -> asyncio.Task[None]:
        return asyncio.ensure_future(FetchStream(self.serving, line, self.limits, self.guard()).run(line.incoming()))


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


def test_results_that_are_ready_together_travel_together() -> None:
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
        assert results(line) == [2], "the refusal does not wait for the other request"
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


def test_unread_refusals_are_bounded() -> None:
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


def test_unread_acknowledgements_are_bounded() -> None:
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


def appended(s: Streams) -> int:
    """Batches in the log; its first entry is the leader's NOOP."""
    return len(s.bench.group.log.entries) - 1


class Turns:
    """Counts the turns of the loop, and the accepted requests at the end of each turn."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.counts = [0]
        self._count = count
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            self.counts.append(self._count())
            await asyncio.sleep(0)

    def most(self) -> int:
        """In one turn."""
        self._task.cancel()
        return max(later - earlier for earlier, later in pairwise(self.counts))


@pytest.mark.parametrize(("codec", "cost"), [(Codec.NONE, 1), (Codec.ZSTD, PACKED_COST)])
def test_a_request_with_many_batches_is_taken_in_slices(codec: Codec, cost: int) -> None:
    async def scenario(s: Streams) -> None:
        lines = [Line() for _ in range(3)]
        streams = [s.produce(line) for line in lines]
        turns = Turns(lambda: appended(s))
        for line in lines:
            made = [batch(T, payload(codec=codec), n, acks=pb.ACKS_NONE) for n in range(200)]
            line.send(pb.ProduceRequest(batches=made))
            line.end()
        await asyncio.gather(*streams)
        assert appended(s) == 600
        assert turns.most() <= len(lines) * SLICE_COST // cost, "at first a slice of each, then one of all"
        assert sorted(later - earlier for earlier, later in pairwise(turns.counts))[-4] <= SLICE_COST // cost

    run(scenario)


def test_batches_that_are_refused_are_taken_in_slices_too() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        refused = 0

        def count(call: str, code: str) -> None:
            nonlocal refused
            refused += 1

        s.serving.meter.refused = count  # type: ignore[method-assign]
        stream = s.produce(line)
        turns = Turns(lambda: refused)
        line.send(pb.ProduceRequest(batches=[pb.ProduceBatch(acks=pb.ACKS_NONE, partition=1)] * 500))
        line.end()
        await stream
        assert refused == 500
        assert turns.most() <= SLICE_COST

    run(scenario)


def test_a_stream_has_so_many_unanswered_batches_and_no_more() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()
        stream = s.produce(line)
        line.send(pb.ProduceRequest(batches=[batch(T, payload(), n) for n in range(10)]))
        for upto in (4, 8, 10):
            await settle()
            assert appended(s) == upto
            s.bench.group.commit()
        line.end()
        await stream
        assert results(line) == list(range(10))

    run(scenario, stream_requests_max=4)


def test_requests_before_a_refused_one_are_answered_first() -> None:
    async def scenario(s: Streams) -> None:
        line = Line()

        async def arriving() -> AsyncIterator[Any]:
            yield [(batch(T, payload(), 1), payload())]
            raise InvalidRequest("too many")

        stream = asyncio.ensure_future(ProduceStream(s.serving, line, s.guard()).run(arriving()))
        await settle()
        assert not stream.done()
        s.bench.group.commit()
        with pytest.raises(InvalidRequest):
            await stream
        assert results(line) == [1]

    run(scenario)


def test_large_batches_are_not_unpacked_on_the_loop() -> None:
    """Whatever the codec byte claims; answers keep the order of the stream."""

    async def scenario(s: Streams) -> None:
        calls: list[object] = []
        queue = s.serving.running().unpack_queue
        queued = queue.run

        async def counted(call: Callable[[], Any]) -> Any:
            calls.append(call)
            return await queued(call)

        queue.run = counted  # type: ignore[method-assign,assignment]
        message = encode(None, [bytes(MIB)] * 7, None, [1] * 7, Codec.ZSTD)
        bomb = pack_batch(message, record_count=7, codec=Codec.NONE)
        line = Line()
        stream = s.produce(line)
        sent = [bomb, payload(), bomb, payload(3, codec=Codec.ZSTD)]
        line.send(pb.ProduceRequest(batches=[batch(T, data, n) for n, data in enumerate(sent)]))
        line.end()
        await settle()
        s.bench.group.commit()
        await stream
        assert len(calls) == 2
        (reply,) = line.replies
        assert [result.base_offset for result in reply.results] == [0, 7, 8, 15]

    run(scenario)


class Broken(Line):
    """Where writing fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def write(self, message: Any) -> None:
        raise self._error


def test_a_bug_of_a_writer_is_logged() -> None:
    async def scenario(s: Streams) -> None:
        line = Broken(ValueError("a bug"))
        stream = s.produce(line)
        line.send(pb.ProduceRequest(batches=[pb.ProduceBatch()]))
        with capture_logs() as logs:
            await settle()
        assert [log["event"] for log in logs] == ["stream_writer_failed"]
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    run(scenario)


def test_a_client_that_leaves_in_the_middle_of_an_answer_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a task of its writer nor one of gRPC is left."""

    async def scenario(s: Streams) -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        for begin, request in ((s.produce, pb.ProduceRequest(batches=[pb.ProduceBatch()])), (s.fetch, ask(1, 99))):
            for ends in (True, False):
                line = Broken(Closed("the client has gone"))
                stream = begin(line)
                line.send(request)
                await settle()
                if ends:
                    line.end()
                    await stream
                else:
                    stream.cancel()
                    await asyncio.gather(stream, return_exceptions=True)
                del stream
        gc.collect()
        await settle()
        assert not problems
        with pytest.raises(Closed):
            await GrpcReplies(Broken(cygrpc.ExecuteBatchError("send"))).write(pb.ProduceReply())  # type: ignore[arg-type]

    run(scenario)
    quiet_departures()
    grpcs = logging.getLogger("grpc._cython.cygrpc")
    for error in (cygrpc.ExecuteBatchError("send"), ValueError("a bug")):
        grpcs.error("raised", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records if record.name == grpcs.name and record.exc_info] == [
        ValueError
    ]


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
        assert len(reads) == (3 if cold else 1), "the replies that fit into the bound, or the reply in transmission"
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
        assert len(s.bench.deadlines) == 0, "nothing waits for a reader that has left"

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


def test_a_broker_has_so_many_waiting_fetches_and_no_more() -> None:
    """The stream with the most waits gives way to the others."""

    async def scenario(s: Streams) -> None:
        greedy, modest = Line(), Line()
        streams = [s.fetch(greedy), s.fetch(modest)]
        for number in range(6):
            greedy.send(ask(number, max_wait_ms=60_000))
        await settle()
        assert [(reply.request_id, reply.error.code) for reply in greedy.replies] == [
            (4, "QuotaExceeded"),
            (5, "QuotaExceeded"),
        ]
        assert greedy.replies[0].error.retriable
        modest.send(ask(1, max_wait_ms=60_000))
        await settle()
        assert modest.replies == []
        assert (greedy.replies[2].request_id, greedy.replies[2].HasField("error")) == (0, False), "it ended early"
        waits = s.serving.running().fetch_waits
        assert len(waits) == 4
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        assert len(waits) == 0

    run(scenario, waiting_fetches_max=4)


def test_a_record_wakes_the_waiting_fetches_of_its_own_partition_only() -> None:
    async def scenario(s: Streams) -> None:
        other = Bench()
        looked: list[object] = []
        other.partition.watch(lambda: looked.append(other))
        line = Line()
        stream = s.fetch(line)
        line.send(ask(1))
        await settle()
        s.bench.send()
        s.bench.group.commit()
        await settle()
        assert [reply.request_id for reply in line.replies] == [1]
        assert not looked
        line.end()
        await stream

    run(scenario)
