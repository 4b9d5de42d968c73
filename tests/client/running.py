"""Running a test's coroutine, and a client on the in-memory cluster with short timeouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.client.fake_cluster import FakeCluster
from tinymq.client.facade.async_client import AsyncClient

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], timeout_s: float = 20.0) -> T:
    """Run to the end, or fail."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded())


def client_of(cluster: FakeCluster, **settings: Any) -> AsyncClient:
    """Short timeouts, so that what should time out does."""
    defaults = {"attempt_timeout_ms": 300, "request_timeout_ms": 5000}
    return AsyncClient(cluster.servers, connector=cluster, rng=random.Random(1), **{**defaults, **settings})


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until it holds; the test's deadline bounds it."""
    while not holds():
        await asyncio.sleep(0)
