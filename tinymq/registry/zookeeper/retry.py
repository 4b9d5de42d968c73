"""Retries a change or a read on ZooKeeper until it has an outcome. Every call ends by its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tinymq.base.clock import Clock
from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown, TinymqError
from tinymq.registry.zookeeper.session import Disconnected, StaleTree, ZookeeperSession
from tinymq.registry.zookeeper.stored_state import StoredState
from tinymq.registry.zookeeper.tree import Op

RETRY_S = 0.03  # between two attempts

T = TypeVar("T")


@dataclass(slots=True)
class Tries:
    """The attempts of one call so far."""

    failed: str = ""  # the reason why the last one failed
    uncertain: bool = False  # a transaction was sent, and its outcome is not known


class Trying:
    """Runs one call at a time, because two changes of one broker would only conflict with each other."""

    def __init__(self, session: ZookeeperSession, stored: StoredState, clock: Clock) -> None:
        self._session = session
        self._stored = stored
        self._clock = clock
        self._turn = asyncio.Lock()

    async def settled(self, attempt: Callable[[Tries], Awaitable[T]], timeout_s: float) -> T:
        """Call `attempt` until it returns, and return its result. Retries after StaleTree and Disconnected only.

        Raises, at the deadline: DeadlineExceeded, or OutcomeUnknown if a transaction may have been done.
        """
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
            reason = tries.failed or "there is no connection to ZooKeeper"
            raise kind(f"the registry did not answer in {timeout_s:.1f} s: {reason}") from None
        finally:
            timer.cancel()

    async def commit(self, ops: Sequence[Op], tries: Tries) -> None:
        """Commit a transaction of one call. Raises StaleTree, Disconnected, Denied."""
        before, tries.uncertain = tries.uncertain, True
        try:
            await self._session.commit(ops)
        except Disconnected as error:
            tries.uncertain = before or error.sent
            raise
        except (StaleTree, TinymqError):
            tries.uncertain = before
            raise

    async def _try(self, attempt: Callable[[Tries], Awaitable[T]], tries: Tries) -> T:
        failed: Exception | None = None
        version, changes = -1, 0  # at the last attempt, and between the last two
        while True:
            await self._session.wait_connected()
            try:
                async with self._turn:
                    # The transaction of an attempt without an answer may be among the new changes. The state then knows
                    # the command's id, and does not carry it out again.
                    if failed is not None and self._stored.loaded:
                        await self._stored.refresh()
                        if isinstance(failed, StaleTree) and self._stored.state.version == version:
                            await self._stored.load()  # a conflict without a change: some node differs from our copy
                    changes, version = self._stored.state.version - version, self._stored.state.version
                    return await attempt(tries)
            except (StaleTree, Disconnected) as error:
                failed, tries.failed = error, str(error)
            if isinstance(failed, Disconnected) or not changes:  # after a lost race, try again at once
                await self._clock.sleep(RETRY_S)
