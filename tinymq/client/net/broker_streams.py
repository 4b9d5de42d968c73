"""One produce stream per broker, shared by all partitions and producers of a client (fetch_streams.py has the other).

It opens a connection when it is first needed, and again after that has broken. A break ends every batch that waits for
its answer: with BrokerUnreachable if it was never written, else with OutcomeUnknown. A connection that the broker will
end takes no more batches; once those under way are answered, another one is opened. Small batches that wait together
are sent in one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from tinymq.base.clock import Clock
from tinymq.base.config import MIB
from tinymq.base.errors import BrokerUnreachable, Closed, Denied, InvalidConfig, OutcomeUnknown, TinymqError
from tinymq.client.net.ports import Link, PackedBatch, ProduceStream
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import BATCHES_MAX

MESSAGE_BYTES = MIB  # small batches are joined up to this size
UNANSWERED_BYTES_MAX = 16 * MIB  # of one produce stream; half of what a broker takes in by default
THROTTLED_S_MAX = 60.0  # the longest silence that a throttling broker may announce


class StreamState(Enum):
    """The state of a produce stream's connection."""

    IDLE = 0
    OPENING = 1
    OPEN = 2
    CLOSED = 3


class BrokerObserver(Protocol):
    """The listener to what streams learn of a broker. The cluster implements it."""

    def opened(self, address: str) -> None: ...
    def answered(self, address: str, latency_s: float) -> None: ...
    def broke(self, address: str, error: TinymqError) -> None: ...


Answered = Callable[[pb.ProduceResult | TinymqError], None]


