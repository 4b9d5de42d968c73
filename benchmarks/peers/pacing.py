"""Sends records one by one, or offers them at a rate, whatever the measured system does: no coordinated omission.

At a rate, each record is due at a fixed time. Its latency counts from then, also if the client itself was late with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.peers.contract import QUIET_S_MAX, Measured, Watch

DUE_BYTES = 24  # at the beginning of a value: when the record was due
POLL_S = 0.01


async def one_by_one(records: int, send: Callable[[], Awaitable[object]]) -> Measured:
    """Each record after the answer to the one before. The first one does not count."""
    await send()
    took_s = []
    with Watch() as watch:
        for _ in range(records):
            began_s = time.perf_counter()
            await send()
            took_s.append(time.perf_counter() - began_s)
    return watch.measured(records, took_s)


async def offered(records: int, rate: float, send: Callable[[], Awaitable[object]]) -> Measured:
    """Records per second at `rate`, each timed from its due time to its answer. The first one does not count."""
    await send()
    took_s: list[float] = []

    async def timed(due_s: float) -> None:
        await send()
        took_s.append(time.perf_counter() - due_s)

    with Watch() as watch:
        await _offer(records, rate, timed)
    return watch.measured(records, took_s)


async def passed(
    records: int, size: int, rate: float, send: Callable[[bytes], Awaitable[object]], took_s: list[float]
) -> Measured:
    """As `offered`, with due times in the values. Handlers on the other side append what each took to `took_s`.

    Raises TimeoutError when nothing is handled any more.
    """

    async def stamped(due_s: float) -> None:
        await send(f"{due_s:{DUE_BYTES}.9f}".encode().ljust(size, b"x"))

    with Watch() as watch:
        await _offer(records, rate, stamped)
        seen, quiet_s = 0, 0.0
        while len(took_s) < records:
            quiet_s, seen = (quiet_s + POLL_S if len(took_s) == seen else 0.0), len(took_s)
            if quiet_s > QUIET_S_MAX:
                raise TimeoutError(f"{seen} of {records} records were handled")
            await asyncio.sleep(POLL_S)
    return watch.measured(records, took_s)


def passed_s(value: bytes | None) -> float:
    """The seconds since the record of this value was due."""
    return time.perf_counter() - float((value or b"")[:DUE_BYTES])


async def _offer(records: int, rate: float, send: Callable[[float], Awaitable[None]]) -> None:
    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(records):
            due_s = started_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.create_task(_as_coroutine(send, due_s))


async def _as_coroutine(send: Callable[[float], Awaitable[None]], due_s: float) -> None:
    await send(due_s)
