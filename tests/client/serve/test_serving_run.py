"""Handlers over records in memory: how many run, what a stop finishes, and what ends serving. No broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.running import run, until
from tests.client.serve.fake_source import FakeSource, message
from tests.client.serve.source_contract import check_source
from tinymq.base.clock import SystemClock
from tinymq.base.errors import UnknownGroup
from tinymq.client.serve.health import DETACHED_S_MAX, LOOP_SILENT_S_MAX, HandlerHealth, is_live, judge
from tinymq.client.serve.serving_run import ServingRun
from tinymq.client.serve.subscription import Subscription


def server_of(*pairs: tuple[Callable[..., Any], FakeSource], concurrency: int = 1) -> ServingRun:
    sources = iter([source for _, source in pairs])
    every = [Subscription(handler, ("t",), "g", concurrency) for handler, _ in pairs]
    return ServingRun(every, lambda _: next(sources), SystemClock())


def test_the_source_of_these_tests_passes_the_contract() -> None:
    async def check() -> None:
        source = FakeSource()

        async def fill(count: int) -> None:
            source.waiting.extend(message(n) for n in range(count))
            source.change()

        await check_source(source, fill)

    run(check())


def test_handlers_run_side_by_side_up_to_their_concurrency() -> None:
    async def check() -> None:
        running: set[int] = set()
        most = 0
        go_on = asyncio.Event()

        async def handle(record: Any) -> None:
            nonlocal most
            running.add(record.offset)
            most = max(most, len(running))
            await go_on.wait()
            running.discard(record.offset)

        source = FakeSource(10)
        server = server_of((handle, source), concurrency=3)
        serving = asyncio.create_task(server.run(5.0))
        await until(lambda: len(running) == 3)
        assert server.health().handlers[0].running == 3
        go_on.set()
        await until(lambda: len(source.handled) == 10)
        server.stop()
        await serving
        assert most == 3

    run(check())


def test_a_stop_finishes_what_is_started_and_starts_nothing() -> None:
    async def check() -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def handle(record: Any) -> None:
            started.set()
            await go_on.wait()

        source = FakeSource(3)
        server = server_of((handle, source))
        serving = asyncio.create_task(server.run(5.0))
        await started.wait()
        server.stop()
        assert not serving.done()
        go_on.set()
        await serving
        assert (source.handled, len(source.waiting), source.closed) == ([0], 2, True)

    run(check())


@pytest.mark.parametrize("way", ["cancelled", "given up", "late"])
def test_a_handler_that_does_not_end_is_left_alone_and_its_record_is_not_done(way: str) -> None:
    async def check() -> None:
        started = asyncio.Event()

        async def handle(record: Any) -> None:
            started.set()
            await asyncio.Event().wait()

        source = FakeSource(1)
        server = server_of((handle, source))
        serving = asyncio.create_task(server.run(0.0 if way != "given up" else 60.0))
        await started.wait()
        if way == "cancelled":
            serving.cancel()
        elif way == "given up":
            server.give_up()
        else:
            server.stop()
        if way == "cancelled":
            with pytest.raises(asyncio.CancelledError):
                await serving
        else:
            await serving
        assert (source.handled, source.closed) == ([], True)

    run(check())


def test_plain_functions_run_in_threads_of_their_own() -> None:
    async def check() -> None:
        names: set[str] = set()
        both = threading.Barrier(2, timeout=10)

        def handle(record: Any) -> None:
            names.add(threading.current_thread().name)
            both.wait()

        source = FakeSource(4)
        server = server_of((handle, source), concurrency=2)
        serving = asyncio.create_task(server.run(5.0))
        await until(lambda: len(source.handled) == 4)
        server.stop()
        await serving
        assert len(names) == 2
        assert all(name.startswith("tinymq-g") for name in names)

    run(check())


def test_an_error_of_a_handler_is_logged_with_the_records_place(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        failures = iter([ValueError("bad luck")])

        async def handle(record: Any) -> None:
            for error in failures:
                raise error

        source = FakeSource(1)
        server = server_of((handle, source))
        serving = asyncio.create_task(server.run(5.0))
        await until(lambda: source.handled == [0])
        (health,) = server.health().handlers
        assert (health.errors, health.handled, health.last_error) == (1, 2, "ValueError: bad luck")
        server.stop()
        await serving

    run(check())
    (record,) = [each for each in caplog.records if each.levelname == "ERROR" and each.name == "tinymq.client"]
    assert "failed for t/0 at offset 0: it is tried again" in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.parametrize("way", ["SystemExit", "on_error is stop", "the source fails", "the group cannot be joined"])
def test_what_ends_one_subscription_ends_all_and_is_raised(way: str) -> None:
    async def check() -> None:
        def handle(record: Any) -> None:
            raise SystemExit(3) if way == "SystemExit" else ValueError("no")

        async def other(record: Any) -> None: ...

        source, idle = FakeSource(1), FakeSource()
        error = UnknownGroup("the group was deleted")
        source.raises = True
        if way == "the source fails":
            source.failure = error
        if way == "the group cannot be joined":
            source.refusal = error
        server = server_of((handle, source), (other, idle))
        expected = {"SystemExit": SystemExit, "on_error is stop": ValueError}.get(way, UnknownGroup)
        with pytest.raises(expected):
            await server.run(5.0)
        assert idle.closed
        assert source.handled == []
        assert not [task for task in asyncio.all_tasks() if "_tick" in repr(task.get_coro()) and not task.cancelling()]

    run(check())


def test_health_tells_a_blocked_loop_and_a_lost_group() -> None:
    def state(name: str, live: bool) -> HandlerHealth:
        return HandlerHealth("bill", "g", live, name, running=0, oldest_s=0.0, handled=0, errors=0)

    good, bad = state("handling", True), state("detached", False)
    assert judge((good,), 0.1)
    assert judge((good, bad), 0.1).reason == "bill of group g is detached"
    assert "blocked" in judge((good,), LOOP_SILENT_S_MAX + 1).reason
    assert is_live("joining", 1.0)
    assert is_live("detached", DETACHED_S_MAX), "a failover of the group's coordinator is no reason to restart"
    assert not is_live("detached", DETACHED_S_MAX + 1)
    assert not is_live("failed", 0.0)
