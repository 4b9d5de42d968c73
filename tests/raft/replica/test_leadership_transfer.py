"""Handing a leadership over: how it came about is known to who leads then, and whether it would be done at once."""

from __future__ import annotations

import pytest

from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.leader.test_leadership import ack, leading
from tests.raft.values import GROUP
from tinymq.raft import LeadershipOrigin
from tinymq.raft.leader.followers import BEHIND_ENTRIES_MAX


def unready(leader: Broker, broker_id: int) -> str:
    return leader.process.do(lambda: leader.group().unready(broker_id))


@pytest.mark.parametrize(("by_hand", "given"), [(True, LeadershipOrigin.BY_HAND), (False, LeadershipOrigin.HANDED)])
def test_a_leader_knows_how_it_came_to_lead(by_hand: bool, given: LeadershipOrigin) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        first = cluster.leader()
        assert first.group().given is LeadershipOrigin.WON
        second = cluster.followers()[0]
        assert second.group().given is None
        assert first.process.do(lambda: first.host.transfer(GROUP, second.id, by_hand=by_hand))
        assert first.group().hands_over
        await cluster.until(lambda: second.group().is_leader, 2.0)
        assert (second.group().given, first.group().given, first.group().hands_over) == (given, None, False)
        second.kill()
        await cluster.commit(b"y")
        assert cluster.leader().group().given is LeadershipOrigin.WON

    simulate(scenario)


def test_a_clean_stop_hands_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        await cluster.leader().stop()
        await cluster.until(cluster.leaders, 2.0)
        assert cluster.leader().group().given is LeadershipOrigin.HANDED

    simulate(scenario)


def test_a_follower_is_ready_unless_it_is_gone_behind_or_something_hangs() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, other = cluster.leader(), cluster.followers()[0]
        assert unready(leader, other.id) == ""
        assert unready(leader, 9) == "broker 9 is not alive"
        assert unready(other, leader.id) == "it is not led here"
        cluster.cut(leader.id, other.id, both=False)
        for i in range(BEHIND_ENTRIES_MAX + 1):
            await cluster.commit(b"%d" % i)
        assert unready(leader, other.id) == f"broker {other.id} is catching up"
        cluster.heal()
        await cluster.settle()
        await cluster.until(lambda: not unready(leader, other.id), 3.0)
        leader.process.do(lambda: leader.host.transfer(GROUP, other.id))
        assert "being handed over" in unready(leader, other.id)

    simulate(scenario)


def test_what_a_follower_lacks_is_known_once_it_is_known_where_the_logs_meet() -> None:
    leader, _, _ = leading(entries=5)
    assert (leader.missing(2), leader.missing(9)) == (None, None)
    leader.acknowledged(2, ack(durable=3, received=5))
    assert leader.missing(2) == 2


def test_a_hand_over_that_is_not_done_in_time_is_given_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, other = cluster.leader(), cluster.followers()[0]
        cluster.cut(leader.id, other.id, both=False)
        leader.propose(b"y")
        assert leader.process.do(lambda: leader.host.transfer(GROUP, other.id, within_s=0.2))
        assert leader.group().hands_over
        await cluster.until(lambda: not leader.group().hands_over, 0.5)
        cluster.heal()
        await cluster.commit(b"z", within_s=0.5)
        assert cluster.leader() is leader

    simulate(scenario)
