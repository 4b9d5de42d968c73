"""Threads of the synchronous client in virtual time: one runs at a time, in an order that the seed determines."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tinymq_chaos.sim.campaign.plan import Plan
from tinymq_chaos.sim.campaign.run import run
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.user_threads import Signal, SteppedLock, ThreadEnded, UserThreads

STORM = partial(Plan, workloads=("crowd",), faults=("kill", "client_reset"), threaded=1.0, seconds=12.0)


def with_threads(main: Callable[[UserThreads], Awaitable[None]], seed: int = 1) -> None:
    async def whole(loop: VirtualLoop) -> None:
        threads = UserThreads(loop, random.Random(seed))
        try:
            await main(threads)
        finally:
            threads.end()

    run_virtually(whole)


def test_equal_seeds_have_equal_transcripts_and_other_seeds_have_others() -> None:
    first, again, other = run(STORM(3)), run(STORM(3)), run(STORM(4))
    assert first.anomalies == again.anomalies == other.anomalies == []
    assert first.transcript == again.transcript
    assert first.digest != other.digest
    assert first.records > 100


def test_one_thread_at_a_time_runs_and_none_beside_the_loop() -> None:
    async def main(threads: UserThreads) -> None:
        inside: set[str] = set()
        order: list[str] = []

        def work(name: str) -> str:
            for _ in range(50):
                assert not inside
                inside.add(name)
                order.append(name)
                inside.discard(name)
                assert threads.running is not None
                threads.running.step()
            return threading.current_thread().name

        names = await asyncio.gather(*(threads.run(partial(work, name)) for name in "abc"))
        assert len({*names, threading.current_thread().name}) == 4
        assert threads.switches > 10
        assert sorted(order) != order, "they take turns"

    with_threads(main)


def test_the_seed_determines_the_order() -> None:
    orders = []

    async def main(threads: UserThreads) -> None:
        lock, order = SteppedLock(threads), list[str]()

        def work(name: str) -> None:
            for _ in range(20):
                with lock:
                    order.append(name)

        await asyncio.gather(*(threads.run(partial(work, name)) for name in "abc"))
        orders.append("".join(order))

    for seed in (1, 1, 2):
        with_threads(main, seed)
    assert orders[0] == orders[1] != orders[2]


def test_a_wait_ends_by_its_signal_or_its_deadline() -> None:
    async def main(threads: UserThreads) -> None:
        signals: list[Signal] = []

        def waits(timeout_s: float | None) -> bool:
            signals.append(Signal(threads))
            return signals[-1].wait(timeout_s)

        began_s = threads.loop.time()
        assert not await threads.run(partial(waits, 2.0))
        assert 2.0 <= threads.loop.time() - began_s < 2.01
        waiting = asyncio.ensure_future(threads.run(partial(waits, None)))
        await VirtualClock(threads.loop).sleep(1.0)
        assert not waiting.done()
        signals[-1].release()
        assert await waiting

    with_threads(main)


def test_errors_reach_the_caller_and_the_thread_works_on() -> None:
    async def main(threads: UserThreads) -> None:
        def fails() -> None:
            raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            await threads.run(fails)
        first = await threads.run(threading.get_ident)
        assert first == await threads.run(threading.get_ident)

    with_threads(main)


def test_threads_that_wait_end_with_the_run() -> None:
    ended: list[BaseException] = []

    async def main(threads: UserThreads) -> None:
        def waits() -> None:
            try:
                Signal(threads).wait(None)
            except ThreadEnded as end:
                ended.append(end)
                raise

        waiting = asyncio.ensure_future(threads.run(waits))
        await VirtualClock(threads.loop).sleep(0.1)
        waiting.cancel()

    with_threads(main)
    assert len(ended) == 1
