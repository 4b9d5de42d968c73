"""One call between a client and a broker, which replaces gRPC's: both of its directions, and the servicer's end.

The simulated network delays, cuts and resets the call, and the end of a process ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tinymq.base.errors import OutcomeUnknown
from tinymq.proto.errors import TRAILER
from tinymq_chaos.sim.network.client_network import ClientNetwork, Server
from tinymq_chaos.sim.network.wires import MessageStream

DONE, FAILED = b"\0", b"\1"  # the first byte of the answer to a unary call: a reply follows, or a packed Error


class AbortedCall(Exception):
    """A servicer ended its call with a status."""


class ServerCall:
    """A call as a servicer sees it: the requests, and the `context` that the servicer writes to."""

    def __init__(self, call: SimCall, kind: Any) -> None:
        self._call = call
        self._up = call.up
        self._down = call.down
        self._kind = kind

    async def requests(self) -> AsyncIterator[Any]:
        while (data := await self._up.receive()) is not None:
            yield self._kind.FromString(data)

    async def write(self, message: Any) -> None:
        self._down.send(message.SerializeToString())
        await self._down.room()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._call.metadata

    def time_remaining(self) -> float | None:
        return self._call.left_s()

    def peer(self) -> str:
        return f"ipv4:client-{self._call.client}:1"

    async def abort(self, code: object, details: str, trailing_metadata: tuple[tuple[str, Any], ...] = ()) -> None:
        self._down.send(FAILED + dict(trailing_metadata)[TRAILER])
        raise AbortedCall(details)


class SimCall:
    """Both directions of one call between a client and a broker's process."""

    def __init__(
        self,
        net: ClientNetwork,
        client: int,
        server: Server,
        timeout_s: float | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.client = client
        self.server = server
        self.metadata = metadata
        self._until_s = None if timeout_s is None else net.clock.monotonic() + timeout_s
        self.up = MessageStream(net.conditions, (client, server.broker_id))
        self.down = MessageStream(net.conditions, (server.broker_id, client))
        self.task: asyncio.Task[None] | None = None
        self._net = net
        net.calls[self] = None

    def left_s(self) -> float | None:
        """Return the seconds until the call's deadline, if it has one."""
        return None if self._until_s is None else max(0.0, self._until_s - self._net.clock.monotonic())

    def serve(self, handle: Callable[[SimCall], Awaitable[None]]) -> None:
        """Run the servicer's side, in the broker's process."""
        self.server.process.call(lambda: self._begin(handle))

    def _begin(self, handle: Callable[[SimCall], Awaitable[None]]) -> None:
        if self.up.broken is None:
            self.task = asyncio.ensure_future(self._run(handle))

    async def _run(self, handle: Callable[[SimCall], Awaitable[None]]) -> None:
        with contextlib.suppress(OutcomeUnknown, AbortedCall):  # the client went away during a read
            await handle(self)
        self.down.send(None)

    def cancelled_by_client(self) -> None:
        self.break_off("the stream was closed here")

    def break_off(self, why: str) -> None:
        """End both sides: the connection is gone. The broker's side is cancelled."""
        self._net.calls.pop(self, None)
        self.up.break_off(why)
        self.down.break_off(why)
        if self.task is not None and not self.task.done():
            self.server.process.call(self.task.cancel)
