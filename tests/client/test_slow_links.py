"""A fetch on a slow link, whose answer takes longer than its timeout: it waits while bytes arrive.

The wait is bounded while the bytes belong to other answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.client.running import run
from tinymq.base.clock import SystemClock
from tinymq.base.errors import BrokerUnreachable, TinymqError
from tinymq.client.net.fetch_streams import SLOW_TIMES_MAX, BrokerFetchStream
from tinymq.client.net.ports import Fetched
from tinymq.proto import tinymq_pb2 as pb

TIMEOUT_S = 0.03


class Stream:
    """A stream on which bytes arrive between two looks while `moving` is set. A test gives the answers."""

    def __init__(self) -> None:
        self.moving = True
        self.looks = 0
        self.answers: asyncio.Queue[Fetched] = asyncio.Queue()
        self.cancelled = False

    @property
    def received_bytes(self) -> int:
        self.looks += self.moving
        return self.looks

    async def write(self, request: pb.FetchRequest) -> None:
        pass

    async def read(self) -> Fetched:
        return await self.answers.get()

    def cancel(self) -> None:
        self.cancelled = True


class Link:
    address = "broker:1"

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    async def open_fetch(self, timeout_s: float) -> Stream:
        return self.stream


class Watch:
    def answered(self, address: str, latency_s: float) -> None: ...
    def broke(self, address: str, error: TinymqError) -> None: ...


def answer(number: int) -> Fetched:
    return Fetched(
        request_id=number,
        high_watermark=0,
        log_start=0,
        leader_epoch=0,
        leader=0,
        next_offset=0,
        frames=memoryview(b""),
        error=None,
    )


def on_stream(scenario: Callable[[BrokerFetchStream, Stream], Awaitable[None]]) -> None:
    async def main() -> None:
        stream = Stream()
        client_stream = BrokerFetchStream(Link(stream), SystemClock(), Watch(), 5.0)  # type: ignore[arg-type]
        await scenario(client_stream, stream)
        await client_stream.close()

    run(main())


async def looked(stream: Stream, times: int, fetching: asyncio.Future[Fetched]) -> None:
    while stream.looks < times and not fetching.done():
        await asyncio.sleep(0)


def test_an_answer_that_is_on_its_way_is_waited_for() -> None:
    async def scenario(client_stream: BrokerFetchStream, stream: Stream) -> None:
        fetching = asyncio.ensure_future(client_stream.fetch(pb.FetchRequest(), TIMEOUT_S))
        await looked(stream, 4 * SLOW_TIMES_MAX, fetching)  # two looks for each timeout
        assert not fetching.done()
        stream.answers.put_nowait(answer(1))
        assert (await fetching).request_id == 1
        assert not stream.cancelled

    on_stream(scenario)


def test_silence_is_found_out_as_soon_as_no_byte_comes() -> None:
    async def scenario(client_stream: BrokerFetchStream, stream: Stream) -> None:
        fetching = asyncio.ensure_future(client_stream.fetch(pb.FetchRequest(), TIMEOUT_S))
        await looked(stream, 4, fetching)
        stream.moving = False
        with pytest.raises(BrokerUnreachable, match="silent"):
            await fetching
        assert stream.cancelled, "the whole broker says nothing"

    on_stream(scenario)


def test_a_fetch_that_yields_to_others_waits_a_bounded_time() -> None:
    async def scenario(client_stream: BrokerFetchStream, stream: Stream) -> None:
        passed_over = asyncio.ensure_future(client_stream.fetch(pb.FetchRequest(), TIMEOUT_S))
        number = 1
        while not passed_over.done():
            number += 1
            other: Any = asyncio.ensure_future(client_stream.fetch(pb.FetchRequest(), 10))
            while client_stream._connection is None or number not in client_stream._connection.waiting:
                await asyncio.sleep(0)
            stream.answers.put_nowait(answer(number))
            await other
        with pytest.raises(BrokerUnreachable, match="silent"):
            await passed_over
        assert not stream.cancelled, "others are served"

    on_stream(scenario)
