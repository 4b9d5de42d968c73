"""The fetch stream: many fetches wait at once, and each is answered by its own message when it is ready. Bytes are read
when they can be sent. The writer itself reads frames in memory, one answer at a time, so that a slow reader occupies
one answer. Frames on disk are read ahead, up to a bound in bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tinymq.access.stream_guard import Access, StreamGuard
from tinymq.base.config import Limits
from tinymq.base.errors import Closed, QuotaExceeded, TinymqError
from tinymq.base.types import GroupId, TopicId, check_scan_id
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.fetch import Fetch, FetchQuery, FetchResult
from tinymq.broker.serve.fetch_waits import FetchShare
from tinymq.broker.serve.quotas import UNLIMITED, ClientQuota
from tinymq.broker.serve.scans import count_records
from tinymq.broker.serve.slices import Slice
from tinymq.log.segment.reads import StoredFrames
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.fetch_codec import FetchAnswer
from tinymq.rpc.common.reply_stream import start_writer

CALL = "Broker.Fetch"  # to the meter
FILES_MAX = 4  # of a stream, that wait open for their turn


class FetchReplies(Protocol):
    """The sink for a stream's answers."""

    async def write(self, message: FetchAnswer) -> None:
        """Raises Closed when the client has disconnected."""
        ...


@dataclass(slots=True)
class _Asked:
    """A fetch for the meter: its topic, the times of its arrival and of its ready answer, and its scan, if any."""

    topic_id: bytes
    asked_s: float
    ready_s: float = 0.0
    scan: pb.FetchRequest | None = None
    verify: bool = False


