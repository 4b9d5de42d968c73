"""One fetch stream per broker, shared by all partitions and readers of a client.

It opens a connection when it is first needed, and again after that has broken. A break ends every fetch that waits with
BrokerUnreachable. A connection that the broker will end gets no more fetches, and ends with its last answer.
"""

from __future__ import annotations

import asyncio

from tinymq.base.clock import Clock
from tinymq.base.errors import BrokerUnreachable, Closed, TinymqError
from tinymq.client.net.broker_streams import BrokerObserver, of_attempt, patience_s
from tinymq.client.net.ports import Fetched, FetchStream, Link
from tinymq.proto import tinymq_pb2 as pb

SLOW_TIMES_MAX = 4  # a fetch waits at most this many times its timeout, while the answers of other fetches arrive


class _Connection:
    """One connection, from the attempt to open it to its end, and what waits on it."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outbox: asyncio.Queue[pb.FetchRequest] = asyncio.Queue()  # bounded by the fetches that wait
        self.waiting: dict[int, asyncio.Future[Fetched]] = {}  # by request id
        self.limits: dict[int, asyncio.Timeout] = {}  # the timeouts of the same fetches
        self.stream: FetchStream | None = None  # None: it is not open yet, or no longer
        self.heard_s = 0.0  # of the last answer to any fetch
        self.leaving = False  # the broker will end it

    def received(self) -> int:
        """Return the number of bytes received so far, of whole answers or not."""
        return 0 if self.stream is None else self.stream.received_bytes

    def take(self, fetched: Fetched) -> None:
        """Give an answer to the fetch that waits for it."""
        answer = self.waiting.pop(fetched.request_id, None)
        if answer is not None and not answer.done():
            answer.set_result(fetched)

    def wait_longer(self, seconds: float) -> None:
        for limit in self.limits.values():
            when_s = limit.when()
            if when_s is not None and not limit.expired():
                limit.reschedule(when_s + seconds)

    def end(self, error: TinymqError) -> None:
        """End every fetch that waits."""
        self.stream = None
        waiting, self.waiting = self.waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(of_attempt(error, sent=False))
        if not self.opened.done():
            self.opened.set_exception(of_attempt(error, sent=False))
            self.opened.exception()  # marked as retrieved, because no fetch may be waiting any more


class BrokerFetchStream:
    """The stream of fetches from one broker."""

    def __init__(self, link: Link, clock: Clock, observer: BrokerObserver, open_timeout_s: float) -> None:
        self._link = link
        self._clock = clock
        self._observer = observer
        self._open_timeout_s = open_timeout_s
        self._connection: _Connection | None = None  # for new fetches; None: neither open nor opening
        self._tasks: set[asyncio.Task[None]] = set()  # of this connection, and of those that have answers to come
        self._throttled_until_s = 0.0  # the end of a silence that the broker has announced
        self._next_id = 0
        self._closed = False

    async def fetch(self, request: pb.FetchRequest, timeout_s: float) -> Fetched:
        """Send one request and return its answer.

        Raises BrokerUnreachable if there is no connection, if it breaks, or if the broker is silent for `timeout_s`: no
        answer has come, and no bytes of one are arriving.
        """
        started_s = self._clock.monotonic()
        timeout_s += max(0.0, self._throttled_until_s - started_s)
        connection = await self._open()
        self._next_id += 1
        request_id = request.request_id = self._next_id
        connection.outbox.put_nowait(request)
        try:
            # On a slow link a large answer, or those of other fetches before it, may take longer than the timeout. As
            # long as bytes arrive the broker is alive, and the wait starts again, up to a bound.
            while True:
                received = connection.received()
                answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
                connection.waiting[request_id] = answer
                try:
                    async with asyncio.timeout(timeout_s) as connection.limits[request_id]:
                        return await answer
                except TimeoutError:
                    if answer.done() and not answer.cancelled():
                        return answer.result()
                    if connection.received() == received or not self._has_time(connection, started_s, timeout_s):
                        raise self._silent(connection, started_s) from None
        finally:
            connection.limits.pop(request_id, None)
            if connection.waiting.pop(request_id, None) is not None and connection.stream is not None:
                connection.outbox.put_nowait(pb.FetchRequest(request_id=request_id, cancel=True))

    def _has_time(self, connection: _Connection, started_s: float, timeout_s: float) -> bool:
        """May a fetch wait longer while bytes arrive? Without a bound if no answer has come since it began, because the
        bytes are then those of its own answer."""
        return connection.heard_s < started_s or self._clock.monotonic() - started_s < SLOW_TIMES_MAX * timeout_s

    def _silent(self, connection: _Connection, started_s: float) -> BrokerUnreachable:
        silent_s = self._clock.monotonic() - started_s
        error = BrokerUnreachable(f"{self._link.address}: silent for {silent_s:.1f} s")
        self._observer.broke(self._link.address, error)
        if connection.heard_s < started_s and connection.stream is not None:
            connection.stream.cancel()  # the broker has answered no other fetch either
        return error

    async def close(self) -> None:
        """End the stream for good."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self) -> _Connection:
        if self._closed:
            raise Closed("the client is closed")
        connection = self._connection
        if connection is None:
            connection = self._connection = _Connection()
            task = asyncio.create_task(self._run(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if connection.stream is None:
            await asyncio.shield(connection.opened)
        return connection

    async def _run(self, connection: _Connection) -> None:
        error: TinymqError = Closed("the client is closed")
        writer: asyncio.Task[None] | None = None
        try:
            connection.stream = stream = await self._link.open_fetch(self._open_timeout_s)
            connection.opened.set_result(None)
            writer = asyncio.create_task(self._write(connection, stream))
            while not (connection.leaving and not connection.waiting):
                self._take(connection, await stream.read())
        except TinymqError as broken:
            error = broken
        except asyncio.CancelledError:
            self._closed = True  # `close` cancels this task, and so does the end of the event loop
            raise
        finally:
            if writer is not None:
                writer.cancel()
            if connection.stream is not None:
                connection.stream.cancel()
            self._forget(connection)
            if not self._closed and not connection.leaving:
                self._observer.broke(self._link.address, error)
            connection.end(error)

    def _take(self, connection: _Connection, fetched: Fetched) -> None:
        connection.heard_s = self._clock.monotonic()
        if fetched.throttled_ms:
            seconds = patience_s(fetched.throttled_ms)
            self._throttled_until_s = connection.heard_s + seconds
            connection.wait_longer(seconds)
        if fetched.ending:
            connection.leaving = True
            self._forget(connection)
        connection.take(fetched)

    def _forget(self, connection: _Connection) -> None:
        """Let the next fetch open another connection."""
        if self._connection is connection:
            self._connection = None

    async def _write(self, connection: _Connection, stream: FetchStream) -> None:
        try:
            while True:
                await stream.write(await connection.outbox.get())
        except TinymqError:
            stream.cancel()  # the reader gets the error, and ends the stream
