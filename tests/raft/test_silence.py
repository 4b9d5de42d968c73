"""A lost leader is replaced in time, an unheard leader steps down, and a slow leader stays."""

from __future__ import annotations

import itertools

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import NotLeader
from tinymq.raft import Role
from tinymq.raft.host.replica_env import HostReplicaEnv
from tinymq.raft.net.transport import Channel
from tinymq.raft.peers.adaptive_timeouts import HeartbeatGaps
from tinymq.raft.replica.current_role import CurrentRole
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.state.pysyncobj_state import NEVER
from tinymq_chaos.sim.campaign import timing
from tinymq_chaos.sim.campaign.timing import FAILOVERS, STEADY, TimingRow, failovers, steady

SEEDS = range(6)


def failover(name: str, seeds: range = SEEDS) -> TimingRow:
    return failovers(name, *FAILOVERS[name], seeds)


@pytest.mark.parametrize(
    ("name", "seeds"),
    first_of(
        [
            *[("killed", 4), ("power loss", 4), ("SIGSTOP for 6 s", 2), ("power loss under load", 1)],
            *[("killed", 12), ("power loss", 12), ("SIGSTOP for 6 s", 6), ("power loss under load", 3)],
        ],
        4,
    ),
)
def test_a_lost_leader_is_replaced_within_a_second(name: str, seeds: int) -> None:
    row = failover(name, range(seeds))
    assert row.max_s is not None
    assert row.max_s < 1.0
    assert row.elections == 0, "and by one election"


@pytest.mark.parametrize("seeds", first_of([2, 6], 1))
@pytest.mark.parametrize("name", ["isolated", "mute", "deaf"])
def test_a_leader_that_is_cut_off_steps_down(name: str, seeds: int) -> None:
    row = failover(name, range(seeds))
    assert row.held_s is not None
    assert row.held_s < 2.0
    assert row.max_s is not None
    assert row.max_s < 1.0


@pytest.mark.parametrize("seeds", first_of([3, 6], 1))
def test_elections_over_a_slow_link_take_a_few_round_trips(seeds: int) -> None:
    row = failover("power loss, 100 ms + 0..100 delay", range(seeds))
    assert row.max_s is not None
    assert row.max_s < 4.0


async def supersede_unheard(cluster: Cluster, *, lose: bool) -> float:
    """Elect a broker that the leader does not hear, and return for how many seconds both led. The third broker, which
    hears both, voted for it in a moment of doubt. `lose`: what it sends to the old leader is lost with its connection.
    """
    await cluster.commit(b"x")
    await cluster.settle()
    old, (voter, candidate) = cluster.leader(), cluster.followers()
    cluster.cut(old.id, candidate.id)
    await cluster.until(lambda: candidate.group().role is Role.CANDIDATE, 2.0)
    cluster.cut(old.id, voter.id, both=False)
    if lose:
        cluster.network.drop_next(voter.id, old.id, matching=lambda message: message.HasField("append_ack"))
    await cluster.until(lambda: cluster.ledger.leaders.get((GROUP, 2)) == candidate.id, 1.0)
    cluster.heal()
    cluster.cut(old.id, candidate.id)
    led_s = cluster.loop.time()
    if lose:
        await cluster.run_for(0.2)
        assert old.group().is_leader
        cluster.network.lose_connection(voter.id, old.id, Channel.CONTROL)
        cluster.network.end_lost(voter.id, old.id, Channel.CONTROL)
    await cluster.until(lambda: not old.group().is_leader, 8.0)
    return cluster.loop.time() - led_s


