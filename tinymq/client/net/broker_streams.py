"""One produce and one fetch stream per broker, shared by all partitions, producers and readers of a client.

Each object here opens a connection when it is first needed, and again after that has broken. A break ends every request
that waits for its answer: with BrokerUnreachable if the request was never written, else with OutcomeUnknown. Small
batches that wait together are sent in one message.
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
from tinymq.client.net.ports import Fetched, FetchStream, Link, PackedBatch, ProduceStream
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import BATCHES_MAX

MESSAGE_BYTES = MIB  # small batches are joined up to this size
UNANSWERED_BYTES_MAX = 16 * MIB  # of one produce stream; half of what a broker takes in by default
SLOW_TIMES_MAX = 4  # a fetch waits at most this many times its timeout, while the answers of other fetches arrive
THROTTLED_S_MAX = 60.0  # the longest silence that a throttling broker may announce


class State(Enum):
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
        self.state = State.IDLE
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
        self._was_full = False  # until half of the bytes are answered, so that `changed` is not called for every batch
        self._heard_s = 0.0  # of the last answer, or of the end of a silence that the broker has announced

    @property
    def full(self) -> bool:
        """Is there no room for another batch? `changed` is called when there is."""
        if self._unanswered_bytes >= UNANSWERED_BYTES_MAX:
            self._was_full = True
        return self._was_full

    def open(self) -> None:
        """Start to open the connection, unless it is open or opening."""
        if self.state is State.IDLE:
            self.state = State.OPENING
            self._task = asyncio.create_task(self._run())

    def submit(self, request_id: int, batch: PackedBatch, size: int, on_answer: Answered | None) -> None:
        """Send one batch of `size` bytes. `on_answer` is called once, with the answer or the error that broke the
        stream. None: the batch has no answer (acks "none")."""
        assert self.state is State.OPEN, "submitted to a stream that is not open"
        self._outbox.append((request_id, batch, size))
        self._written.clear()
        if on_answer is not None:
            self._waiting[request_id] = (on_answer, size, self._clock.monotonic())
            self._unanswered_bytes += size
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
        self.state = State.CLOSED
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        error: TinymqError = Closed("the client is closed")
        writer: asyncio.Task[None] | None = None
        try:
            self._stream = stream = await self._link.open_produce(self._open_timeout_s)
            self.state = State.OPEN
            self._observer.opened(self._link.address)
            self._tell_changed()
            writer = asyncio.create_task(self._write(stream))
            while True:
                self._take(await stream.read())
        except TinymqError as broken:
            error = broken
        except asyncio.CancelledError:
            self.state = State.CLOSED  # `close` cancels this task, and so does the end of the event loop
            raise
        finally:
            if writer is not None:
                writer.cancel()
            if self._stream is not None:
                self._stream.cancel()
            self._end(error)

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
        if self.state is not State.CLOSED:
            self.state = State.IDLE
            self._observer.broke(self._link.address, error)
        for request_id, (on_answer, _, _) in waiting.items():
            on_answer(_of_attempt(error, sent=request_id not in unsent))
        self._tell_changed()

    def _tell_changed(self) -> None:
        for call in list(self._changed):
            call()


def patience_s(throttled_ms: int) -> float:
    """Return how much longer to wait for a broker that delays this client's answers to keep its quota."""
    return min(throttled_ms / 1000, THROTTLED_S_MAX)


def _of_attempt(error: TinymqError, *, sent: bool) -> TinymqError:
    """Return what a broken connection means for one request."""
    if sent:
        return error if isinstance(error, OutcomeUnknown) else OutcomeUnknown(error.message)
    final = isinstance(error, BrokerUnreachable | Denied | InvalidConfig)  # the last two: of a token
    return error if final else BrokerUnreachable(error.message)


