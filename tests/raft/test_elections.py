"""Elections and leaderships of whole brokers in virtual time, and the log that a successor finds."""

from __future__ import annotations

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import NotLeader
from tinymq.base.types import GroupId
from tinymq.format.entry import Kind, NewEntry
from tinymq.raft import Role

SEEDS = first_of(range(5), 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_preferred_replica_is_elected_at_once(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.until(cluster.leaders, 0.5)
        await cluster.settle()
        assert cluster.leader().id == 1
        assert cluster.leader().group().term == 1
        assert [b.group().leader for b in cluster.running] == [1, 1, 1]
        assert [b.host.leader_of(GROUP) for b in cluster.running] == [(1, 1)] * 3

    simulate(scenario, seed)


def test_groups_are_led_by_the_replicas_that_they_prefer() -> None:
    groups = [GroupId(GROUP.topic_id, p) for p in range(6)]

    async def scenario(cluster: Cluster) -> None:
        for at, group in enumerate(groups):
            await cluster.settle(group)
            assert cluster.leader(group).id == at % 3 + 1

    simulate(scenario, groups=groups)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_replica_applies_each_proposal_once_and_in_order(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        payloads = [b"%d" % i for i in range(50)]
        for payload in payloads:
            await cluster.commit(payload)
        await cluster.settle()
        for broker in cluster.running:
            assert broker.machine().payloads == payloads
            assert [e.header.base_offset for e in broker.machine().entries if e.header.kind == Kind.DATA] == list(
                range(50)
            )
            assert broker.group().high_watermark == 50
            assert broker.machine().entries[0].header.kind == Kind.CONFIG, "index 1 is also applied"
        await cluster.check_logs()

    simulate(scenario, seed)


@pytest.mark.parametrize("seed", first_of(range(20), 3))
@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
def test_a_killed_leader_is_succeeded_within_a_second_and_nothing_committed_is_lost(seed: int, silent: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = [await cluster.commit(b"%d" % i) for i in range(20)]
        first = cluster.leader()
        if silent:  # the machine is down: nothing refuses connections to it
            cluster.isolate(first.id)
        first.kill()
        took = await cluster.until(lambda: [b for b in cluster.leaders() if b is not first], 1.5)
        assert took < (1.1 if silent else 0.5), took
        successor = cluster.leader()
        assert successor.machine().index > positions[-1].index
        await cluster.settle()
        assert successor.machine().payloads == [b"%d" % i for i in range(20)]

    simulate(scenario, seed)


def test_a_killed_broker_comes_back_as_a_follower_and_catches_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"before")
        first = cluster.leader()
        first.kill()
        for i in range(200):
            await cluster.commit(b"%d" % i)
        term = cluster.leader().group().term
        await first.start()
        await cluster.settle()
        assert cluster.leader() is not first
        assert cluster.leader().group().term == term, "its return deposes no leader"
        assert first.machine().payloads == [b"before", *(b"%d" % i for i in range(200))]
        await cluster.check_logs()

    simulate(scenario)


def test_a_follower_far_behind_is_caught_up_from_disk_while_the_group_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        behind = cluster.followers()[0]
        behind.kill()
        for _ in range(60):  # several segments, and far more than the cache holds
            await cluster.commit(bytes(1500))
        leader = cluster.leader()
        assert leader.group().log.reader.tail(2, 1) is None, "the entries are no longer in memory"
        await behind.start()
        for i in range(10):
            await cluster.commit(b"%d" % i)
        await cluster.settle()
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_an_isolated_leader_steps_down_and_its_waiters_get_outcome_unknown(seed: int) -> None:
    """Check-quorum: hazard 13's first half."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"before")
        await cluster.settle()
        old = cluster.leader()
        cluster.isolate(old.id)
        lost = old.propose(b"never committed")
        await cluster.until(lambda: old.machine().leading is None, 1.2)
        assert old.machine().unknown == [lost]
        assert old.group().role is not Role.LEADER
        with pytest.raises(NotLeader):
            old.group().propose(NewEntry(Kind.DATA, b"x"))
        await cluster.until(cluster.leaders, 1.0)
        await cluster.commit(b"after")
        cluster.heal()
        await cluster.settle()
        assert old.machine().payloads == [b"before", b"after"]
        assert cluster.leader() is not old

    simulate(scenario, seed)


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_an_isolated_follower_that_returns_deposes_no_leader(seed: int) -> None:
    """Pre-vote: the broker raised no term while it was isolated."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        leader, away = cluster.leader(), cluster.followers()[0]
        term = leader.group().term
        cluster.isolate(away.id)
        await cluster.run_for(5.0)
        await cluster.commit(b"meanwhile")
        cluster.heal()
        await cluster.settle()
        assert cluster.leader() is leader
        assert [b.group().term for b in cluster.running] == [term] * 3

    simulate(scenario, seed)


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_a_chained_partition_keeps_its_leader(seed: int) -> None:
    """Hazard 14: 1 and 3 cannot reach one another; 2 reaches both."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        cluster.cut(1, 3)
        await cluster.run_for(3.0)
        for i in range(20):
            await cluster.commit(b"%d" % i, within_s=0.5)
            await cluster.run_for(0.5)
        assert len(cluster.ledger.leaders) <= 3, cluster.describe()
        cluster.heal()
        await cluster.settle()

    simulate(scenario, seed)


def test_leadership_is_transferred_without_a_gap() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"before")
        leader = cluster.leader()
        assert leader.process.do(lambda: leader.host.transfer(GROUP, 3))
        with pytest.raises(NotLeader):
            leader.propose(b"while handing over")
        took = await cluster.until(lambda: [b for b in cluster.leaders() if b.id == 3], 0.1)
        assert took < 0.05
        await cluster.commit(b"after")
        await cluster.settle()
        assert leader.machine().payloads == [b"before", b"after"]
        assert leader.machine().calls == ["lead 1", "follow"]

    simulate(scenario)


def test_a_transfer_to_a_dead_broker_ends_and_the_leader_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        leader, follower = cluster.leader(), cluster.followers()[0]
        follower.kill()
        assert leader.process.do(lambda: leader.host.transfer(GROUP, follower.id))
        await cluster.run_for(cluster.timing.transfer_timeout_s + 0.5)
        assert cluster.leader() is leader
        leader.propose(b"accepted again")
        assert not leader.process.do(lambda: leader.host.transfer(GROUP, 9))

    simulate(scenario)


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_a_leader_whose_disk_hangs_transfers_its_leadership(seed: int) -> None:
    """It still commits with the others' disks, but it could not survive a restart, and transfers its leadership in
    time.
    """

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"before")
        await cluster.settle()
        await cluster.run_for(cluster.rng.uniform(0.0, 5.0))
        leader = cluster.leader()
        leader.disk.hung = cluster.loop.create_future()
        await cluster.commit(b"meanwhile", within_s=0.1)
        took = await cluster.until(lambda: [b for b in cluster.leaders() if b is not leader], 2.0)
        assert 0.8 < took < 1.4
        await cluster.commit(b"after")
        assert cluster.leader().machine().payloads == [b"before", b"meanwhile", b"after"]

    simulate(scenario, seed)


def test_a_leader_whose_disk_is_slow_stays() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"before")
        leader = cluster.leader()
        leader.disk.delay_s = (0.2, 0.4)
        for i in range(20):
            await cluster.commit(b"%d" % i)
            await cluster.run_for(0.2)
        assert cluster.leader() is leader

    simulate(scenario)


def test_a_stopping_broker_transfers_its_leaderships() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"before")
        leader = cluster.leader()
        machine = leader.machine()
        begun = cluster.loop.time()
        await leader.stop()
        assert cluster.loop.time() - begun < 0.5
        assert machine.calls[-1] == "follow", "another broker led before it left"
        await cluster.until(cluster.leaders, 0.1)
        await cluster.commit(b"after")
        await leader.start()
        await cluster.settle()
        assert leader.machine().payloads[-1] == b"after"

    simulate(scenario)


def test_all_brokers_may_stop_and_start_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        for i in range(30):
            await cluster.commit(b"%d" % i)
        for broker in cluster.brokers.values():
            await broker.stop()
        await cluster.start()
        await cluster.settle()
        await cluster.commit(b"more")
        await cluster.settle()
        assert [len(b.machine().payloads) for b in cluster.running] == [31] * 3
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_other_numbers_of_replicas(nodes: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        for i in range(10):
            await cluster.commit(b"%d" % i)
        await cluster.settle()
        cluster.leader().power_cut()
        await cluster.start()
        await cluster.settle()
        await cluster.commit(b"more")
        await cluster.settle()
        assert cluster.leader().group().high_watermark == 11
        await cluster.check_logs()

    simulate(scenario, nodes=nodes)
