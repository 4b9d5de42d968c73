"""Metadata reads are never stale: whole brokers in virtual time, whose leader is isolated or changes. The promise of
`refresh`: after it, a broker knows everything that any broker acknowledged before, or it raises in time.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.seeds import first_of
from tinymq.base.errors import DeadlineExceeded, TinymqError
from tinymq.base.types import METADATA_GROUP
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.roles.leadership import Leadership
from tinymq_chaos.sim.virtual.virtual_cluster import VirtualBroker, VirtualCluster, simulate

TIMEOUT_S = 1.0


class Topics:
    """Creates topics one by one, and runs refreshes that must not miss an existing topic."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.made: list[str] = []
        self.stale: list[str] = []
        self.good: list[int] = []  # brokers
        self.failed: list[tuple[int, TinymqError]] = []
        self.longest_s = 0.0
        self._count = 0

    async def make(self, at: VirtualBroker) -> bool:
        self._count += 1
        name = f"t{self._count}"
        try:
            await at.process.run(at.broker.registry.register_topic(name, 1, 1, timeout_s=5.0))
        except TinymqError:
            return False
        self.made.append(name)
        return True

    async def refresh(self, broker: VirtualBroker) -> None:
        expected, begun = list(self.made), self.cluster.loop.time()
        registry = broker.broker.registry
        try:
            await broker.process.run(registry.refresh(TIMEOUT_S))
        except TinymqError as error:
            self.failed.append((broker.id, error))
        else:
            self.good.append(broker.id)
            self.stale += [f"broker {broker.id} misses {t}" for t in expected if registry.get_topic(t) is None]
        self.longest_s = max(self.longest_s, self.cluster.loop.time() - begun)

    async def refresh_all_the_time(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for broker in self.cluster.brokers.values():
                    group.create_task(self.refresh(broker))
                await self.cluster.clock.sleep(0.1)


def leader(cluster: VirtualCluster) -> VirtualBroker:
    leaders = [b for b in cluster.brokers.values() if b.host.groups[METADATA_GROUP].is_leader]
    return max(leaders, key=lambda b: b.host.groups[METADATA_GROUP].term)


def isolate(cluster: VirtualCluster, broker: VirtualBroker) -> None:
    cluster.network.isolate(broker.id, cluster.brokers)


async def an_isolated_leader(cluster: VirtualCluster) -> Topics:
    """The other brokers elect another leader and create topics; every broker is read all the time."""
    topics = Topics(cluster)
    await topics.make(cluster.brokers[1])
    old = leader(cluster)
    isolate(cluster, old)
    asking = cluster.loop.create_task(topics.refresh_all_the_time())
    others = [b for b in cluster.brokers.values() if b is not old]
    for i in range(10):
        assert await topics.make(others[i % 2])
        await cluster.clock.sleep(0.1)
    await cluster.clock.sleep(TIMEOUT_S)
    asking.cancel()
    cluster.network.heal()
    await cluster.clock.sleep(1.0)
    topics.good.clear()
    await topics.refresh(old)
    assert topics.good == [old.id], topics.failed[-1]
    return topics


@pytest.mark.parametrize("seed", first_of(range(4), 1))
def test_an_isolated_leader_never_answers_stale_reads(seed: int) -> None:
    async def scenario(cluster: VirtualCluster) -> None:
        topics = await an_isolated_leader(cluster)
        assert topics.stale == []
        assert topics.longest_s <= TIMEOUT_S + 0.001
        assert len(topics.made) == 11
        assert {type(error) for _, error in topics.failed} == {DeadlineExceeded}

    simulate(scenario, seed)


def test_mutant_a_leader_without_a_quorum_check_answers_stale_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step-down it answers stale reads without end; with one, until it steps down after the
    others' election.
    """

    def confirm_reads(self: Leadership) -> None:
        read_id = self.reads.begin(self.state.env.now())
        for peer in self.replication.progress:
            self.reads.answered(peer, read_id or 0)

    monkeypatch.setattr(Leadership, "confirm_reads", confirm_reads)
    monkeypatch.setattr(CurrentRole, "check_quorum", lambda self: None)

    async def scenario(cluster: VirtualCluster) -> None:
        assert (await an_isolated_leader(cluster)).stale

    simulate(scenario, 0)


@pytest.mark.parametrize("seed", first_of(range(4), 1))
def test_reads_during_leader_changes_end_in_time_and_are_complete(seed: int) -> None:
    async def scenario(cluster: VirtualCluster) -> None:
        topics = Topics(cluster)
        asking = cluster.loop.create_task(topics.refresh_all_the_time())
        terms = set()
        for _ in range(5):
            terms.add(leader(cluster).host.groups[METADATA_GROUP].term)
            what = cluster.rng.choice(("isolate", "hand over", "cut one link", "one way"))
            old = leader(cluster)
            other = cluster.rng.choice([b for b in cluster.brokers if b != old.id])
            if what == "isolate":
                isolate(cluster, old)
            elif what == "hand over":
                old.process.do(lambda old=old, other=other: old.host.transfer(METADATA_GROUP, other))
            else:
                cluster.network.cut(old.id, other, both=what == "cut one link")
            for _ in range(3):
                await topics.make(cluster.brokers[cluster.rng.randint(1, 3)])
                await cluster.clock.sleep(cluster.rng.uniform(0, 0.5))
            cluster.network.heal()
            await cluster.clock.sleep(cluster.rng.uniform(0, 0.5))
        asking.cancel()
        await cluster.clock.sleep(1.0)
        topics.good.clear()
        for broker in cluster.brokers.values():
            await topics.refresh(broker)
        assert topics.good == [1, 2, 3]
        assert topics.stale == []
        assert topics.longest_s <= TIMEOUT_S + 0.001
        assert len(terms) > 1
        assert len(topics.made) > 5

    simulate(scenario, seed)
