"""The effects of disks that refuse or hang in part."""

from __future__ import annotations

import re

import pytest

from tests.chaos.worlds import begun, numbers
from tinymq.base.errors import DiskFull, StorageError
from tinymq_chaos.sim.world.world import World

SCRATCH = "groups/scratch"  # a file of the test's own


async def hangs_one_file(world: World) -> None:
    words, fault = begun(world, "hung_file")
    path, _, rest = words.partition(" of broker ")
    broker = world.brokers[int(rest)]
    file, other = broker.files.open(path), broker.files.open("LOCK")
    ended: list[str] = []

    async def use(name: str, size: object) -> None:
        await broker.disk.run(size)  # type: ignore[arg-type]
        ended.append(name)

    tasks = [
        broker.process.spawn(use("this file", lambda: file.read(0, 1))),
        broker.process.spawn(use("another", lambda: other.size())),
    ]
    await world.clock.sleep(1.0)
    assert ended == ["another"], words
    assert broker.disk.waits_for_file >= 1
    next(fault, None)
    await world.clock.sleep(0.1)
    assert ended == ["another", "this file"]
    assert all(task.done() for task in tasks)


async def fails_one_operation(world: World) -> None:
    words, fault = begun(world, "disk_error", saying="write groups/* at")
    (number,) = numbers(words.partition(",")[0].partition("broker")[2])
    broker = world.brokers[number]
    before = broker.starts
    file = broker.files.open(SCRATCH, create=True)
    with pytest.raises(StorageError, match="cannot write groups/scratch: Input/output error"):
        file.write(0, [b"x"])
    file.truncate(1)
    assert file.read(0, 1) == b"\0"
    next(fault, None)
    file = broker.files.open(SCRATCH)
    file.write(0, [b"x"])
    broker.files.remove(SCRATCH)
    await world.until(lambda: broker.starts > before and broker.serves, 20.0, "it starts again, and is well")


async def has_no_room(world: World) -> None:
    """There is room again while the process still runs."""
    words, fault = begun(world, "no_room", saying=", for")
    broker = world.brokers[int(re.findall(r"broker (\d+)", words)[0])]
    process = broker.process
    with pytest.raises(DiskFull):
        broker.files.open(SCRATCH, create=True)
    with pytest.raises(DiskFull):
        broker.files.make_directory("groups/new")
    assert broker.files.errors.counts["create"] >= 1
    await world.clock.sleep(2.1)
    assert broker.process is process
    broker.files.open(SCRATCH, create=True).close()
    broker.files.remove(SCRATCH)
    next(fault, None)
    bad = await world.healthy(20.0)
    assert bad == "", bad
