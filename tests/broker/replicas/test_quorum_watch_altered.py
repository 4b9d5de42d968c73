"""Automatic quorum recovery where `sync` is altered: the setting under which entries were acknowledged decides. A group
that lost entries at risk recovers automatically, whatever the present setting is. A group that lost entries promised to
be durable does not.
"""

from __future__ import annotations

import pytest

from tests.broker.replicas.test_quorum_watch import LAZY, WRITES, World, acknowledged_unsynced, brokers, with_world
from tests.broker.replicas.test_quorum_watch_storms import TermsAlone, calm, with_revival
from tests.raft.faults import FAULTS, Fault, storm
from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log import DISK, LogConfig

STORM_S = 6.0


def alter(world: World, config: LogConfig, *some: Broker) -> None:
    """These brokers learn the setting now, and every process that starts later does."""
    world.cluster.log_config = config
    for broker in some:
        broker.process.do(lambda broker=broker: broker.host.configure_group(GROUP, config))  # type: ignore[misc]


async def lose_files(world: World, *some: Broker) -> None:
    world.end("kill", *some)
    for broker in some:
        broker.files.remove_tree("groups")
        broker.files.sync_directory("")


@pytest.mark.parametrize("away", [1, 2, 3])
def test_a_group_recovers_although_sync_was_altered_to_always_since(away: int) -> None:
    """All brokers lose power, two return, the operator alters the topic, the third returns."""

    async def body(world: World) -> None:
        await acknowledged_unsynced(world)
        world.end("power_cut")
        world.new_history()
        last = world.cluster.brokers[away]
        early = tuple(b for b in brokers(world) if b is not last)
        await world.start(*early)
        await world.cluster.run_for(1.0)
        alter(world, DISK, *early)
        await world.cluster.run_for(1.0)
        assert world.counted == (0, 0)
        await world.start(last)
        await world.goes_on()
        assert world.counted == (1, 0)
        assert brokers(world)[0].machine().payloads[:5] == WRITES

    with_world(body, LAZY)


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.003])
def test_a_group_recovers_after_a_power_cut_right_after_the_alteration(after_s: float) -> None:
    async def body(world: World) -> None:
        await acknowledged_unsynced(world)
        alter(world, DISK, *brokers(world))
        if after_s:
            await world.cluster.run_for(after_s)
        world.end("power_cut")
        world.new_history()
        await world.start()
        await world.goes_on()
        assert brokers(world)[0].machine().payloads[:5] == WRITES

    with_world(body, LAZY)


@pytest.mark.parametrize("before", [DISK, LAZY], ids=["always", "intervals"])
@pytest.mark.parametrize("now", [DISK, LAZY], ids=["always-now", "intervals-now"])
def test_a_majority_that_lost_its_files_never_recovers_automatically(before: LogConfig, now: LogConfig) -> None:
    """No setting allows this recovery: the third broker lacks entries because it was down."""

    async def body(world: World) -> None:
        behind, *others = sorted(brokers(world), key=lambda b: b.group().is_leader)
        world.cluster.isolate(behind.id)
        for write in WRITES:
            await world.cluster.commit(write)
        await world.cluster.run_for(0.5)  # also topics synced at intervals reach the disk by now
        await lose_files(world, *others)
        world.cluster.heal()
        alter(world, now, behind)
        await world.start(*others)
        await world.cluster.run_for(10.0)
        assert world.counted == (0, 0)
        assert not world.cluster.leaders()

    with_world(body, before)


def test_a_fault_and_a_risk_on_two_of_three_wait_for_an_operator() -> None:
    async def body(world: World) -> None:
        await acknowledged_unsynced(world)
        one, two, _ = brokers(world)
        await lose_files(world, one)
        world.end("power_cut", two)
        await world.start(one, two)
        await world.cluster.run_for(6.0)
        assert world.counted == (0, 0)
        assert one.group().log.fault_count == one.group().log.count == 1
        assert (two.group().log.fault_count, two.group().log.count) == (0, 1)

    with_world(body, LAZY)


def test_a_repaired_fault_does_not_block_recovery() -> None:
    """The replica that lost its files is listed again. Its new identity is then lost to an allowed risk, like every
    other.
    """

    async def body(world: World) -> None:
        await world.write()
        one = brokers(world)[0]
        await lose_files(world, one)
        await world.start(one)
        await world.goes_on()
        assert one.group().log.fault_count == one.group().log.count == 1
        await acknowledged_unsynced(world)
        world.end("power_cut")
        world.new_history()
        await world.start()
        await world.goes_on()
        assert world.counted == (1, 0)

    with_world(body, LAZY)


# ---- storms ---------------------------------------------------------------------------------------------


class SyncedStays(TermsAlone):
    """An entry that a majority had synced when a replica applied it survives every later recovery."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.safe: dict[int, int] = {}  # index -> header crc
        self._cluster = cluster

    def applied(self, group: GroupId, broker_id: int, entry: Entry) -> None:
        crc = entry.header.header_crc
        if (known := self.safe.get(entry.index, crc)) != crc:
            self._refuse(f"broker {broker_id} applies {crc} as entry {entry.index}: {known} was synced on a majority")
        synced = 0
        for broker in self._cluster.brokers.values():
            log = broker.host.groups[group].log if broker.up and group in broker.host.groups else None
            synced += log is not None and log.synced_index >= entry.index and log.reader.crc_at(entry.index) == crc
        if 2 * synced > len(self._cluster.brokers):
            self.safe[entry.index] = crc

    def check(self) -> None:
        for broker in self._cluster.running:
            log = broker.group().log
            lost = [i for i, crc in self.safe.items() if i >= log.first_index and log.reader.crc_at(i) != crc]
            assert not lost, f"broker {broker.id} lacks entries {lost[:5]}, which were synced on a majority"


def alter_sync(cluster: Cluster) -> None:
    """One broker learns the setting now; the others when they start, or never."""
    config = cluster.rng.choice((DISK, LAZY))
    broker = cluster.rng.choice(list(cluster.brokers.values()))
    if cluster.rng.random() < 0.5:
        cluster.log_config = config
    if broker.up and GROUP in broker.host.groups:
        cluster.say(f"broker {broker.id} hears of sync={config.sync_interval_s}")
        broker.process.do(lambda: broker.host.configure_group(GROUP, config))


ALTERED: dict[Fault, int] = {**FAULTS, alter_sync: 3 * max(FAULTS.values())}


@pytest.mark.parametrize("seed", first_of(range(2), 1))
def test_groups_recover_and_keep_synced_entries_whatever_is_altered(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        world = World(cluster, LAZY)
        cluster.ledger = ledger = SyncedStays(cluster)
        for broker in cluster.brokers.values():
            with_revival(world, broker)
        await cluster.start()
        await cluster.until(cluster.leaders, 3.0)
        await storm(cluster, STORM_S, faults=ALTERED)
        await calm(cluster)
        ledger.check()

    simulate(scenario, seed, start=False)
