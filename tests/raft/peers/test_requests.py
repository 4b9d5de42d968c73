"""Requests between brokers: each ends with a reply, an error from the other end, or outcome unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.errors import InvalidRequest, NotReady, OutcomeUnknown, TopicExists, Unavailable
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.peers.requests import Requests


class Pair:
    """Brokers 1 and 2, connected by a link that can be cut."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.up = self.delivers = True
        self.sent = 0
        self.one = Requests(lambda peer, head, body: self._carry(self.two, 1, head, body), self.clock)
        self.two = Requests(lambda peer, head, body: self._carry(self.one, 2, head, body), self.clock)

    def _carry(self, to: Requests, source: int, head: pb.Peer, body: bytes) -> bool:
        if not self.up:
            return False
        self.sent += 1
        if self.delivers:
            copy = pb.Peer.FromString(head.SerializeToString())
            asyncio.get_running_loop().call_soon(to.received, source, copy, body)
        return True


def run(scenario: Callable[[Pair], Awaitable[None]]) -> None:
    async def body() -> None:
        await asyncio.wait_for(scenario(Pair()), 10)

    asyncio.run(body())


async def echo(body: bytes) -> bytes:
    return body[::-1]


async def never(body: bytes) -> bytes:
    return await asyncio.get_running_loop().create_future()


async def begun(pair: Pair, method: str = "echo") -> asyncio.Task[bytes]:
    task = asyncio.create_task(pair.one.ask(2, method, b"abc", 5.0))
    while not pair.sent:
        await asyncio.sleep(0)
    return task


def test_a_request_gets_its_reply() -> None:
    async def scenario(pair: Pair) -> None:
        pair.two.serve("echo", echo)
        assert await pair.one.ask(2, "echo", b"abc", 5.0) == b"cba"
        assert await pair.two.ask_here("echo", b"xy") == b"yx"

    run(scenario)


def test_an_error_travels_as_its_type() -> None:
    async def refuse(body: bytes) -> bytes:
        raise TopicExists("it is there")

    async def scenario(pair: Pair) -> None:
        pair.two.serve("create", refuse)
        with pytest.raises(TopicExists, match="it is there"):
            await pair.one.ask(2, "create", b"", 5.0)
        with pytest.raises(InvalidRequest):
            await pair.one.ask(2, "nothing", b"", 5.0)
        with pytest.raises(NotReady):
            await pair.one.ask_here("nothing", b"")

    run(scenario)


def test_an_unsent_request_is_unavailable() -> None:
    async def scenario(pair: Pair) -> None:
        pair.up = False
        with pytest.raises(Unavailable):
            await pair.one.ask(2, "echo", b"", 5.0)

    run(scenario)


def test_no_answer_in_time_is_unknown() -> None:
    async def scenario(pair: Pair) -> None:
        pair.two.serve("never", never)
        task = await begun(pair, "never")
        pair.clock.advance(4.9)
        assert not task.done()
        pair.clock.advance(0.2)
        with pytest.raises(OutcomeUnknown, match="in time"):
            await task
        await pair.two.stop()

    run(scenario)


def test_a_closed_connection_is_unknown_at_once() -> None:
    async def scenario(pair: Pair) -> None:
        pair.delivers = False
        task = await begun(pair)
        pair.one.lost(3)
        await asyncio.sleep(0)
        assert not task.done()
        pair.one.lost(2)
        with pytest.raises(OutcomeUnknown, match="closed"):
            await task

    run(scenario)


def test_only_the_asked_broker_may_reply_and_only_once() -> None:
    async def scenario(pair: Pair) -> None:
        pair.delivers = False
        task = await begun(pair)
        reply = pb.Peer(reply=pb.Reply(id=1))
        pair.one.received(3, reply, b"forged")
        pair.one.received(2, pb.Peer(reply=pb.Reply(id=99)), b"of no question")
        pair.one.received(2, reply, b"true")
        pair.one.received(2, reply, b"late")
        assert await task == b"true"

    run(scenario)


def test_stopping_ends_every_request() -> None:
    async def scenario(pair: Pair) -> None:
        pair.two.serve("never", never)
        task = await begun(pair, "never")
        await asyncio.sleep(0)
        await pair.two.stop()
        await pair.one.stop()
        with pytest.raises(OutcomeUnknown):
            await task

    run(scenario)
