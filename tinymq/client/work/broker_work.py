"""A worker's stream to one broker: writes what its partitions have to say, and tells them what the broker answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from tinymq.base.clock import Clock
from tinymq.base.errors import Closed, TinymqError
from tinymq.client.net.ports import Link, WorkStream
from tinymq.client.net.wire import read_error
from tinymq.client.work.partition_work import PartitionWork
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

SETTLE_MAX = 1_000  # settlements in one message
LEAVE_S = 0.05  # between two looks whether a stream that the broker will end can be left


class BrokerWork:
    """One stream, from `start` until it breaks or `close`. Then all its partitions are detached."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        timeout_s: float,
        arrived: Callable[[PartitionWork], None],
        ended: Callable[[PartitionWork, TinymqError], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`arrived`: the partition has new jobs, or was attached. `ended`: its attachment is over, and why. `failed`: a
        bug has ended the stream, and another one would not help."""
        self.broken = False
        self._link = link
        self._clock = clock
        self._timeout_s = timeout_s
        self._arrived = arrived
        self._ended = ended
        self._failed = failed
        self._works: dict[int, PartitionWork] = {}  # by attachment
        self._attaching: list[PartitionWork] = []
        self._detaching: list[pb.WorkDetach] = []
        self._attachment = 0
        self._request = 0
        self._ping = False
        self._pings: deque[tuple[int, float]] = deque()  # those without an answer: number, and when each was sent
        self._finished = False  # nothing more is sent on the stream
        self._due = asyncio.Event()
        self._heard_s = clock.monotonic()
        self._stream: WorkStream | None = None
        self._writer: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def attach(self, work: PartitionWork) -> None:
        """Attach a partition that this broker leads."""
        self._attaching.append(work)
        self._due.set()

    def send(self) -> None:
        """Send what the partitions have to say."""
        self._due.set()

    def look(self, now_s: float, silence_s: float) -> None:
        """Show a sign of life, and break the stream if the broker shows none for so long."""
        if self._stream is not None and now_s - self._heard_s > silence_s:
            self._stream.cancel()
        self._ping = True
        self._due.set()

    async def close(self) -> None:
        """Leave: end the sessions, so that other workers can have the records that were not started at once."""
        stream = self._stream
        if stream is not None and not self.broken:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if not self._finished:  # otherwise _finish ends the stream
                        if self._finishing is not None:
                            self._finishing.cancel()
                        await self._end_writing()
                        leaving = [pb.WorkDetach(attachment=number, leave=True) for number in self._works]
                        await stream.write(pb.WorkRequest(detach=leaving))
                        await stream.finish()
                    if self._task is not None:
                        await asyncio.wait([self._task])  # the broker ends its side when it has read all of it
            except (TinymqError, TimeoutError) as error:  # its silence will end the session
                LOG.debug("a worker has not left cleanly: %s", error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        error: TinymqError = Closed("the worker is closed")
        try:
            self._stream = stream = await self._link.open_work(self._timeout_s)
            self._heard_s = self._clock.monotonic()
            self._writer = asyncio.create_task(self._write(stream))
            while True:
                reply = await stream.read()
                self._heard_s = self._clock.monotonic()
                self._take(reply)
                if reply.ending and self._finishing is None and not self._finished:
                    self._finishing = asyncio.create_task(self._finish(stream))
        except TinymqError as broken:
            error = broken
        finally:
            self.broken = True
            for task in (self._writer, self._finishing):
                if task is not None:
                    task.cancel()
            if self._stream is not None:
                self._stream.cancel()
            for work in {id(work): work for work in (*self._works.values(), *self._attaching)}.values():
                work.detached()
                self._ended(work, error)

    async def _write(self, stream: WorkStream) -> None:
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                request = self._request_of_all()
                if request is not None:
                    await stream.write(request)
                if self._finished and not self._due.is_set():
                    return
        except TinymqError:
            stream.cancel()  # the reader gets the error, and ends the stream

    async def _end_writing(self) -> None:
        """Wait until the writer has sent what is due. Two writes at once would break the call, and gRPC would not tell
        the broker."""
        self._finished = True
        self._due.set()
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _finish(self, stream: WorkStream) -> None:
        """The broker will end the stream: begin no job, and leave when every settlement is answered.

        Jobs in hand go on, and are listed when their partitions are attached again.
        """
        works = list(self._works.values())
        for work in works:
            work.leaving = True
        while True:
            await self._clock.sleep(LEAVE_S)  # the first pause is for threads that are about to begin a job
            if not any(work.unsent or work.settling for work in works):
                break
        await self._end_writing()
        try:
            await stream.finish()  # then the broker ends its side, and the reader gets the error
        except TinymqError:
            stream.cancel()

    def _request_of_all(self) -> pb.WorkRequest | None:
        """The next message, with everything that is due, up to the bounds of one message.

        If something is left, another message is due.
        """
        now_s, request = self._clock.monotonic(), pb.WorkRequest()
        attaching, self._attaching = self._attaching, []
        for work in attaching:
            self._attachment += 1
            request.attach.append(work.attach(self._attachment, now_s))
            self._works[self._attachment] = work
        for work in self._works.values():
            if len(request.settle) >= SETTLE_MAX:
                self._due.set()
                break
            settles, credits = work.requests(self._next_request)
            request.settle.extend(settles)
            request.credit.extend(credits)
        asks = not self._pings and any(work.asks(now_s) for work in self._works.values())
        ping, self._ping = self._ping or asks, False
        if ping:
            request.ping = self._next_request()
            self._pings.append((request.ping, now_s))
        return request if ping or request.attach or request.settle or request.credit else None

    def _next_request(self) -> int:
        self._request += 1
        return self._request

    def _take(self, reply: pb.WorkReply) -> None:
        now_s = self._clock.monotonic()
        works = self._works
        for attached in reply.attached:
            work = works.get(attached.attachment)
            if work is not None:
                work.on_attached(attached)
                self._arrived(work)
        for granted in reply.granted:
            work = works.get(granted.attachment)
            if work is not None:
                work.on_granted(granted, now_s)
                self._arrived(work)
        for settled in reply.settled:
            work = works.get(settled.attachment)
            if work is not None:
                work.on_settled(settled)
                self._arrived(work)
        for asked in reply.asked:
            work = works.get(asked.attachment)
            if work is not None:
                work.on_asked(asked.grants, now_s)
        for revoked in reply.revoked:
            work = works.get(revoked.attachment)
            if work is not None:
                work.on_lost(revoked.grants, read_error(revoked.error))
        for ended in reply.ended:
            work = works.pop(ended.attachment, None)
            if work is not None and ended.HasField("error"):
                error = read_error(ended.error)
                work.on_ended(error)
                self._ended(work, error)
        if reply.pong:
            self._confirm(reply.pong)
        self._due.set()

    def _confirm(self, pong: int) -> None:
        """The broker has answered a ping, and has told of every grant that was lost before."""
        while self._pings and self._pings[0][0] <= pong:
            _, sent_s = self._pings.popleft()
            for work in self._works.values():
                work.confirmation.on_answer(sent_s)
        for work in self._works.values():
            if work.parked:
                self._arrived(work)
