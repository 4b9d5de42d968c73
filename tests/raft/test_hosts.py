"""A broker's host: groups that open and close, requests between brokers, and leader hints."""

from __future__ import annotations

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tinymq.base.errors import OutcomeUnknown, TopicExists, Unavailable
from tinymq.base.types import GroupId
from tinymq.raft import Role

OTHER = GroupId(GROUP.topic_id, 1)


def test_a_closed_group_gets_another_leader_at_once_and_can_be_opened_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        closer = cluster.leader()
        await closer.process.run(closer.host.close_group(GROUP))
        assert closer.machine().calls[-1] == "follow"
        took = await cluster.until(lambda: [b for b in cluster.leaders() if b is not closer], 1.0)
        assert took < 0.5
        await cluster.commit(b"y")
        await closer.process.run(closer.open_group(GROUP, cluster.first_entries[GROUP]))
        await cluster.settle()
        assert closer.machine().payloads == [b"x", b"y"]

    simulate(scenario)


def test_a_deleted_group_leaves_nothing_behind() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.commit(b"x", OTHER)
        for broker in cluster.running:
            await broker.process.run(broker.host.delete_group(GROUP))
        for broker in cluster.running:
            assert GROUP not in broker.host.groups
            assert broker.store.groups_ever_opened == [OTHER]
            assert broker.store.votes.get(GROUP) == (0, None)
        await cluster.commit(b"y", OTHER)
        for broker in cluster.brokers.values():
            broker.power_cut()
        for broker in cluster.brokers.values():
            await broker.open_store()
            assert broker.store.list_groups() == [OTHER]

    simulate(scenario, groups=[GROUP, OTHER])


def test_a_group_of_one_may_be_opened_before_its_host_starts() -> None:
    """Its vote is synced before any peer connects, so no other event would wake the group."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.until(cluster.leaders, 1.0)
        await cluster.commit(b"x")
        for _ in range(3):
            cluster.brokers[1].power_cut()
            await cluster.start()
            await cluster.until(cluster.leaders, 1.0)
        assert cluster.leader().group().log.last_term == 4

    simulate(scenario, nodes=1)


def test_questions_between_brokers() -> None:
    async def upper(body: bytes) -> bytes:
        return body.upper()

    async def refuse(body: bytes) -> bytes:
        raise TopicExists("it is there")

    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        one, two = cluster.brokers[1], cluster.brokers[2]
        two.host.serve("upper", upper)
        two.host.serve("refuse", refuse)
        assert await one.process.run(one.host.request(2, "upper", b"abc", 1.0)) == b"ABC"
        assert await two.process.run(two.host.request(2, "upper", b"abc", 1.0)) == b"ABC"
        with pytest.raises(TopicExists):
            await one.process.run(one.host.request(2, "refuse", b"", 1.0))
        cluster.cut(1, 2)
        begun = cluster.loop.time()
        with pytest.raises(OutcomeUnknown):
            await one.process.run(one.host.request(2, "upper", b"abc", 1.0))
        assert 0.9 < cluster.loop.time() - begun < 1.1, "every request ends by its deadline"
        two.kill()
        await cluster.run_for(0.1)
        with pytest.raises(Unavailable):
            await one.process.run(one.host.request(2, "upper", b"abc", 1.0))

    simulate(scenario)


def test_brokers_without_a_replica_know_the_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        outsider = cluster.brokers[3]
        cluster.withheld[3] = {GROUP}
        outsider.kill()
        await outsider.start()
        await cluster.until(lambda: outsider.host.leader_of(GROUP) == (1, 1), 1.0)
        cluster.cut(1, 3, both=False)
        await cluster.until(lambda: outsider.host.leader_of(GROUP) is None, 2.0)
        cluster.heal()
        await cluster.until(lambda: outsider.host.leader_of(GROUP) == (1, 1), 1.0)
        leader = cluster.leader()
        leader.process.do(lambda: leader.host.transfer(GROUP, 2))
        await cluster.until(lambda: outsider.host.leader_of(GROUP) == (2, 2), 1.0)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_sends_but_hears_no_broker_steps_down(seed: int) -> None:
    """Its heartbeats still arrive, and announce that it does not lead any more."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        deaf = cluster.leader()
        for follower in cluster.followers():
            cluster.cut(follower.id, deaf.id, both=False)
        await cluster.until(lambda: [b for b in cluster.leaders() if b is not deaf], 1.5)
        for i in range(20):
            await cluster.commit(b"%d" % i, within_s=0.2)
            await cluster.run_for(0.3)
        assert len(cluster.ledger.leaders) == 2
        assert deaf.group().role is not Role.LEADER
        cluster.heal()
        await cluster.settle()

    simulate(scenario, seed)
