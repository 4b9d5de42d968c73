"""Producer ids come in blocks, and each number is given once, even to concurrent calls."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.config import Timing
from tinymq.base.errors import OutcomeUnknown
from tinymq.broker.serve import producer_ids
from tinymq.broker.serve.producer_ids import ProducerIds
from tinymq.registry.memory import MemoryRegistry


def test_blocks_are_shared_and_never_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "BLOCK", 7)

    async def main() -> None:
        registry = MemoryRegistry(ManualClock(), random.Random(1), Timing())
        brokers = [ProducerIds(registry) for _ in range(3)]
        taken = await asyncio.gather(*(brokers[n % 3].take() for n in range(100)))
        assert len(set(taken)) == 100
        assert min(taken) == 1

    asyncio.run(main())


def test_a_failure_reaches_all_waiters_and_is_not_repeated() -> None:
    class Refusing(MemoryRegistry):
        refuse = True

        async def take_producer_ids(self, count: int) -> range:
            await asyncio.sleep(0)
            if self.refuse:
                raise OutcomeUnknown("no leader")
            return await super().take_producer_ids(count)

    async def main() -> None:
        registry = Refusing(ManualClock(), random.Random(1), Timing())
        ids = ProducerIds(registry)
        failed = await asyncio.gather(ids.take(), ids.take(), return_exceptions=True)
        assert all(isinstance(f, OutcomeUnknown) for f in failed)
        registry.refuse = False
        assert await ids.take() == 1

    asyncio.run(main())


def test_a_call_during_the_arrival_of_a_block_gets_an_id_from_it() -> None:
    """This once stopped the whole broker: a finished task was awaited again and again without a pause."""

    class Busy(MemoryRegistry):
        later: asyncio.Task[int] | None = None

        async def take_producer_ids(self, count: int) -> range:
            self.later = asyncio.ensure_future(ids.take())  # it runs right after this call ends
            return range(1, 1 + count)

    ids: ProducerIds

    async def main() -> None:
        nonlocal ids
        registry = Busy(ManualClock(), random.Random(1), Timing())
        ids = ProducerIds(registry)
        first = await ids.take()
        assert registry.later is not None
        assert {first, await registry.later} == {1, 2}

    asyncio.run(main())


def test_a_request_for_a_block_ends_with_the_broker() -> None:
    class Silent(MemoryRegistry):
        async def take_producer_ids(self, count: int) -> range:
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        ids = ProducerIds(Silent(ManualClock(), random.Random(1), Timing()))
        waiting = asyncio.ensure_future(ids.take())
        await asyncio.sleep(0)
        await ids.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
