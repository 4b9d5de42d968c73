"""Every RegistryService, opened as a broker opens it, for the contract suite. A new implementation adds a function here
and a name in IMPLEMENTATIONS.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from examples.registry.sqlite_registry import SqliteRegistry
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tests.fakes.raft_host import FakeHosts
from tests.registry.zookeeper_server import shared_server
from tinymq.base.clock import SystemClock
from tinymq.base.config import Timing, parse_zookeeper
from tinymq.base.types import METADATA_GROUP
from tinymq.registry.factory import Registry
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.raft_group.replicated import ReplicatedRegistry
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.zookeeper.registry import ZookeeperRegistry
from tinymq.registry.zookeeper.session import ZookeeperSession

Implementation = Callable[[ManualClock, Path], AbstractAsyncContextManager[Registry]]
"""Start the registry on this clock with an empty data directory of its own, and stop it at the end."""


@asynccontextmanager
async def memory(clock: ManualClock, folder: Path) -> AsyncIterator[Registry]:
    async with _started(MemoryRegistry(clock, random.Random(1), Timing())) as registry:
        yield registry


@asynccontextmanager
async def replicated(clock: ManualClock, folder: Path) -> AsyncIterator[Registry]:
    """One broker that leads a group, which commits in the loop's next turn."""
    machine = RegistryMachine()
    group = FakeGroup(machine, METADATA_GROUP, lambda: asyncio.get_running_loop().call_soon(group.commit) and None)
    machine.attach(group)
    hosts = FakeHosts()
    async with _started(ReplicatedRegistry(1, machine, hosts.host(1), clock, random.Random(1), Timing())) as registry:
        yield registry


@asynccontextmanager
async def sqlite(clock: ManualClock, folder: Path) -> AsyncIterator[Registry]:
    """The worked example of docs/registry.md."""
    file = folder / "registry.db"
    async with _started(SqliteRegistry(file, clock, random.Random(1), Timing())) as registry:
        yield registry


@asynccontextmanager
async def zookeeper(clock: ManualClock, folder: Path) -> AsyncIterator[Registry]:
    """On a real server, whose sessions run on real time."""
    session = ZookeeperSession(parse_zookeeper(shared_server().url()), Timing().registration_lease_s, SystemClock())
    async with _started(ZookeeperRegistry(session, b"c" * 16, clock, random.Random(1), Timing())) as registry:
        yield registry


@asynccontextmanager
async def _started(registry: Registry) -> AsyncIterator[Registry]:
    await registry.start(set())
    try:
        yield registry
    finally:
        await registry.stop()


IMPLEMENTATIONS: list[Implementation] = [memory, replicated, sqlite, zookeeper]
