"""The simulated disk, by itself."""

from __future__ import annotations

import asyncio
import random

import pytest

from tinymq_chaos.sim.disk import Disk, SimFiles
from tinymq_chaos.sim.virtual import Process, VirtualLoop, run_virtually


def test_who_is_cancelled_while_the_disk_hangs_leaves_the_others_waiting() -> None:
    async def main(loop: VirtualLoop) -> None:
        disk = Disk(loop, Process("a"), SimFiles(random.Random(1)), random.Random(1))
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
