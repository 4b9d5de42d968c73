"""Calls off the loop: results, errors, concurrent calls, and idle threads that end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.log.values import run
from tinymq.log.files import runner as runner_module
from tinymq.log.files.runner import InlineRunner, Runner, ThreadRunner


@pytest.fixture(params=["inline", "threads"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param == "inline":
        yield InlineRunner()
    else:
        with ThreadPoolExecutor(2) as executor:
            yield ThreadRunner(executor)


def test_results_and_errors_come_back(runner: Runner) -> None:
    async def body() -> None:
        for i in range(100):
            assert await runner.run(lambda i=i: i * 2) == i * 2  # type: ignore[misc]
            with pytest.raises(ZeroDivisionError):
                await runner.run(lambda: 1 // 0)

    run(body())


def test_many_calls_at_once_all_come_back(runner: Runner) -> None:
    async def body() -> None:
        calls = [runner.run(lambda i=i: i) for i in range(50)]  # type: ignore[misc]
        assert await asyncio.gather(*calls) == list(range(50))

    run(body())


def test_a_hanging_call_delays_no_other() -> None:
    with ThreadPoolExecutor(2) as executor:

        async def body() -> None:
            runner = ThreadRunner(executor)
            gate = threading.Event()
            hanging = asyncio.ensure_future(runner.run(gate.wait))
            await asyncio.sleep(0)
            assert await runner.run(lambda: 5) == 5
            gate.set()
            assert await hanging
            assert await runner.run(lambda: 6) == 6

        run(body())


def test_a_waiting_caller_may_be_cancelled() -> None:
    with ThreadPoolExecutor(2) as executor:

        async def body() -> None:
            runner = ThreadRunner(executor)
            gate = threading.Event()
            hanging = asyncio.ensure_future(runner.run(gate.wait))
            await asyncio.sleep(0)
            hanging.cancel()
            gate.set()
            assert await runner.run(lambda: 7) == 7

        run(body())


@pytest.mark.parametrize("pool", [False, True])
def test_a_drain_waits_for_calls_whose_callers_are_gone(pool: bool) -> None:
    """Such a call may write a file: a stop ends behind it."""
    with ThreadPoolExecutor(2) as executor:

        async def body() -> None:
            runner, gate, began = ThreadRunner(executor), threading.Event(), threading.Event()

            def call() -> None:
                began.set()
                gate.wait()

            calls = [asyncio.ensure_future(runner.run(gate.wait))] if pool else []
            calls.append(asyncio.ensure_future(runner.run(call)))
            await asyncio.to_thread(began.wait)
            for each in calls:
                each.cancel()
            assert not await runner.drain(0.01)
            gate.set()
            assert await runner.drain(60.0)

        run(body())


def test_an_idle_thread_ends_and_another_one_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LINGER_S", 0.001)
    with ThreadPoolExecutor(1) as executor:

        async def body() -> None:
            runner = ThreadRunner(executor)
            seen = set()
            for _ in range(20):
                thread = await runner.run(threading.current_thread)
                seen.add(thread)
                thread.join(5)
                assert not thread.is_alive()
            assert len(seen) == 20

        run(body())
