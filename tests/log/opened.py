"""Runs tests on one open log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from tests.log.values import (
    LIMITS,
    faulty,
    open_both,
    run,
)  # fmt: skip
from tinymq.log import Log, Store
from tinymq.simulation.faulty_files import FaultyFiles

Test = Callable[[Store, Log], Awaitable[None]]


def with_log(test: Test, files: FaultyFiles | None = None, **limits: int) -> None:
    async def body() -> None:
        store, opened = await open_both(files or faulty(), limits=replace(LIMITS, **limits))
        await test(store, opened.log)
        await store.close()

    run(body())


def reopened(test: Test, files: FaultyFiles, **limits: int) -> None:
    """Like `with_log`, but no present entry is in memory."""
    with_log(test, files, **limits)


async def settle(store: Store, log: Log) -> None:
    """Apply everything, and store the state at the end of each segment."""
    for index in range(1, log.last_index + 1):
        log.note_applied(index)
        if log.segments.end_at(index):
            log.save_snapshot(index, b"state at %d" % index)
    await store.writer.drain()
