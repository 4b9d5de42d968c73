"""One disk at a time is damaged, even if one fault ends while another begins."""

from __future__ import annotations

from tests.chaos.worlds import begun, in_world, numbers
from tinymq_chaos.sim.world.world import World


def test_an_old_disk_stays_away_while_another_broker_recovers() -> None:
    """Seed 1011, five brokers: two of three replicas belonged to no broker at once, and the group had no majority for
    good.
    """

    async def check(world: World) -> None:
        words, old_disk = begun(world, "old_disk")
        broker = world.brokers[numbers(words)[0]]
        await world.clock.sleep(3.0)
        assert await world.healthy(20.0) == ""
        new = broker.files
        other = next(b for b in world.brokers.values() if b is not broker)
        other.wipe()
        next(old_disk, None)
        assert broker.files is new
        assert broker.up
        other.revive()
        assert await world.healthy(20.0) == ""

    in_world(check)
