"""A crash at any disk operation leaves a broker without a cluster or with a complete one, and a retry completes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.config import Limits
from tinymq.base.errors import InvalidRequest, WrongBroker, WrongCluster
from tinymq.base.types import METADATA_GROUP
from tinymq.broker.cluster.formation import Formation
from tinymq.format.entry import Entry
from tinymq.log.engine.store import Store
from tinymq.log.files.runner import InlineRunner
from tinymq.raft import Replica, make_first_entry
from tinymq.simulation.faulty_files import Crash, FaultyFiles

T = TypeVar("T")

CLUSTER = b"c" * 16


async def open_broker(files: FaultyFiles) -> Formation:
    store = await Store.open(files, InlineRunner(), ManualClock(), broker_id=1, limits=Limits(), rng=random.Random(1))
    formation = Formation(1, [1], store, files, InlineRunner())
    await formation.load()
    return formation


def first_entry(formation: Formation, incarnation: bytes | None = None, broker_id: int = 1) -> Entry:
    return make_first_entry(METADATA_GROUP, [Replica(broker_id, incarnation or formation.incarnation)], 5)


def packed(entry: Entry) -> bytes:
    return entry.head + entry.payload


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_every_operation(seed: int, join: bool) -> None:
    async def main() -> None:
        for operations in range(100):
            files = FaultyFiles(random.Random(seed))
            formation = await open_broker(files)
            entry = first_entry(formation, b"earlier" * 2 + b"!!" if join else None)
            files.crash_after(operations)
            crashed = False
            try:
                await (formation.join if join else formation.form)(CLUSTER, packed(entry))
            except Crash:
                crashed = True
            files.power_cut()
            again = await open_broker(files)
            if not crashed:
                assert again.cluster_id == CLUSTER
                assert again.first_entry == entry
                return
            assert again.cluster_id in (b"", CLUSTER)
            assert again.incarnation == formation.incarnation
            await (again.join if join else again.form)(CLUSTER, packed(entry))
            assert (again.cluster_id, again.first_entry) == (CLUSTER, entry)
        pytest.fail("it never ended")

    asyncio.run(main())


def test_once_formed_it_stays() -> None:
    async def main() -> None:
        formation = await open_broker(FaultyFiles(random.Random(1)))
        assert await formation.is_empty()
        entry = first_entry(formation)
        formed_with: list[Entry] = []
        formation.on_formed = formed_with.append
        await formation.form(CLUSTER, packed(entry))
        await formation.form(CLUSTER, packed(entry))
        assert formed_with == [entry]
        for cluster_id, first in ((b"o" * 16, packed(entry)), (CLUSTER, packed(entry) + b"x")):
            with pytest.raises(WrongCluster):
                await formation.form(cluster_id, first)

    asyncio.run(main())


def test_only_a_joining_broker_may_have_another_data_directory() -> None:
    async def main() -> None:
        formation = await open_broker(FaultyFiles(random.Random(1)))
        entry = first_entry(formation, b"another folder's")
        with pytest.raises(WrongBroker, match="with this data directory") as refused:
            await formation.form(CLUSTER, packed(entry))
        assert "joins a formed cluster by itself" in refused.value.hint
        with pytest.raises(WrongBroker):
            await formation.join(CLUSTER, packed(first_entry(formation, broker_id=2)))
        with pytest.raises(InvalidRequest):
            await formation.join(CLUSTER, b"nonsense")
        assert formation.cluster_id == b""
        await formation.join(CLUSTER, packed(entry))
        assert formation.cluster_id == CLUSTER

    asyncio.run(main())


def test_a_client_that_disconnects_while_forming_leaves_no_partial_cluster() -> None:
    """The client disconnects while the first entry is written, and another client forms another cluster."""

    class Slow(InlineRunner):
        def __init__(self) -> None:
            self.free = asyncio.Event()

        async def run(self, call: Callable[[], T]) -> T:
            await self.free.wait()
            return call()

    async def main() -> None:
        files, slow = FaultyFiles(random.Random(1)), Slow()
        store = await Store.open(
            files, InlineRunner(), ManualClock(), broker_id=1, limits=Limits(), rng=random.Random(1)
        )
        formation = Formation(1, [1], store, files, slow)
        entry = first_entry(formation)
        gone = asyncio.ensure_future(formation.form(CLUSTER, packed(entry)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        other = asyncio.ensure_future(formation.form(b"d" * 16, packed(entry)))
        await asyncio.sleep(0)
        slow.free.set()
        with pytest.raises(WrongCluster):
            await other
        assert (formation.cluster_id, formation.first_entry) == (CLUSTER, entry)
        await store.close()
        again = await open_broker(files)
        assert (again.cluster_id, again.first_entry) == (CLUSTER, entry)

    asyncio.run(main())


def test_formed_and_joined_at_once_is_formed_once() -> None:
    async def main() -> None:
        formation = await open_broker(FaultyFiles(random.Random(1)))
        entry = first_entry(formation)
        formed_with: list[Entry] = []
        formation.on_formed = formed_with.append
        calls = (formation.form, formation.join, formation.form)
        await asyncio.gather(*(call(CLUSTER, packed(entry)) for call in calls))
        assert formed_with == [entry]

    asyncio.run(main())
