"""The effect of altered settings: every broker reports the setting as it was altered."""

from __future__ import annotations

import random
import re

from tests.chaos.worlds import begun
from tinymq_chaos.sim.world.world import World

HEARD_S = 5.0  # for the alteration


async def alters(world: World) -> None:
    words, fault = begun(world, "alter")
    found = re.fullmatch(r"(\w+)=(\w+) of (\w+)", words)
    assert found is not None, words
    name, value, topic = found.groups()
    client = world.client(random.Random(1))
    end_s = world.loop.time() + HEARD_S
    while (await client.admin.describe_topic(topic, timeout=HEARD_S)).settings[name] != value:
        assert world.loop.time() < end_s, words
        await world.clock.sleep(0.05)
    next(fault, None)
    (call,) = world.history.of("alter_topic")
    assert call.args["settings"] == {name: value}
    assert call.ended_s is not None