@pytest.mark.parametrize("lose", [False, True], ids=["told", "told again"])
def test_a_leader_that_does_not_hear_its_successor_steps_down(lose: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await supersede_unheard(cluster, lose=lose) < 0.5

    simulate(scenario)


@pytest.mark.parametrize("lose", [False, True], ids=["told", "told again"])
def test_mutant_superseded_leaders_are_not_told(lose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        await supersede_unheard(cluster, lose=lose)

    rule = (RaftReplica, "control_connected") if lose else (CurrentRole, "tell_superseded")
    monkeypatch.setattr(*rule, lambda self, peer: None)
    with pytest.raises(AssertionError):
        simulate(scenario)


async def supersede_unknown(cluster: Cluster) -> float:
    """Elect a leader that no follower gets to know, and another one that it does not hear. Return for how many seconds
    both led."""
    await cluster.commit(b"x")
    await cluster.settle()
    first, followers = cluster.leader(), cluster.followers()
    for direction in itertools.permutations(cluster.brokers, 2):
        cluster.network._conditions.cut_part(direction, Channel.BULK)
    cluster.isolate(first.id)
    await cluster.until(lambda: (GROUP, 2) in cluster.ledger.leaders, 4.0)
    (unknown,) = [each for each in followers if each.id == cluster.ledger.leaders[GROUP, 2]]
    (voter,) = [each for each in followers if each is not unknown]
    await cluster.until(lambda: first.group().role is Role.CANDIDATE, 4.0)
    assert (unknown.group().is_leader, voter.group().leader) == (True, None)
    voter.group()._replica.state.election_deadline = NEVER  # only `first` campaigns, unheard by `unknown`
    cluster.heal()
    cluster.cut(first.id, unknown.id)
    await cluster.until(lambda: (GROUP, 3) in cluster.ledger.leaders, 4.0)
    led_s = cluster.loop.time()
    await cluster.until(lambda: not unknown.group().is_leader, 8.0)
    return cluster.loop.time() - led_s


def test_a_leader_that_no_follower_knew_is_told_of_its_successor() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await supersede_unknown(cluster) < 0.5

    simulate(scenario)


def test_mutant_elections_of_a_fixed_length_split_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        HostReplicaEnv, "election_s", lambda self: (self.timing.election_min_s, self.timing.election_max_s)
    )
    monkeypatch.setattr(timing, "LIMIT_S", 4.0)
    with pytest.raises(AssertionError, match="nobody leads"):
        failover("power loss, 100 ms + 0..100 delay")


def test_mutant_a_doubting_replica_vetoes_a_candidate_that_waited_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks drift, so one follower notices before the other."""
    monkeypatch.setattr(CurrentRole, "heard_leader_lately", CurrentRole.hears_leader)
    slower = failover("power loss, 5 % drift").max_s
    monkeypatch.undo()
    faster = failover("power loss, 5 % drift").max_s
    assert faster is not None
    assert slower is not None
    assert faster < 1.0
    assert faster < slower


@pytest.mark.parametrize("name", ["50 ms syncs", "100 ms + 0..100 delay, suddenly", "5 % drift", "stalls up to 300 ms"])
def test_slow_leaders_are_not_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        timing, "STEADY_S", 20.0
    )  # `python -m tinymq_chaos.sim.campaign.timing` takes a minute for each
    assert steady(name, STEADY[name], range(1)).elections == 0


def test_mutant_fixed_timeouts_cost_repeated_elections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker pauses for up to 0.9 s now and then. The first pause counts as a failure, the later ones do not."""
    monkeypatch.setattr(timing, "STEADY_S", 30.0)
    world = timing.stalls(0.9)
    learnt = steady("stalls", world, range(1)).elections
    monkeypatch.setattr(HeartbeatGaps, "gone_after_s", lambda self, timing: timing.gone_after_s)
    assert steady("stalls", world, range(1)).elections > 2 * learnt


async def a_leader_that_nobody_hears(cluster: Cluster) -> float:
    """Return the seconds for which a leader accepts writes while it hears only one broker that cannot be elected."""
    await cluster.commit(b"x")
    await cluster.settle()
    leader, dead = cluster.leader(), cluster.followers()[0]
    dead.kill()
    await cluster.run_for(1.0)
    for other in cluster.brokers:
        if other != leader.id:
            cluster.cut(leader.id, other, both=False)
    begun = cluster.loop.time()
    position = leader.propose(b"nobody knows")
    while leader.machine().leading is not None and cluster.loop.time() - begun < 5.0:
        await cluster.run_for(0.01)
    held_s = cluster.loop.time() - begun
    if held_s < 5.0:
        assert leader.machine().unknown == [position]
        with pytest.raises(NotLeader):
            leader.propose(b"refused")
    return held_s


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_an_unheard_leader_steps_down_and_its_waiters_get_outcome_unknown(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await a_leader_that_nobody_hears(cluster) < 2.0

    simulate(scenario, seed)


@pytest.mark.parametrize("what", ["the leader does not demand echoes", "no check of the quorum"])
def test_mutant_an_unheard_leader_stays(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "no check of the quorum":
        monkeypatch.setattr(CurrentRole, "check_quorum", lambda self: None)
    else:
        monkeypatch.setattr(HostReplicaEnv, "heard_by", HostReplicaEnv.alive)

    async def scenario(cluster: Cluster) -> None:
        assert await a_leader_that_nobody_hears(cluster) >= 5.0

    simulate(scenario)
