"""Groups that lost their quorum continue from the remaining replicas: whole brokers, with crashes and old disks."""

from __future__ import annotations

import pytest

from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import NotReady
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.raft import Role
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.quorum_loss import NOBODY, Healthy, QuorumLost, RecoveryVerdict, Unrecoverable, judge

WRITES = [b"%d" % i for i in range(5)]


def members(cluster: Cluster) -> list[int]:
    return [r.broker_id for r in cluster.running[0].group().membership.replicas]


def verdict(cluster: Cluster) -> RecoveryVerdict:
    return judge([b.group().report() for b in cluster.running], members(cluster))


def order(cluster: Cluster, lost: QuorumLost) -> Broker:
    """Force a leadership as a broker does on the operator's command."""
    taker = cluster.brokers[lost.survivor.broker_id]
    taker.process.do(lambda: taker.group().force_leadership(lost.term, lost.replicas))
    return taker


def recover(cluster: Cluster) -> Broker:
    found = verdict(cluster)
    assert isinstance(found, QuorumLost), found
    return order(cluster, found)


async def two_lost(cluster: Cluster) -> Broker:
    """Write five entries everywhere; then replace the disks of all brokers but 1 by empty ones."""
    for write in WRITES:
        await cluster.commit(write)
    await cluster.settle()
    for broker in list(cluster.brokers.values())[1:]:
        broker.wipe()
    for broker in list(cluster.brokers.values())[1:]:
        await broker.start()
    await cluster.run_for(3.0)
    assert not cluster.leaders()
    return cluster.brokers[1]


def has_a_vote(broker: Broker) -> bool:
    return broker.group().role in (Role.FOLLOWER, Role.LEADER)


