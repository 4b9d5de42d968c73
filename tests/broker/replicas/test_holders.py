"""The set of brokers with a replica: after any change of topics it equals a fresh count."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

from tinymq.base.clock import SystemClock
from tinymq.base.config import Timing
from tinymq.broker.replicas.holders import Holders
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.state.values import BrokerRecord


def record(broker_id: int) -> BrokerRecord:
    return BrokerRecord(broker_id, bytes([broker_id]) * 16, 1, f"h:{broker_id}", f"h:{broker_id + 100}")


async def _changes() -> None:
    rng = random.Random(5)
    registry = MemoryRegistry(SystemClock(), rng, Timing())
    try:
        for broker_id in range(1, 6):
            await registry.register_broker(record(broker_id))
        said: list[frozenset[int]] = []
        await registry.register_topic("first", 1, 2)
        Holders(registry, said.append).start()
        assert len(said[-1]) == 2
        for n in range(60):
            names = [topic.name for topic in registry.get_all_topics()]
            match rng.randrange(4):
                case 0:
                    await registry.register_topic(f"t{n}", rng.randint(1, 3), rng.randint(1, 3))
                case 1 if names:
                    await registry.unregister_topic(rng.choice(names))
                case 2 if names:
                    await registry.register_queue(rng.choice(names))
                case _ if names:
                    name = rng.choice(names)
                    queues = registry.get_queues_by_topic(name)
                    if len(queues) > 1:
                        await registry.unregister_queue(name, rng.choice(queues).partition)
            held = {r.broker_id for q in registry.get_all_queues() for r in q.replicas}
            assert said[-1] == held
        assert all(a != b for a, b in pairwise(said)), "and only then"
        assert len(said) > 5
    finally:
        registry.close()


def test_changes_of_the_set_of_holders_are_reported() -> None:
    asyncio.run(_changes())
