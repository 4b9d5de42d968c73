"""Run the coroutine of a test, and make a client of the in-memory cluster with short timeouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.client.fake_cluster import FakeCluster
from tinymq.client.facade.core.client_core import ClientCore

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], timeout_s: float = 20.0) -> T:
    """Run a coroutine to its end, or fail at the deadline."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded())


def client_of(cluster: FakeCluster, **settings: Any) -> ClientCore:
    """Make a client with short timeouts, so that tests of timeouts are fast."""
    defaults = {"attempt_timeout_ms": 300, "request_timeout_ms": 5000}
    return ClientCore(cluster.servers, connector=cluster, rng=random.Random(1), **{**defaults, **settings})


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until `holds` is true. The test's deadline bounds this."""
    while not holds():
        await asyncio.sleep(0)