class BrokerProduceStream:
    """The stream of batches to one broker. The calls in `changed` are made when it opens, breaks, or has room again."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        observer: BrokerObserver,
        open_timeout_s: float,
        changed: Iterable[Callable[[], None]],
    ) -> None:
        self.state = StreamState.IDLE
        self._changed = changed
        self._link = link
        self._clock = clock
        self._observer = observer
        self._open_timeout_s = open_timeout_s
        self._task: asyncio.Task[None] | None = None
        self._stream: ProduceStream | None = None
        self._outbox: deque[tuple[int, PackedBatch, int]] = deque()  # (request id, batch, bytes) not written yet
        self._written = asyncio.Event()  # the transport has every submitted batch, or the stream is broken
        self._written.set()
        self._more: asyncio.Future[None] | None = None  # ends the writer's wait for another batch
        self._waiting: dict[int, tuple[Answered, int, float]] = {}  # by request id: (on_answer, bytes, since)
        self._unanswered_bytes = 0  # invariant: the sum of the bytes in _waiting
        self._leaving = False  # the broker will end this connection
        self._unacknowledged = False  # a batch without an answer was submitted on this connection
        self._left: set[asyncio.Task[None]] = set()  # connections with such batches, until the broker ends them
        self._was_full = False  # until half of the bytes are answered, so that `changed` is not called for every batch
        self._heard_s = 0.0  # of the last answer, or of the end of a silence that the broker has announced

    @property
    def full(self) -> bool:
        """Is there no room for another batch? `changed` is called when there is."""
        if self._leaving:
            return True
        if self._unanswered_bytes >= UNANSWERED_BYTES_MAX:
            self._was_full = True
        return self._was_full

    def open(self) -> None:
        """Start to open the connection, unless it is open or opening."""
        if self.state is StreamState.IDLE:
            self.state = StreamState.OPENING
            self._task = asyncio.create_task(self._run())

    def submit(self, request_id: int, batch: PackedBatch, size: int, on_answer: Answered | None) -> None:
        """Send one batch of `size` bytes. `on_answer` is called once, with the answer or the error that broke the
        stream. None: the batch has no answer (acks "none")."""
        assert self.state is StreamState.OPEN, "submitted to a stream that is not open"
        self._outbox.append((request_id, batch, size))
        self._written.clear()
        if on_answer is not None:
            self._waiting[request_id] = (on_answer, size, self._clock.monotonic())
            self._unanswered_bytes += size
        else:
            self._unacknowledged = True
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def written(self) -> None:
        """Wait until the transport has taken every submitted batch, or the stream has broken.

        Nothing else shows that a batch without an answer has left this process.
        """
        await self._written.wait()

    def silent_for(self, now_s: float) -> float:
        """Return the seconds since the broker last answered, 0 while no batch waits for an answer."""
        if not self._waiting:
            return 0.0
        since_s = next(iter(self._waiting.values()))[2]
        return now_s - max(since_s, self._heard_s)

    def reset(self) -> None:
        """Break the connection: the outcome of all unanswered batches is unknown."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        """End the stream for good."""
        self.state = StreamState.CLOSED
        task, self._task = self._task, None
        tasks = [*self._left, *([task] if task is not None else [])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        error: TinymqError = Closed("the client is closed")
        writer: asyncio.Task[None] | None = None
        try:
            self._stream = stream = await self._link.open_produce(self._open_timeout_s)
            self.state = StreamState.OPEN
            self._observer.opened(self._link.address)
            self._tell_changed()
            writer = asyncio.create_task(self._write(stream))
            while not (self._leaving and not self._waiting):
                self._take(await stream.read())
            await self._written.wait()
            error = BrokerUnreachable("the broker asked for another connection")
        except TinymqError as broken:
            error = broken
        except asyncio.CancelledError:
            self.state = StreamState.CLOSED  # `close` cancels this task, and so does the end of the event loop
            raise
        finally:
            if writer is not None:
                writer.cancel()
            if self._stream is not None:
                self._let_go(self._stream)
            self._end(error)

    def _let_go(self, stream: ProduceStream) -> None:
        """End a connection. If the broker may still have batches without an answer to read, it ends it itself."""
        if not (self._leaving and self._unacknowledged and self.state is StreamState.OPEN):
            stream.cancel()
            return
        task = asyncio.create_task(_until_ended(stream))
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def _write(self, stream: ProduceStream) -> None:
        outbox = self._outbox
        try:
            while True:
                if not outbox:
                    self._written.set()
                    self._more = asyncio.get_running_loop().create_future()
                    await self._more
                batches: list[PackedBatch] = []
                size = 0
                while outbox and len(batches) < BATCHES_MAX and (not batches or size + outbox[0][2] <= MESSAGE_BYTES):
                    _, batch, batch_bytes = outbox.popleft()
                    batches.append(batch)
                    size += batch_bytes
                await stream.write(batches)
        except TinymqError:
            stream.cancel()  # the reader gets the error, and ends the stream

    def _take(self, reply: pb.ProduceReply) -> None:
        self._leaving = self._leaving or reply.ending
        now_s = self._clock.monotonic()
        throttled_ms = max((result.throttled_ms for result in reply.results), default=0)
        self._heard_s = now_s + patience_s(throttled_ms)  # a silence that was announced is no sign of a dead broker
        for result in reply.results:
            waiting = self._waiting.pop(result.request_id, None)
            if waiting is not None:
                on_answer, size, since_s = waiting
                self._unanswered_bytes -= size
                self._observer.answered(self._link.address, now_s - since_s)
                on_answer(result)
        if self._was_full and self._unanswered_bytes <= UNANSWERED_BYTES_MAX // 2:
            self._was_full = False
            self._tell_changed()

    def _end(self, error: TinymqError) -> None:
        unsent = {request_id for request_id, _, _ in self._outbox}
        waiting, self._waiting = self._waiting, {}
        self._outbox.clear()
        self._written.set()
        self._unanswered_bytes = 0
        self._was_full = False
        self._stream = None
        asked, self._leaving, self._unacknowledged = self._leaving, False, False
        if self.state is not StreamState.CLOSED:
            self.state = StreamState.IDLE
            if not asked:
                self._observer.broke(self._link.address, error)
        for request_id, (on_answer, _, _) in waiting.items():
            on_answer(of_attempt(error, sent=request_id not in unsent))
        self._tell_changed()

    def _tell_changed(self) -> None:
        for call in list(self._changed):
            call()


async def _until_ended(stream: ProduceStream) -> None:
    """Wait for the broker to end a connection that has nothing to answer any more."""
    try:
        while True:
            await stream.read()
    except TinymqError:
        pass  # it has ended
    finally:
        stream.cancel()


def patience_s(throttled_ms: int) -> float:
    """Return how much longer to wait for a broker that delays this client's answers to keep its quota."""
    return min(throttled_ms / 1000, THROTTLED_S_MAX)


def of_attempt(error: TinymqError, *, sent: bool) -> TinymqError:
    """Return what a broken connection means for one request."""
    if sent:
        return error if isinstance(error, OutcomeUnknown) else OutcomeUnknown(error.message)
    final = isinstance(error, BrokerUnreachable | Denied | InvalidConfig)  # the last two: of a token
    return error if final else BrokerUnreachable(error.message)
