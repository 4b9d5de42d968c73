"""A group that rests costs nothing, and wakes without an election (ARCHITECTURE.md: Idle partitions cost nothing)."""

from __future__ import annotations

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.types import GroupId
from tinymq.raft import Role
from tinymq.raft.roles.candidacy import Candidacy


def timers(cluster: Cluster) -> list[int]:
    """The groups that have a timer, for each broker."""
    return [len(b.host._schedule._timers) for b in cluster.running]


async def rest(cluster: Cluster, within_s: float = 3.0) -> None:
    await cluster.until(lambda: not any(timers(cluster)), within_s, "no group has a timer")


def test_a_resting_group_has_no_timer_and_sends_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        await rest(cluster)
        said: list[str] = []
        cluster.network.on_delivered = lambda a, b, channel, head, body: said.append(str(head.WhichOneof("message")))
        await cluster.run_for(60.0)
        assert set(said) == {"heartbeat"}
        assert timers(cluster) == [0, 0, 0]

    simulate(scenario)


def test_heartbeats_are_one_per_pair_however_many_groups_there_are() -> None:
    async def scenario(cluster: Cluster) -> None:
        for group in cluster.groups:
            await cluster.settle(group)
        await rest(cluster)
        said: list[str] = []
        cluster.network.on_delivered = lambda a, b, channel, head, body: said.append(str(head.WhichOneof("message")))
        await cluster.run_for(10.0)
        assert set(said) == {"heartbeat"}
        assert len(said) <= 6 * 10.0 / cluster.timing.heartbeat_s + 6

    simulate(scenario, groups=[GroupId(GROUP.topic_id, p) for p in range(40)])


@pytest.mark.parametrize("seed", first_of(range(2), 1))
def test_a_resting_group_wakes_without_an_election_after_ten_minutes(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader, term = cluster.leader(), cluster.leader().group().term
        await cluster.run_for(600.0)
        begun = cluster.loop.time()
        await cluster.commit(b"y")
        assert cluster.loop.time() - begun < 0.05
        await cluster.settle()
        assert (cluster.leader(), leader.group().term) == (leader, term)

    simulate(scenario, seed)


def test_a_resting_group_wakes_when_its_leader_is_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        await cluster.run_for(60.0)
        cluster.leader().kill()
        await cluster.until(cluster.leaders, 1.0)

    simulate(scenario)


def test_a_leader_that_restarts_at_once_does_not_lead_any_more() -> None:
    """A new session ends the broker's leaderships, although no heartbeat was missed."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader = cluster.leader()
        leader.kill()
        await leader.start()
        await cluster.until(cluster.leaders, 1.0)
        await cluster.settle()
        assert cluster.leader().group().term > 1

    simulate(scenario)


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_a_follower_that_returns_to_a_resting_group_learns_leader_and_commit(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        follower = cluster.followers()[0]
        follower.power_cut()
        await cluster.run_for(5.0)
        await follower.start()
        await cluster.settle(within_s=1.0)
        await rest(cluster)

    simulate(scenario, seed)


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_a_group_that_is_opened_late_is_found_by_its_leader(seed: int) -> None:
    """Messages for the group before that were dropped."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        follower = cluster.followers()[0]
        cluster.withheld[follower.id] = {GROUP}
        follower.power_cut()
        await follower.start()
        await cluster.run_for(5.0)
        await follower.process.run(follower.open_group(GROUP, cluster.first_entries[GROUP]))
        await cluster.settle(within_s=3.0)
        await rest(cluster)
        assert cluster.leader().group().term == 1

    simulate(scenario, seed)


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_a_follower_that_missed_heartbeats_finds_the_leader_again(seed: int) -> None:
    """No other broker noticed, and the group rests, so the leader has no other reason to send."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader, follower = cluster.leader(), cluster.followers()[0]
        cluster.cut(leader.id, follower.id, both=False)
        await cluster.until(lambda: follower.group().leader is None, 2.0)
        cluster.heal()
        await cluster.settle(within_s=2.0)
        await rest(cluster)
        assert follower.host.leader_of(GROUP) == (leader.id, 1)
        assert cluster.leader() is leader
        assert leader.group().term == 1

    simulate(scenario, seed)


@pytest.mark.parametrize("seconds", [0.5, 1.5, 6.0])
def test_a_paused_follower_starts_no_election_when_it_goes_on(seconds: float) -> None:
    """Hazard 15: after a pause it reads the waiting heartbeats before it judges the silence."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await rest(cluster)
        leader, follower = cluster.leader(), cluster.followers()[0]
        cluster.pause(follower.id)
        await cluster.run_for(seconds)
        cluster.resume(follower.id)
        await cluster.run_for(2.0)
        await cluster.commit(b"y")
        await cluster.settle(within_s=2.0)
        assert (cluster.leader(), leader.group().term) == (leader, 1)

    simulate(scenario)


def test_a_leader_whose_followers_are_gone_before_it_leads_does_not_stay() -> None:
    """The last vote arrives late, after the previous voter has died. No later failure can therefore wake the leader."""

    async def scenario(cluster: Cluster) -> None:
        one, current = cluster.brokers[1], cluster.brokers[1].group().replica.current
        cluster.brokers[4].kill()
        cluster.brokers[5].kill()
        cluster.network.delay(3, 1, 0.08, both=False)
        await cluster.until(
            lambda: isinstance(role := current.role, Candidacy) and not role.pre and 2 in role.voters, 2.0
        )
        cluster.brokers[2].kill()
        await cluster.until(lambda: cluster.ledger.leaders, 0.2, "it is elected")
        await cluster.run_for(0.5)
        assert one.group().role is not Role.LEADER
        await cluster.start()
        await cluster.settle()

    simulate(scenario, nodes=5)


def test_a_failed_replica_has_no_timer_whichever_broker_connects() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        preferred, another = cluster.brokers[1], cluster.brokers[2]
        preferred.files.fail_sync("groups/*")
        preferred.propose(b"y")
        await cluster.until(lambda: preferred.group().role is Role.FAILED, 1.0)
        await cluster.until(cluster.leaders, 2.0)
        another.kill()
        await another.start()
        await cluster.run_for(1.0)
        assert len(preferred.host._schedule._timers) == 0

    simulate(scenario)
