"""Leadership transfers: the new leader knows the origin, and the old one names obstacles before it begins."""

from __future__ import annotations

import pytest

from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.roles.test_replication import ack, leading
from tests.raft.values import GROUP
from tinymq.raft import LeadershipOrigin
from tinymq.raft.roles.leadership_transfer import BEHIND_ENTRIES_MAX


def transfer_obstacle(leader: Broker, broker_id: int) -> str:
    return leader.process.do(lambda: leader.group().transfer_obstacle(broker_id))


@pytest.mark.parametrize(("manual", "origin"), [(True, LeadershipOrigin.MANUAL), (False, LeadershipOrigin.TRANSFERRED)])
def test_a_leader_knows_how_it_came_to_lead(manual: bool, origin: LeadershipOrigin) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        first = cluster.leader()
        assert first.group().origin is LeadershipOrigin.WON
        second = cluster.followers()[0]
        assert second.group().origin is None
        assert first.process.do(lambda: first.host.transfer(GROUP, second.id, manual=manual))
        assert first.group().is_transferring
        await cluster.until(lambda: second.group().is_leader, 2.0)
        assert (second.group().origin, first.group().origin, first.group().is_transferring) == (origin, None, False)
        second.kill()
        await cluster.commit(b"y")
        assert cluster.leader().group().origin is LeadershipOrigin.WON

    simulate(scenario)


def test_a_clean_stop_transfers_leadership() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        await cluster.leader().stop()
        await cluster.until(cluster.leaders, 2.0)
        assert cluster.leader().group().origin is LeadershipOrigin.TRANSFERRED

    simulate(scenario)


def test_a_dead_lagging_or_hanging_follower_is_not_ready() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, other = cluster.leader(), cluster.followers()[0]
        assert transfer_obstacle(leader, other.id) == ""
        assert transfer_obstacle(leader, 9) == "broker 9 is not alive"
        assert transfer_obstacle(other, leader.id) == "it is not led here"
        cluster.cut(leader.id, other.id, both=False)
        for i in range(BEHIND_ENTRIES_MAX + 1):
            await cluster.commit(b"%d" % i)
        assert transfer_obstacle(leader, other.id) == f"broker {other.id} is catching up"
        cluster.heal()
        await cluster.settle()
        await cluster.until(lambda: not transfer_obstacle(leader, other.id), 3.0)
        leader.process.do(lambda: leader.host.transfer(GROUP, other.id))
        assert "being transferred" in transfer_obstacle(leader, other.id)

    simulate(scenario)


def test_missing_entries_are_known_once_the_logs_are_known_to_meet() -> None:
    leader, _, _ = leading(entries=5)
    assert (leader.followers.missing(2), leader.followers.missing(9)) == (None, None)
    leader.acknowledged(2, ack(durable=3, received=5))
    assert leader.followers.missing(2) == 2


def test_a_transfer_that_takes_too_long_is_abandoned() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, other = cluster.leader(), cluster.followers()[0]
        cluster.cut(leader.id, other.id, both=False)
        leader.propose(b"y")
        assert leader.process.do(lambda: leader.host.transfer(GROUP, other.id, within_s=0.2))
        assert leader.group().is_transferring
        await cluster.until(lambda: not leader.group().is_transferring, 0.5)
        cluster.heal()
        await cluster.commit(b"z", within_s=0.5)
        assert cluster.leader() is leader

    simulate(scenario)