class FetchStream:
    """One client's stream, from its opening to its end."""

    def __init__(
        self, serving: Serving, replies: FetchReplies, limits: Limits, guard: StreamGuard,
        share: ClientQuota = UNLIMITED, *, sends_files: bool = False,
    ) -> None:  # fmt: skip
        """`guard` calls `refuse`. `sends_files`: answers may have StoredFrames."""
        self._guard = guard
        self._sends_files = sends_files and not share.limited  # an answer may wait long for its quota
        self._serving = serving
        self._meter = serving.meter
        self._limits = limits
        self._replies = replies
        self._share = share
        self._waiting: dict[int, Fetch] = {}  # by request id: neither answered nor cancelled
        self._asked: dict[int, _Asked] = {}  # of the same fetches
        self._ready: deque[tuple[int, Fetch]] = deque()
        # errors, and answers that were read ahead, with their bytes
        self._messages: deque[tuple[FetchAnswer, int]] = deque()
        self._reading: set[asyncio.Task[None]] = set()
        self._read_ahead_bytes = 0  # bytes requested from the disk, or read and not yet written
        self._slice = Slice(serving.slices)
        self._fetch_share: FetchShare | None = None  # this stream's share of the broker's bound, once a broker runs
        self._ended = False
        self._ending = False  # the client was asked to open another stream, and no fetch waits here any more
        self._wake = asyncio.Event()  # wakes the writer
        self._room = asyncio.Event()  # wakes the reader when there is space

    async def run(self, requests: AsyncIterator[pb.FetchRequest]) -> None:
        """Run until the client has ended its side and every fetch is answered, or until the stream breaks."""
        writer = start_writer(self._write())
        try:
            async for request in requests:
                self._take(request)
                if self._slice.spend(1):
                    await self._slice.rest()
                while len(self._messages) >= self._limits.stream_requests_max:
                    await self._wait_for_room()
            self._ended = True
            self._wake.set()
            with suppress(Closed):  # the client has gone
                await writer
        finally:
            self._ended = True
            writer.cancel()
            for task in self._reading:
                task.cancel()
            for fetch in self._waiting.values():
                fetch.cancel()
            self._messages.clear()  # otherwise their files stay open until the next garbage collection

    def announce_end(self) -> None:
        """Ask the client to continue on another stream, and answer its fetches with what there is now."""
        self._ending = True
        self._messages.append((FetchAnswer(pb.FetchReply(ending=True), b""), 0))
        for fetch in list(self._waiting.values()):
            fetch.expire()
        self._wake.set()

    def refuse(self, access: Access, error: TinymqError) -> None:
        """Answer the waiting fetches of a topic that this stream may not read any more."""
        for number, asked in list(self._asked.items()):
            if asked.topic_id == access[2]:
                self._waiting.pop(number).cancel()
                del self._asked[number]
                self._fail(number, error)

    def _fail(self, number: int, error: TinymqError, offset: int = 0) -> None:
        self._meter.refused(CALL, error.code)
        reply = pb.FetchReply(request_id=number, error=to_wire(error), next_offset=offset)
        self._messages.append((FetchAnswer(reply, b""), 0))
        self._wake.set()

    def _take(self, request: pb.FetchRequest) -> None:
        number = request.request_id
        if request.cancel:
            fetch = self._waiting.pop(number, None)
            if fetch is not None:
                del self._asked[number]
                fetch.cancel()
            return
        try:
            self._begin(number, request, self._serving.running())
        except TinymqError as error:
            self._fail(number, error, request.offset)

    def _begin(self, number: int, request: pb.FetchRequest, broker: Broker) -> None:
        if len(self._waiting) >= broker.limits.stream_requests_max or number in self._waiting:
            raise QuotaExceeded(f"{len(self._waiting)} fetches wait on this stream, or two under one request id")
        if request.scan_id:
            check_scan_id(request.scan_id)
        self._guard.check(("read", "topic", request.topic_id))
        partition = broker.find(request.topic_id, request.partition)
        bytes_max = min(request.max_bytes or broker.limits.fetch_bytes_max, broker.limits.fetch_bytes_max)
        ask = FetchQuery(
            offset=request.offset,
            bytes_max=bytes_max,
            bytes_min=min(request.min_bytes, bytes_max),
            wait_s=0.0 if self._ending else min(request.max_wait_ms / 1000, broker.timing.fetch_wait_s_max),
            leader_epoch=request.leader_epoch,
            leader_only=request.leader_only,
            recovery_term=request.history if request.HasField("history") else None,
            end=request.end,
        )
        if self._fetch_share is None:
            self._fetch_share = broker.fetch_waits.share()
        fetch = Fetch(
            partition, ask, broker.deadlines, lambda ready: self._on_ready(number, ready), self._fetch_share
        )  # fmt: skip
        self._waiting[number] = fetch
        self._asked[number] = _Asked(
            request.topic_id, self._meter.now(), scan=request if request.scan_id else None, verify=request.verify
        )
        try:
            fetch.begin()
        except QuotaExceeded:
            del self._waiting[number], self._asked[number]
            raise

    def _on_ready(self, number: int, fetch: Fetch) -> None:
        self._asked[number].ready_s = self._meter.now()
        self._ready.append((number, fetch))
        self._wake.set()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def _write(self) -> None:
        while True:
            message = self._next()
            if message is not None:
                throttled_s = self._share.charge(len(message.frames)) if self._share.limited else 0.0
                if throttled_s:
                    message.head.throttled_ms = int(throttled_s * 1000)
                await self._replies.write(message)
                await self._share.wait(throttled_s)  # other ready answers use no memory in between
            elif self._ended and not self._waiting:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _next(self) -> FetchAnswer | None:
        """Return the next answer to write. Also starts reads from disk while the bound has space for their bytes."""
        if self._messages:
            message, size = self._messages.popleft()
            self._read_ahead_bytes -= size
            self._room.set()
            return message
        while self._ready:
            number, fetch = self._ready[0]
            cancelled = self._waiting.get(number) is not fetch
            answer = None if cancelled else fetch.read_now()
            full = self._read_ahead_bytes + fetch.bytes_max > self._limits.stream_inflight_bytes_max
            if answer is None and not cancelled and self._read_ahead_bytes and full:
                return None
            self._ready.popleft()
            if answer is not None:
                return self._answered(number, answer)
            if not cancelled:
                self._read_ahead(number, fetch)
        return None

    def _read_ahead(self, number: int, fetch: Fetch) -> None:
        self._read_ahead_bytes += fetch.bytes_max
        open_files = sum(isinstance(message.frames, StoredFrames) for message, _ in self._messages)
        files = self._sends_files and not self._asked[number].verify and open_files + len(self._reading) < FILES_MAX
        task = asyncio.get_running_loop().create_task(self._read(number, fetch, files))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, number: int, fetch: Fetch, sends_files: bool) -> None:
        answer = await fetch.read(sends_files=sends_files)
        if self._waiting.get(number) is fetch:
            self._messages.append((self._answered(number, answer), fetch.bytes_max))
        else:
            self._read_ahead_bytes -= fetch.bytes_max
        self._wake.set()

    def _answered(self, number: int, answer: FetchResult) -> FetchAnswer:
        del self._waiting[number]
        asked = self._asked.pop(number)
        if answer.error is None:
            self._meter.fetched(asked.topic_id, len(answer.frames), asked.asked_s, asked.ready_s)
            if asked.scan is not None and answer.frames:
                self._count(asked.scan, answer)
        else:
            self._meter.refused(CALL, answer.error.code)
        return _reply(number, answer)

    def _count(self, request: pb.FetchRequest, answer: FetchResult) -> None:
        broker = self._serving.broker
        if broker is not None:
            group = GroupId(TopicId(request.topic_id), request.partition)
            records = count_records(answer.frames, request.offset, request.end)
            leads = answer.leader == broker.env.broker_id
            broker.scans.count(request.scan_id, group, leads, len(answer.frames), records)


def _reply(number: int, answer: FetchResult) -> FetchAnswer:
    head = pb.FetchReply(
        request_id=number,
        high_watermark=answer.high_watermark,
        log_start=answer.log_start,
        leader_epoch=answer.leader_epoch,
        leader=answer.leader,
        error=None if answer.error is None else to_wire(answer.error),
        next_offset=answer.next_offset,
        history=answer.recovery_term,
    )
    return FetchAnswer(head, answer.frames)
