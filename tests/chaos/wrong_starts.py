"""What `wrong_start` does to a world: see test_sim_faults.py."""

from __future__ import annotations

import random

from tests.chaos.worlds import begun
from tinymq_chaos.sim.faults.clocks import HOUR_US
from tinymq_chaos.sim.world import World


async def starts_wrong(world: World) -> None:
    """Another process with another clock, which leads what it holds alone before it hears anybody."""
    client = world.client(random.Random(3))
    for topic in ("alone", "later"):  # the second one lets the holder of the first know that it is committed
        await client.admin.create_topic(topic, 1, 1, timeout=10.0)
    await world.clock.sleep(0.5)
    starts = {n: broker.starts for n, broker in world.brokers.items()}
    words, fault = begun(world, "wrong_start")
    broker = world.brokers[int(words.split()[1])]
    assert not broker.up
    leads_alone = lambda: any(len(g.membership.replicas) == 1 and g.is_leader for g in broker.groups())  # noqa: E731
    await world.until(leads_alone, 4.0, "it leads")
    assert broker.app.host.count_alive() == 1
    assert broker.clock.wall_us() - world.clock.wall_us() == int(words.split()[3]) * HOUR_US
    next(fault, None)
    assert broker.skew_us == 0
    assert {n: b.starts - starts[n] for n, b in world.brokers.items()} == {n: int(n == broker.id) for n in starts}
    assert await world.healthy(10.0) == ""
