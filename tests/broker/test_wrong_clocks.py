"""One broker of three has a wrong clock, and leads the only replica of a partition while it is isolated. Whole brokers
in virtual time. Its append times, retention and holds follow the time that really passed, before and after the links
heal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.broker.state.test_retention_groups import fill, until_it_is_done
from tests.broker.values import holds
from tinymq.base.topic_config import TopicConfig
from tinymq.broker.partition.partition import Partition
from tinymq.registry.state.values import TopicRecord
from tinymq_chaos.sim.virtual.virtual_cluster import VirtualBroker, VirtualCluster, simulate

DAYS_US = 8 * 24 * 3_600_000_000
WRONG_US = (DAYS_US, -DAYS_US, 0)
KEPT_S = 12  # and retention runs every 5 s


class Bench:
    """A topic with one replica, on the broker that the test isolates."""

    def __init__(self, cluster: VirtualCluster, topic: TopicRecord) -> None:
        self.cluster, self.topic = cluster, topic
        self.victim: VirtualBroker = cluster.brokers[topic.queues[0].replicas[0].broker_id]

    @property
    def partition(self) -> Partition:
        partition = self.victim.partition(self.topic, 0)
        assert partition is not None
        return partition

    async def fill(self, batches: int) -> None:
        await fill(self.cluster, self.topic, batches)

    async def sleep(self, seconds: float) -> None:
        await self.cluster.clock.sleep(seconds)

    def cut_off(self) -> None:
        self.cluster.network.isolate(self.victim.id, self.cluster.brokers)

    async def restart(self, skew_us: int, down_s: float) -> None:
        """End its process, and start another on the same disk with another clock."""
        self.victim.power_cut()
        self.victim.skew_us = skew_us
        await self.sleep(down_s)
        await self.victim.start()
        await self.cluster.until(lambda: self.cluster.leader(self.topic, 0), 20.0, "it leads")

    def late_s(self) -> float:
        """Return how far the append clock is behind the real time."""
        return (self.cluster.clock.wall_us() - self.partition.group.append_time_now_us()) / 1e6

    async def kept_and_gone(self) -> tuple[int, int]:
        """Return the log start now, and once every record must have expired."""
        now = self.partition.log_start
        await self.sleep(KEPT_S + 8)
        return now, self.partition.log_start


def run(scenario: Callable[[Bench], Awaitable[None]], seed: int = 1, **settings: object) -> None:
    async def whole(cluster: VirtualCluster) -> None:
        broker = cluster.brokers[1]
        config = TopicConfig(**{"retention_ms": KEPT_S * 1000} | settings)  # type: ignore[arg-type]
        topic = await broker.process.run(broker.broker.registry.register_topic("t", 1, 1, config))
        await cluster.until(lambda: cluster.leader(topic, 0), what="somebody leads")
        for name in "uv":  # the next entry tells each disk that the topic is committed
            await broker.process.run(broker.broker.registry.register_topic(name, 1, 3))
        await cluster.clock.sleep(1.0)
        await scenario(Bench(cluster, topic))

    simulate(whole, seed)


@pytest.mark.parametrize("skew_us", WRONG_US)
def test_an_isolated_leader_removes_nothing_by_age_and_stamps_true_ages(skew_us: int) -> None:
    """The broker is down for longer than records are kept. Its append clock cannot know that, but its new records must
    not look that old.
    """

    async def scenario(bench: Bench) -> None:
        await bench.fill(20)
        bench.cut_off()
        await bench.restart(skew_us, KEPT_S + 4)
        await bench.fill(5)
        await bench.sleep(15)
        assert bench.partition.log_start == 0, "it hears nobody"
        bench.cluster.network.heal()
        await bench.sleep(8)
        assert abs(bench.late_s()) < 0.1
        now, then = await bench.kept_and_gone()
        assert now == 20, "earlier records have expired by now, and records appended since have not"
        assert then == 25

    run(scenario)


def test_a_broker_restarted_in_isolation_still_knows_ages() -> None:
    """The clock is first ahead, then behind, then ahead again."""

    async def scenario(bench: Bench) -> None:
        await bench.fill(3)
        bench.cut_off()
        await bench.restart(DAYS_US, KEPT_S)
        await bench.fill(3)
        await bench.restart(-DAYS_US, 1)
        await bench.fill(3)
        bench.cluster.network.heal()
        await bench.restart(DAYS_US, 1)
        await bench.sleep(6)
        assert await bench.kept_and_gone() == (3, 9)
        assert abs(bench.late_s()) < 0.1

    run(scenario)


@pytest.mark.parametrize("again", [False, True])
def test_a_hold_taken_in_isolation_ends_on_time(again: bool) -> None:
    """The same when the clock jumps forward on hearing the others, and when a new leadership begins with that jump."""

    async def scenario(bench: Bench) -> None:
        await bench.fill(5)
        bench.cut_off()
        await bench.restart(0, 3 * KEPT_S)
        await until_it_is_done(bench.cluster, bench.topic, holds(2, lease_ms=10_000))
        await bench.sleep(3)
        bench.cluster.network.heal()
        if again:
            await bench.restart(0, 1)
        await bench.sleep(6)
        assert bench.partition.log_start == 2
        await bench.sleep(10)  # another process counts from the last entry, which is 3 s longer
        assert bench.partition.log_start == 5

    run(scenario)


def test_a_leader_that_stops_hearing_the_others_removes_by_size_alone() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.fill(3)
        bench.cut_off()
        await bench.sleep(KEPT_S + 6)
        assert bench.partition.log_start == 0
        await bench.fill(30)
        await bench.sleep(6)
        assert bench.partition.log_start > 10
        bench.cluster.network.heal()
        assert (await bench.kept_and_gone())[1] == 33

    run(scenario, retention_bytes=20_000)


@pytest.mark.parametrize("skew_us", [DAYS_US, -DAYS_US])
def test_a_wrong_clock_among_all_of_them_moves_nothing(skew_us: int) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.fill(3)
        await bench.restart(skew_us, 1)
        await bench.sleep(6)
        assert bench.partition.log_start == 0
        assert abs(bench.late_s()) < 0.1

    run(scenario)
