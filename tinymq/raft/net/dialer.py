"""One outgoing connection that is kept open: it is dialled, and dialled again when it ends.

When to dial belongs here. How to dial is an argument.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tinymq.base.clock import Clock
from tinymq.base.errors import Closed
from tinymq.base.types import PeerAddress
from tinymq.raft.net.connection import Connection
from tinymq.raft.net.transport import REDIAL, UNFORMED_POLL_S, Channel

Dial = Callable[["Dialer"], Awaitable[bool | None]]
"""One attempt, until the end of the connection that it opens.

Returns whether a connection was opened; None: this broker may not dial yet. Cancelling it closes what it opened.
"""


class Dialer:
    """Dials `address` for one channel until it is stopped.

    An attempt after a failure waits, longer each time. An attempt after a connection that lasted, or after `reset` or
    `hurry`, does not wait.
    """

    def __init__(self, address: PeerAddress, channel: Channel, clock: Clock, rng: random.Random, dial: Dial) -> None:
        self.address = address
        self.channel = channel
        self.connection: Connection | None = None  # invariant: opened; closing for an instant at most
        self.dials_plain = False  # the next attempt is without TLS
        self.refusal = ""  # code of the last failed attempt, empty once one has opened
        self.ask_at = 0.0  # monotonic time of the next question for the peer's cluster
        self._clock = clock
        self._rng = rng
        self._dial = dial
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Event | None = None  # setting it ends the wait before the next attempt

    def start(self) -> None:
        """Begin to dial."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"dial broker {self.address.broker_id}")

    def reset(self, reason: str) -> None:
        """Close a connection or an attempt, and dial at once."""
        if self._task is None:
            return
        self.stop(reason)
        self._task = None
        self.start()

    def hurry(self) -> None:
        """The peer is there: begin the next attempt at once. An attempt under way continues."""
        if self._waiting is not None:
            self._waiting.set()

    def stop(self, reason: str) -> None:
        """Close the connection, and never dial again."""
        if self.connection is not None:
            self.connection.close(Closed(reason))
        if self._task is not None:
            self._task.cancel()

    async def wait_stopped(self) -> None:
        """Return once it dials no more; after `stop`."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        failures = 0  # in a row
        while True:
            started = self._clock.monotonic()
            opened = await self._dial(self)
            if opened is None:
                await self._clock.sleep(UNFORMED_POLL_S)
                continue
            pause_s = REDIAL.pause_s(failures + 1)
            if opened and self._clock.monotonic() - started > pause_s:
                failures = 0
            else:
                failures += 1
                await self._wait(pause_s * self._rng.uniform(0.75, 1.25))

    async def _wait(self, delay_s: float) -> None:
        self._waiting = asyncio.Event()
        timer = self._clock.call_later(delay_s, self._waiting.set)
        try:
            await self._waiting.wait()
        finally:
            timer.cancel()
            self._waiting = None
