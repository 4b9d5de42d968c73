"""Works on the partitions of `__coordinator` that this broker leads, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from tinymq.base.clock import Clock
from tinymq.broker.members.coordinator_replica import CoordinatorReplica

TICK_S = 0.1
CONFIRM_S = 2.0  # for a majority to confirm the leadership

Replicas = Callable[[], Mapping[tuple[bytes, int], CoordinatorReplica]]


class LedReplicas:
    """Calls `advance` for every replica that leads, each tenth of a second, from `start` to `stop`.

    Each replica has a task of its own: one that cannot commit now must not hold up the others.
    """

    def __init__(
        self, replicas: Replicas, advance: Callable[[CoordinatorReplica], Awaitable[None]], clock: Clock
    ) -> None:
        self._replicas = replicas
        self._advance = advance
        self._clock = clock
        self._advancing: dict[str, asyncio.Task[None]] = {}  # the work under way, by replica name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def stop(self) -> None:
        tasks = [*self._advancing.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            for replica in list(self._replicas().values()):
                if replica.leading and replica.name not in self._advancing:
                    task = asyncio.ensure_future(self._advance(replica))
                    self._advancing[replica.name] = task
                    task.add_done_callback(partial(self._advanced, replica.name))

    def _advanced(self, name: str, task: asyncio.Task[None]) -> None:
        del self._advancing[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            # The next tick tries again.
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{name}: its work failed", "exception": error}
            )


async def confirm(replica: CoordinatorReplica) -> None:
    """Return once a majority has confirmed, since this call, that the replica leads.

    Without it, a deposed leader could answer by what it knew. Raises NotLeader, DeadlineExceeded.
    """
    await replica.group.read_index(CONFIRM_S)
    replica.check_leading()
