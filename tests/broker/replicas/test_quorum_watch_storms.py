"""Random faults of brokers, links and disks while groups are in memory or synced at intervals. Afterwards all replicas
vote and agree. Committed entries may contradict those from before the loss of a majority, so the ledger then checks
only that no term has two leaders. Where nothing may be lost, it checks everything.
"""

from __future__ import annotations

import pytest

from tests.broker.replicas.test_quorum_watch import LAZY, MEMORY, World
from tests.raft.faults import FAULTS, Fault, fail_sync, power_cut, power_cut_all, storm
from tests.raft.harness import Broker, Cluster, Ledger, simulate
from tests.seeds import first_of
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log import LogConfig
from tinymq.raft import Role

STORM_S = 10.0
NO_POWER_CUT = {fault: often for fault, often in FAULTS.items() if fault not in (power_cut, power_cut_all, fail_sync)}


class TermsAlone(Ledger):
    """A ledger that lets applied entries be lost, as announced."""

    def applied(self, group: GroupId, broker_id: int, entry: Entry) -> None:
        """Whatever it is."""


def with_revival(world: World, broker: Broker) -> None:
    """Configures every process of the broker from now on."""
    start = broker.start

    async def start_all() -> None:
        await start()
        if broker.up:
            broker.process.do(lambda: world.begin(broker))

    broker.start = start_all  # type: ignore[method-assign]


async def calm(cluster: Cluster) -> None:
    cluster.heal()
    for broker in cluster.brokers.values():
        for other in cluster.brokers:
            cluster.network.delay(broker.id, other, 0.0002, 0.0005)
        broker.rate, broker.skew_us = 1.0, 0
        cluster.resume(broker.id)
        if broker.up:
            broker.disk.delay_s = (0.00005, 0.002)
    await cluster.run_for(4.0)  # start every broker again, and repair the disks
    await cluster.until(cluster.all_up, 20.0, "all brokers are up")
    await cluster.until(lambda: cluster.leaders() and all(votes(b) for b in cluster.running), 20.0, "all vote")
    await cluster.run_for(1.0)
    await cluster.commit(b"after the storm")
    await cluster.run_for(1.0)
    states = {(b.machine().index, b.machine().state) for b in cluster.running}
    assert len(states) == 1, cluster.describe()


def votes(broker: Broker) -> bool:
    return broker.group().role in (Role.LEADER, Role.FOLLOWER)


def check_a_storm(config: LogConfig, faults: dict[Fault, int], ledger: type[Ledger], seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        world = World(cluster, config)
        cluster.ledger = ledger()
        for broker in cluster.brokers.values():
            with_revival(world, broker)
        await cluster.start()
        await cluster.until(cluster.leaders, 3.0)
        await storm(cluster, STORM_S, faults=faults)
        await calm(cluster)
        if ledger is Ledger:
            await cluster.check_logs()

    simulate(scenario, seed, start=False)


@pytest.mark.parametrize("seed", first_of(range(4), 1))
@pytest.mark.parametrize("config", [MEMORY, LAZY], ids=["memory", "intervals"])
def test_groups_recover_and_agree_after_storms(config: LogConfig, seed: int) -> None:
    check_a_storm(config, FAULTS, TermsAlone, seed)


@pytest.mark.parametrize("seed", first_of(range(4), 1))
def test_synced_at_intervals_nothing_is_lost_without_a_power_cut(seed: int) -> None:
    check_a_storm(LAZY, NO_POWER_CUT, Ledger, seed)