@pytest.mark.parametrize("nodes", [3, 5])
def test_the_survivor_leads_and_fills_the_others(nodes: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        one = await two_lost(cluster)
        assert recover(cluster) is one
        await cluster.commit(b"new")
        await cluster.settle()
        await cluster.until(lambda: all(has_a_vote(b) for b in cluster.running), 0.1, "each disk has the CONFIG")
        assert all(b.machine().payloads == [*WRITES, b"new"] for b in cluster.running)
        one.kill()
        await cluster.commit(b"without the survivor")
        await one.start()
        await cluster.settle()
        await cluster.check_logs()

    simulate(scenario, nodes=nodes)


def test_nothing_is_acknowledged_on_one_disk() -> None:
    """The emptied broker has not received the CONFIG yet, so the forced leader commits nothing."""

    async def scenario(cluster: Cluster) -> None:
        one = await two_lost(cluster)
        found = verdict(cluster)
        assert isinstance(found, QuorumLost)
        commit = one.group().commit_index
        cluster.isolate(1)
        order(cluster, found)
        await cluster.until(lambda: one.group().is_leader, 1.0)
        await cluster.run_for(0.2)
        assert one.group().log.durable_index > commit
        assert one.group().commit_index == commit
        assert one.machine().leading is None, "and accepts nothing"
        await cluster.run_for(3.0)
        assert not one.group().is_leader
        cluster.heal()
        await cluster.run_for(3.0)
        recover(cluster)  # a second time: the CONFIG that it has appended is not committed
        await cluster.settle()
        assert one.machine().payloads == WRITES

    simulate(scenario)


@pytest.mark.parametrize("seed", first_of(range(12), 4))
def test_a_forced_leadership_that_is_interrupted_can_be_repeated(seed: int) -> None:
    """The power of the surviving broker, or of all brokers, is cut at some moment of the recovery."""

    async def scenario(cluster: Cluster) -> None:
        one = await two_lost(cluster)
        for _ in range(4):
            found = verdict(cluster)
            if isinstance(found, QuorumLost):
                order(cluster, found)
            else:
                assert isinstance(found, Healthy), found
            await cluster.run_for(cluster.rng.expovariate(30))
            for broker in [one] if cluster.rng.random() < 0.5 else list(cluster.brokers.values()):
                broker.power_cut()
            await cluster.start()
            await cluster.run_for(3.0)
        if isinstance(verdict(cluster), QuorumLost):
            recover(cluster)
        await cluster.commit(b"new")
        await cluster.settle()
        assert all(b.machine().payloads == [*WRITES, b"new"] for b in cluster.running)
        await cluster.check_logs()

    simulate(scenario, seed=seed)


def test_a_healthy_group_refuses() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        assert isinstance(verdict(cluster), Healthy)
        replicas = [b.group().report().replica for b in cluster.running]
        for broker in cluster.running:
            with pytest.raises(NotReady):
                broker.group().force_leadership(100, replicas)
        await cluster.run_for(1.0)
        assert cluster.leader().group().term == 1

    simulate(scenario)


async def survivor_is_behind(cluster: Cluster) -> Broker:
    """Broker 1 has five writes, the others two more. Broker 2's disk is lost, and broker 3 is down with its disk
    intact.
    """
    one, two, three = cluster.brokers.values()
    for write in WRITES:
        await cluster.commit(write)
    await cluster.settle()
    cluster.isolate(1)
    await cluster.until(lambda: any(b.group().is_leader for b in (two, three)), 5.0)
    for write in (b"lost", b"lost too"):
        await cluster.commit(write)
    await cluster.until(lambda: three.group().commit_index == two.group().commit_index, 5.0)
    two.wipe()
    three.kill()
    cluster.heal()
    await two.start()
    await cluster.run_for(3.0)
    return one


def accept_loss(cluster: Cluster, kept: int) -> None:
    """Make the ledger forget the entries after `kept`. A replica that still has them may apply them when it opens."""
    ledger, chosen = cluster.ledger, cluster.ledger.chosen[GROUP]
    given_up = dict(enumerate(chosen[kept:], kept + 1))
    del chosen[kept:]
    judged = ledger.applied

    def applied(group: GroupId, broker_id: int, entry: Entry) -> None:
        if given_up.get(entry.index) != (entry.term, entry.header.header_crc):
            judged(group, broker_id, entry)

    ledger.applied = applied  # type: ignore[method-assign]


def test_a_lost_disk_that_comes_back_takes_the_forced_history() -> None:
    async def scenario(cluster: Cluster) -> None:
        one = await survivor_is_behind(cluster)
        accept_loss(cluster, one.group().log.last_index)
        three = cluster.brokers[3]
        assert recover(cluster) is one
        for write in (b"a", b"b", b"c", b"d"):
            await cluster.commit(write)
        await three.start()
        expected = [*WRITES, b"a", b"b", b"c", b"d"]
        await cluster.until(lambda: three.machine().payloads == expected, 10.0)
        await cluster.until(lambda: has_a_vote(three), 1.0)
        await cluster.settle()
        assert [b.machine().payloads for b in cluster.running] == [expected] * 3
        await cluster.check_logs()

    simulate(scenario)


def test_a_lost_disk_that_comes_back_moves_no_other_replica() -> None:
    """Its term is far higher, and it campaigns repeatedly, but its recovery epoch is older."""

    async def scenario(cluster: Cluster) -> None:
        one = await survivor_is_behind(cluster)
        accept_loss(cluster, one.group().log.last_index)
        three = cluster.brokers[3]
        recover(cluster)
        await cluster.commit(b"a")
        term = cluster.leader().group().term
        cluster.isolate(3)
        await three.start()
        while three.group().term < 50:
            three.process.do(lambda: three.group().replica.elections.campaign(pre=False))
        cluster.heal()
        await cluster.until(lambda: three.machine().payloads == [*WRITES, b"a"], 10.0)
        await cluster.commit(b"b")
        await cluster.settle()
        assert cluster.leader().group().term == term
        assert three.machine().payloads == [*WRITES, b"a", b"b"]

    simulate(scenario)


def test_a_forced_leadership_that_committed_nothing_gives_up_nothing() -> None:
    """The recovery began without the broker with the longest log, and was interrupted. That broker is back before the
    retry.
    """

    async def scenario(cluster: Cluster) -> None:
        one = await survivor_is_behind(cluster)
        found = verdict(cluster)
        assert isinstance(found, QuorumLost)
        cluster.isolate(1)
        order(cluster, found)
        await cluster.until(lambda: one.group().is_leader and _all_synced(one), 1.0)
        one.power_cut()
        cluster.heal()
        await cluster.start()
        await cluster.run_for(3.0)
        assert not cluster.leaders(), (
            "broker 1 has the longer log, so it refuses 3 its vote, and its CONFIG does not list 3"
        )
        assert recover(cluster) is cluster.brokers[3]
        await cluster.commit(b"new")
        await cluster.until(lambda: all(has_a_vote(b) for b in cluster.running), 10.0)
        await cluster.settle()
        expected = [*WRITES, b"lost", b"lost too", b"new"]
        assert [b.machine().payloads for b in cluster.running] == [expected] * 3

    simulate(scenario)


def _all_synced(broker: Broker) -> bool:
    return broker.group().log.durable_index == broker.group().log.last_index


def test_a_lone_survivor_is_unrecoverable() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        for broker_id in (2, 3):
            cluster.brokers[broker_id].kill()
        await cluster.run_for(3.0)
        assert isinstance(verdict(cluster), Unrecoverable)

    simulate(scenario)


def test_a_replica_refuses_to_lead_a_group_that_could_not_elect_it() -> None:
    """It would have no majority, and would block replicas that come back with more entries."""

    async def scenario(cluster: Cluster) -> None:
        one = await two_lost(cluster)
        found = verdict(cluster)
        assert isinstance(found, QuorumLost)
        nobody = tuple(r if r.broker_id == 1 else Replica(r.broker_id, NOBODY) for r in found.replicas)
        with pytest.raises(NotReady, match="too few"):
            one.process.do(lambda: one.group().force_leadership(found.term, nobody))
        assert one.group().term < found.term

    simulate(scenario)
