"""A broker renews its registration while it runs, retries failures, and ends it when it leaves."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.base.config import Timing
from tinymq.base.errors import DeadlineExceeded
from tinymq.broker.cluster.registration import RETRY_S, Registration
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.state.values import BrokerRecord

TIMING = Timing()


class Flaky(MemoryRegistry):
    """Refuses while `down`."""

    down = False
    calls = 0

    async def register_broker(self, broker: BrokerRecord) -> float:
        self.calls += 1
        if self.down:
            raise DeadlineExceeded("no leader")
        return await super().register_broker(broker)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_registration_is_renewed_and_ended() -> None:
    async def main() -> None:
        clock = ManualClock()
        registry = Flaky(clock, random.Random(1), TIMING)
        registry.down = True
        registration = Registration(registry, broker(1), clock, TIMING)
        registration.start()
        await settle()
        assert not registration.registered.is_set()
        registry.down = False
        clock.advance(RETRY_S)
        await settle()
        assert registration.registered.is_set()
        for _ in range(20):
            clock.advance(TIMING.registration_renew_s)
            await settle()
        assert registry.get_broker(1) == broker(1)
        registry.down = True
        clock.advance(TIMING.registration_renew_s)
        await settle()
        registry.down = False
        clock.advance(RETRY_S)
        await settle()
        await registration.stop(leave=True)
        assert registry.get_broker(1) is None
        calls = registry.calls
        clock.advance(60)
        await settle()
        assert registry.calls == calls
        registry.close()

    asyncio.run(main())


def test_leaving_a_silent_registry_is_abandoned() -> None:
    class Stuck(MemoryRegistry):
        async def unregister_broker(self, broker_id: int, session: int = 0) -> None:
            raise DeadlineExceeded("no leader")

    async def main() -> None:
        clock = ManualClock()
        registry = Stuck(clock, random.Random(1), TIMING)
        registration = Registration(registry, broker(1), clock, TIMING)
        await registration.stop(leave=True)
        registration.start()
        await settle()
        await registration.stop(leave=True)
        assert registry.get_broker(1) is not None, "its lease expires instead"
        registry.close()

    asyncio.run(main())


def test_leaving_does_not_wait_for_a_registry_without_a_majority() -> None:
    """The whole cluster stops: the majority is gone before or while the last broker leaves."""

    class Silent(MemoryRegistry):
        async def unregister_broker(self, broker_id: int, session: int = 0) -> None:
            await asyncio.get_running_loop().create_future()

    async def main(majority: bool) -> None:
        alive = [majority]
        registry = Silent(ManualClock(), random.Random(1), TIMING)
        patient = replace(TIMING, drain_s=3600.0)
        registration = Registration(registry, broker(1), ManualClock(), patient, reachable=lambda: alive[0])
        registration.start()
        await settle()
        leaving = asyncio.ensure_future(registration.stop(leave=True))
        await settle()
        assert leaving.done() is not majority
        registration.peers_changed()
        await settle()
        assert leaving.done() is not majority, "a majority is still up"
        alive[0] = False
        registration.peers_changed()
        await asyncio.wait_for(leaving, 10.0)
        registry.close()

    for majority in (False, True):
        asyncio.run(main(majority))
