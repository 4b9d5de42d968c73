"""A change or a read on ZooKeeper, tried until it is settled or its time is up: every call ends by its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tinymq.base.clock import Clock
from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown, TinymqError
from tinymq.registry.zookeeper.replica import Replica
from tinymq.registry.zookeeper.session import Conflict, Disconnected, ZookeeperSession
from tinymq.registry.zookeeper.tree import Op

RETRY_S = 0.03  # between two tries

T = TypeVar("T")


@dataclass(slots=True)
class Tries:
    """What is known of one call's tries."""

    failed: str = ""  # why the last one did
    uncertain: bool = False  # a transaction was sent, and nobody said what became of it


class Trying:
    """One change at a time: two of one broker would only be in each other's way."""

    def __init__(self, session: ZookeeperSession, replica: Replica, clock: Clock) -> None:
        self._session = session
        self._replica = replica
        self._clock = clock
        self._turn = asyncio.Lock()

    async def settled(self, attempt: Callable[[Tries], Awaitable[T]], timeout_s: float) -> T:
        """What `attempt` comes to, however many tries it takes. Raises what it is refused with; at the deadline
        DeadlineExceeded, or OutcomeUnknown if a transaction of it may have been done."""
        tries = Tries()
        trying = asyncio.get_running_loop().create_task(self._try(attempt, tries))
        late = False

        def end() -> None:
            nonlocal late
            late = True
            trying.cancel()

        timer = self._clock.call_later(timeout_s, end)
        try:
            return await trying
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not late or (task is not None and task.cancelling()):
                raise
            kind = OutcomeUnknown if tries.uncertain else DeadlineExceeded
            why = tries.failed or "there is no connection to ZooKeeper"
            raise kind(f"the registry did not answer in {timeout_s:.1f} s: {why}") from None
        finally:
            timer.cancel()

    async def commit(self, ops: Sequence[Op], tries: Tries) -> None:
        """Raises Conflict, Disconnected, Denied."""
        before, tries.uncertain = tries.uncertain, True
        try:
            await self._session.commit(ops)
        except Disconnected as error:
            tries.uncertain = before or error.sent
            raise
        except (Conflict, TinymqError):
            tries.uncertain = before
            raise

    async def _try(self, attempt: Callable[[Tries], Awaitable[T]], tries: Tries) -> T:
        failed: Exception | None = None
        version, came = -1, 0  # at the last try, and since the one before
        while True:
            await self._session.wait_connected()
            try:
                async with self._turn:
                    if failed is not None and self._replica.loaded:  # what came meanwhile may be the very change
                        await self._replica.refresh()
                        if isinstance(failed, Conflict) and self._replica.state.version == version:
                            await self._replica.load()  # nothing came: a node is not as it was known
                    came, version = self._replica.state.version - version, self._replica.state.version
                    return await attempt(tries)
            except (Conflict, Disconnected) as error:
                failed, tries.failed = error, str(error)
            if isinstance(failed, Disconnected) or not came:  # else somebody was faster, and it is our turn
                await self._clock.sleep(RETRY_S)
