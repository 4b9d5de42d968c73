"""The simulated disk, by itself."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.chaos.worlds import begun, in_world, write
from tinymq.base.errors import SyncFailed
from tinymq.simulation.faulty_files import Crash
from tinymq_chaos.sim.virtual.disk import SimDisk, SimFiles
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualLoop, run_virtually
from tinymq_chaos.sim.world.brokers import LOST
from tinymq_chaos.sim.world.world import World


def test_a_cancelled_operation_of_a_hung_disk_does_not_cancel_the_others() -> None:
    async def main(loop: VirtualLoop) -> None:
        disk = SimDisk(loop, SimProcess("a"), SimFiles(random.Random(1)), random.Random(1))
        hung = disk.hung = loop.create_future()
        gone, stays = (asyncio.create_task(disk.run(lambda: "done")) for _ in range(2))
        await asyncio.wait((gone, stays), timeout=1.0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not stays.done()
        disk.hung = None
        hung.set_result(None)
        assert await stays == "done"

    run_virtually(main)


def test_a_crash_counts_at_its_point_even_after_the_end_of_the_fault() -> None:
    files = SimFiles(random.Random(1))
    files.crash_at("marks", skip=0, operations_after=1, bytes_written=0)
    file = files.open("marks", create=True)
    assert files.struck == "marks"
    files.forget_crash()
    with pytest.raises(Crash):
        file.write(0, [b"x"])
    assert files.struck == "marks"


def test_a_power_cut_may_wait_until_something_is_not_synced() -> None:
    async def check(world: World) -> None:
        words, _ = begun(world, "power_cut", "once broker")
        broker = world.brokers[int(words.split("once broker ")[1].split()[0])]
        assert broker.up
        before = broker.happened.copy()
        await write(world.client(random.Random(2)), 12)
        assert not broker.up
        assert broker.happened - before == {"power cut": 1, "power cut with unsynced writes": 1} | (
            {LOST: 1} if broker.happened[LOST] > before[LOST] else {}
        )

    assert in_world(check).over


@pytest.mark.parametrize("pattern", ["a", "folder"])
def test_a_failed_sync_is_reported_and_raised(pattern: str) -> None:
    files, reported = SimFiles(random.Random(1)), []
    files.on_failed_sync = lambda: reported.append(pattern)
    files.make_directory("folder")
    file = files.open("a", create=True)
    files.fail_sync(pattern)
    sync = (lambda: files.sync([file])) if pattern == "a" else (lambda: files.sync_directory(pattern))
    with pytest.raises(SyncFailed):
        sync()
    sync()
    assert reported == [pattern]