class BrokerFetchStream:
    """The stream of fetches from one broker."""

    def __init__(self, link: Link, clock: Clock, observer: BrokerObserver, open_timeout_s: float) -> None:
        self._link = link
        self._clock = clock
        self._observer = observer
        self._open_timeout_s = open_timeout_s
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None  # None: neither open nor opening
        self._outbox: asyncio.Queue[pb.FetchRequest] = asyncio.Queue()  # bounded by the fetches that wait
        self._waiting: dict[int, asyncio.Future[Fetched]] = {}  # by request id
        self._limits: dict[int, asyncio.Timeout] = {}  # the timeouts of the same fetches
        self._throttled_until_s = 0.0  # the end of a silence that the broker has announced
        self._next_id = 0
        self._heard_s = 0.0  # of the last answer to any fetch
        self._stream: FetchStream | None = None
        self._closed = False

    async def fetch(self, request: pb.FetchRequest, timeout_s: float) -> Fetched:
        """Send one request and return its answer.

        Raises BrokerUnreachable if there is no connection, if it breaks, or if the broker is silent for `timeout_s`: no
        answer has come, and no bytes of one are arriving.
        """
        started_s = self._clock.monotonic()
        timeout_s += max(0.0, self._throttled_until_s - started_s)
        await self._open()
        self._next_id += 1
        request_id = request.request_id = self._next_id
        self._outbox.put_nowait(request)
        try:
            # On a slow link a large answer, or those of other fetches before it, may take longer than the timeout. As
            # long as bytes arrive the broker is alive, and the wait starts again, up to a bound.
            while True:
                received = self._received()
                answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
                self._waiting[request_id] = answer
                try:
                    async with asyncio.timeout(timeout_s) as self._limits[request_id]:
                        return await answer
                except TimeoutError:
                    if answer.done() and not answer.cancelled():
                        return answer.result()
                    if self._received() == received or not self._has_time(started_s, timeout_s):
                        raise self._silent(started_s) from None
        finally:
            self._limits.pop(request_id, None)
            if self._waiting.pop(request_id, None) is not None and self._stream is not None:
                self._outbox.put_nowait(pb.FetchRequest(request_id=request_id, cancel=True))

    def _received(self) -> int:
        """Return the number of bytes received so far, of whole answers or not."""
        return 0 if self._stream is None else self._stream.received_bytes

    def _has_time(self, started_s: float, timeout_s: float) -> bool:
        """May a fetch wait longer while bytes arrive? If no answer came since, they are of its own: without a bound."""
        return self._heard_s < started_s or self._clock.monotonic() - started_s < SLOW_TIMES_MAX * timeout_s

    def _silent(self, started_s: float) -> BrokerUnreachable:
        silent_s = self._clock.monotonic() - started_s
        error = BrokerUnreachable(f"{self._link.address}: silent for {silent_s:.1f} s")
        self._observer.broke(self._link.address, error)
        if self._heard_s < started_s and self._stream is not None:
            self._stream.cancel()  # the broker has answered no other fetch either
        return error

    async def close(self) -> None:
        """End the stream for good."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _open(self) -> None:
        if self._closed:
            raise Closed("the client is closed")
        if self._stream is not None:
            return
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._opened))
        await asyncio.shield(self._opened)

    async def _run(self, opened: asyncio.Future[None]) -> None:
        error: TinymqError = Closed("the client is closed")
        writer: asyncio.Task[None] | None = None
        try:
            self._stream = stream = await self._link.open_fetch(self._open_timeout_s)
            opened.set_result(None)
            writer = asyncio.create_task(self._write(stream))
            while True:
                fetched = await stream.read()
                self._heard_s = self._clock.monotonic()
                if fetched.throttled_ms:
                    self._wait_longer(patience_s(fetched.throttled_ms))
                answer = self._waiting.pop(fetched.request_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(fetched)
        except TinymqError as broken:
            error = broken
        except asyncio.CancelledError:
            self._closed = True  # `close` cancels this task, and so does the end of the event loop
            raise
        finally:
            if writer is not None:
                writer.cancel()
            if self._stream is not None:
                self._stream.cancel()
            self._end(error, opened)

    def _wait_longer(self, seconds: float) -> None:
        self._throttled_until_s = self._clock.monotonic() + seconds
        for limit in self._limits.values():
            when_s = limit.when()
            if when_s is not None and not limit.expired():
                limit.reschedule(when_s + seconds)

    async def _write(self, stream: FetchStream) -> None:
        try:
            while True:
                await stream.write(await self._outbox.get())
        except TinymqError:
            stream.cancel()  # the reader gets the error, and ends the stream

    def _end(self, error: TinymqError, opened: asyncio.Future[None]) -> None:
        self._stream = None
        self._opened = None
        self._outbox = asyncio.Queue()
        waiting, self._waiting = self._waiting, {}
        if not self._closed:
            self._observer.broke(self._link.address, error)
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(_of_attempt(error, sent=False))
        if not opened.done():
            opened.set_exception(_of_attempt(error, sent=False))
            opened.exception()  # marked as retrieved, because no fetch may be waiting any more
