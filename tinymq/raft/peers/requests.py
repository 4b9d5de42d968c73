"""Requests between brokers for the rooms above Raft: one message there and one back, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tinymq.base.clock import Clock
from tinymq.base.errors import BY_CODE, InvalidRequest, NotReady, OutcomeUnknown, TinymqError, Unavailable
from tinymq.proto import peer_pb2 as pb

Serve = Callable[[bytes], Awaitable[bytes]]
Send = Callable[[int, pb.Peer, bytes], bool]

REQUESTS_MAX = 10_000  # requests that may wait for an answer; more are refused


class Requests:
    """Both ends of all requests. One whose connection closes, or whose time is up, ends as OutcomeUnknown."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._serving: dict[str, Serve] = {}
        self._waiting: dict[int, tuple[int, asyncio.Future[bytes]]] = {}
        self._next_id = 1
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, method: str, answer: Serve) -> None:
        """Answer `method` with what `answer` returns. If it raises a TinymqError, that error's code is sent."""
        self._serving[method] = answer

    async def ask_here(self, method: str, body: bytes) -> bytes:
        """Make the same request to this very broker."""
        answer = self._serving.get(method)
        if answer is None:
            raise NotReady(f"nothing here answers {method!r}")
        return await answer(body)

    async def ask(self, peer: int, method: str, body: bytes, timeout_s: float) -> bytes:
        """Ask another broker, and return its answer.

        Raises what the other end raised, Unavailable if the request was not sent, and OutcomeUnknown otherwise.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise Unavailable("too many requests between brokers are waiting")
        request_id, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        head = pb.Peer(request=pb.Request(id=request_id, method=method, timeout_ms=int(timeout_s * 1000)))
        if not self._send(peer, head, body):
            raise Unavailable(f"broker {peer} is not connected")
        self._waiting[request_id] = (peer, future)
        timer = self._clock.call_later(timeout_s, lambda: self._end(request_id, "gave no answer in time"))
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(request_id, None)

    def _end(self, request_id: int, why: str) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_exception(OutcomeUnknown(f"broker {waiting[0]} {why}"))

    def lost(self, peer: int) -> None:
        """The connection to `peer` closed: its requests have an unknown outcome."""
        for request_id in [i for i, (p, _) in self._waiting.items() if p == peer]:
            self._end(request_id, "closed the connection")

    def received(self, peer: int, head: pb.Peer, body: bytes) -> None:
        """Take a request or a reply."""
        if head.WhichOneof("message") == "request":
            task = asyncio.get_running_loop().create_task(self._answer(peer, head.request, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        reply = head.reply
        waiting = self._waiting.get(reply.id)
        if waiting is None or waiting[0] != peer or waiting[1].done():
            return
        if reply.error_code:
            error = BY_CODE.get(reply.error_code, TinymqError)(reply.error_message)
            waiting[1].set_exception(error)
        else:
            waiting[1].set_result(body)

    async def _answer(self, peer: int, request: pb.Request, body: bytes) -> None:
        reply = pb.Reply(id=request.id)
        answer = b""
        try:
            serve = self._serving.get(request.method)
            if serve is None:
                raise InvalidRequest(f"nothing here answers {request.method!r}")
            answer = await serve(body)
        except TinymqError as error:
            reply.error_code, reply.error_message = error.code, error.message
        self._send(peer, pb.Peer(reply=reply), answer)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for request_id in list(self._waiting):
            self._end(request_id, "was not asked: this broker stops")
