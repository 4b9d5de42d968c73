"""The effects of the end of a simulated broker on its disk."""

from __future__ import annotations

from tests.chaos.worlds import in_world
from tinymq.simulation.faulty_inodes import SECTOR_BYTES
from tinymq_chaos.sim.world.world import World

SCRATCH = "scratch"  # a file of the test's own


def test_a_power_cut_keeps_synced_bytes_and_any_unsynced_sectors() -> None:
    """The test looks at 16 sectors that were rewritten, all of them, and not synced before SimBroker.power_cut."""

    async def check(world: World) -> None:
        broker, kept = world.brokers[1], set()
        for n in range(12):
            file = broker.files.open(SCRATCH, create=True)
            for content in (b"old", b"new"):
                file.write(0, [content.ljust(SECTOR_BYTES) * 16])
                if content == b"old":
                    broker.files.sync([file])
                    broker.files.sync_directory("")
            broker.kill() if n == 0 else broker.power_cut()
            sectors = [broker.files.content(SCRATCH)[at : at + 3] for at in range(0, 16 * SECTOR_BYTES, SECTOR_BYTES)]
            assert {*sectors} <= {b"old", b"new"}
            assert n > 0 or {*sectors} == {b"new"}, "a killed process loses nothing that it has written"
            kept.add(sectors.count(b"new"))
            broker.revive()
            await world.clock.sleep(0.1)
        assert len(kept - {0, 16}) > 2

    assert in_world(check).brokers[1].happened["power cut that lost some"] == 11
