"""The registries of several brokers on one tree of a real ZooKeeper server."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kazoo.client import KazooClient

from tests.registry.records import broker
from tests.registry.zookeeper_server import ZookeeperServer
from tinymq.base.clock import SystemClock
from tinymq.base.config import Timing, parse_zookeeper
from tinymq.broker.cluster.registration import Registration
from tinymq.registry.state.effects import Effect
from tinymq.registry.zookeeper.registry import ZookeeperRegistry
from tinymq.registry.zookeeper.session import ZookeeperSession

CLUSTER = b"c" * 16
DEFAULT = Timing()
SHORT = Timing(registration_lease_s=1.0, registration_renew_s=0.4, command_timeout_s=10.0)


class ZookeeperBench:
    """`registries[n]` belongs to broker n + 1; `effects[n]` are its effects."""

    def __init__(self, server: ZookeeperServer) -> None:
        self.server = server
        self.chroot = secrets.token_hex(8)
        self.registries: list[ZookeeperRegistry] = []
        self.sessions: list[ZookeeperSession] = []
        self.effects: list[list[Effect]] = []
        self.registrations: list[Registration] = []

    def make(self, cluster_id: bytes = CLUSTER, timing: Timing = DEFAULT, login: str = "") -> ZookeeperRegistry:
        """Not started."""
        url = parse_zookeeper(self.server.url(self.chroot).replace("//", f"//{login}", 1))
        session = ZookeeperSession(url, timing.registration_lease_s, SystemClock())
        registry = ZookeeperRegistry(session, cluster_id, SystemClock(), random.Random(secrets.randbits(64)), timing)
        seen: list[Effect] = []

        def changed(effects: Sequence[Effect]) -> None:
            seen.extend(effects)

        registry.watch(changed)
        self.registries.append(registry)
        self.sessions.append(session)
        self.effects.append(seen)
        return registry

    async def start(self, count: int, timing: Timing = DEFAULT) -> list[ZookeeperRegistry]:
        """Add `count` registries, each with its broker registered."""
        for _ in range(count):
            registry = self.make(timing=timing)
            await registry.start([])
            await registry.register_broker(broker(len(self.registries)))
        return self.registries

    def renew(self) -> None:
        """Let all brokers renew their registrations."""
        for number, registry in enumerate(self.registries, 1):
            registration = Registration(registry, broker(number), SystemClock(), SHORT)
            registration.start()
            self.registrations.append(registration)

    async def check_same(self) -> bytes:
        """Return the common state of all registries once they are up to date."""
        await asyncio.gather(*(registry.refresh(20.0) for registry in self.registries))
        newest = max(self.registries, key=lambda registry: registry.version)
        await asyncio.gather(*(registry.wait_version(newest.version, 20.0) for registry in self.registries))
        first, *others = (registry._state.dump() for registry in self.registries)
        assert all(other == first for other in others)
        return first

    async def expire(self, number: int) -> None:
        """End broker `number`'s session at the server, as if it had been silent for too long."""
        session = self.sessions[number - 1]
        ended = session.session_id
        twin = KazooClient(session._client.hosts[0][0] + f":{self.server.port}", client_id=session._client.client_id)
        await asyncio.to_thread(lambda: (twin.start(), twin.stop(), twin.close()))
        await until(lambda: session.connected and session.session_id != ended)

    async def raw(self, call: Callable[[KazooClient], Any]) -> Any:
        """Return the result of `call` on a plain client of this tree."""

        def work() -> Any:
            client = KazooClient(f"{self.server.address}/{self.chroot}")
            client.start()
            try:
                return call(client)
            finally:
                client.stop()
                client.close()

        return await asyncio.to_thread(work)


@asynccontextmanager
async def bench(server: ZookeeperServer) -> AsyncIterator[ZookeeperBench]:
    made = ZookeeperBench(server)
    try:
        yield made
    finally:
        await asyncio.gather(*(registration.stop(leave=False) for registration in made.registrations))
        await asyncio.gather(*(registry.stop() for registry in made.registries))


async def until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
