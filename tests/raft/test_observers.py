"""Observers follow the metadata group, and no CONFIG lists them: they get every entry, and have no vote."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.roles.test_replication import ack, leading
from tests.raft.test_quiet import rest
from tests.raft.values import GROUP, chain, incarnation, membership
from tests.seeds import first_of
from tinymq.base.types import METADATA_GROUP
from tinymq.log.files.layout import SEGMENT, group_directory
from tinymq.proto import peer_pb2 as pb
from tinymq.raft import Role
from tinymq.raft.roles.followers import OBSERVERS_MAX
from tinymq.raft.rules.configs import Config, Configs
from tinymq.raft.rules.membership import Replica
from tinymq.raft.rules.messages import AppendAck, RequestVote, Vote
from tinymq.raft.rules.quorum_loss import Healthy, QuorumLost, judge

LATE = 4  # the first broker that is not a voter

observed = functools.partial(simulate, groups=(METADATA_GROUP,), nodes=5, members=3)


async def agree(cluster: Cluster, within_s: float = 10.0) -> None:
    await cluster.settle(METADATA_GROUP, within_s)


async def commit(cluster: Cluster, payload: bytes) -> None:
    await cluster.commit(payload, METADATA_GROUP)


def kill(cluster: Cluster, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        cluster.brokers[broker_id].kill()


def said_by(cluster: Cluster, *broker_ids: int) -> list[str]:
    """Count the messages that these brokers send from now on, by kind."""
    said: list[str] = []

    def note(a: int, b: int, channel: object, head: pb.Peer, body: bytes) -> None:
        if a in broker_ids:
            said.append(str(head.WhichOneof("message")))

    cluster.network.on_delivered = note
    return said


# ---- they follow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", first_of(range(5), 1))
def test_observers_get_everything_and_the_group_comes_to_rest(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        for i in range(30):
            await commit(cluster, b"%d" % i)
        await agree(cluster)
        for broker_id in (4, 5):
            group = cluster.brokers[broker_id].group(METADATA_GROUP)
            assert (group.role, group.status().reason) == (Role.OBSERVER, "")
            assert len(cluster.brokers[broker_id].machine(METADATA_GROUP).payloads) == 30
        await rest(cluster)
        await cluster.check_logs(METADATA_GROUP)

    observed(scenario, seed)


def test_other_groups_have_no_observers() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.until(cluster.leaders, 5.0)
        await cluster.commit(b"x")
        await cluster.run_for(2.0)
        assert cluster.brokers[LATE].group().log.last_index == 1
        assert LATE not in cluster.leader().group().replica.current.leading().replication.progress

    simulate(scenario, nodes=4, members=3, groups=(GROUP,))


def test_observers_come_back_by_themselves_wiped_or_not() -> None:
    async def scenario(cluster: Cluster) -> None:
        await commit(cluster, b"x")
        await agree(cluster)
        kill(cluster, 4, 5)
        cluster.brokers[5].wipe()
        await commit(cluster, b"while they were away")
        await cluster.brokers[4].start()
        await cluster.brokers[5].start()
        await agree(cluster)
        assert all(cluster.brokers[b].group(METADATA_GROUP).role is Role.OBSERVER for b in (4, 5))
        await rest(cluster)

    observed(scenario)


def test_another_leader_goes_on_with_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        first = cluster.leader(METADATA_GROUP)
        first.kill()
        await commit(cluster, b"x")
        await cluster.until(lambda: cluster.agreed(METADATA_GROUP), 5.0)
        assert cluster.brokers[LATE].group(METADATA_GROUP).leader == cluster.leader(METADATA_GROUP).id != first.id

    observed(scenario)


def test_an_observer_behind_the_first_entry_gets_a_snapshot() -> None:
    async def scenario(cluster: Cluster) -> None:
        await commit(cluster, b"x")
        await agree(cluster)
        await cluster.run_for(0.5)
        kill(cluster, 4)
        for i in range(80):
            await commit(cluster, b"%d" % i + bytes(700))
        await agree(cluster)
        for broker in cluster.running:
            log = broker.group(METADATA_GROUP).log
            broker.process.do(lambda log=log: log.remove_before(40))
        await cluster.run_for(0.5)
        await cluster.brokers[4].start()
        await agree(cluster)
        assert cluster.brokers[4].group(METADATA_GROUP).log.first_index > 1

    observed(scenario)


def test_a_damaged_observer_repairs_itself_and_delays_no_members_repair() -> None:
    async def scenario(cluster: Cluster) -> None:
        for i in range(60):
            await commit(cluster, b"%d" % i + bytes(800))
        await agree(cluster)
        await cluster.run_for(1.0)
        member = cluster.followers(METADATA_GROUP)[0].id
        for broker_id, whole in ((LATE, Role.OBSERVER), (member, Role.FOLLOWER)):
            broker = cluster.brokers[broker_id]
            broker.kill()
            directory = group_directory(METADATA_GROUP)
            newest = max(p for p in broker.files.paths() if p.startswith(directory) and p.endswith(SEGMENT))
            broker.files.flip_bit(newest, 64 + 40)
            await broker.start()
            group = broker.group(METADATA_GROUP)
            assert group.role is Role.QUARANTINED
            # a grant to the first would keep the second waiting for 30 s
            await cluster.until(lambda group=group, whole=whole: group.role is whole, 8.0)
        await agree(cluster)

    observed(scenario)


@pytest.mark.parametrize("cut_s", [0.65, 2.0])  # the leader notices after about 0.75 s that the observer is deaf
def test_an_observer_that_loses_its_leader_finds_it_while_the_group_rests(cut_s: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        await commit(cluster, b"x")
        await agree(cluster)
        await rest(cluster)
        leader, observer = cluster.leader(METADATA_GROUP), cluster.brokers[LATE]
        cluster.cut(leader.id, LATE, both=False)
        await cluster.run_for(cut_s)
        assert observer.group(METADATA_GROUP).leader is None
        assert "recover" in observer.host.status(observer.group(METADATA_GROUP)).reason
        cluster.heal()
        await cluster.until(lambda: observer.group(METADATA_GROUP).leader == leader.id, 1.0, "it knows its leader")
        await rest(cluster, 6.0)  # delayed heartbeats look like round trips of seconds
        assert leader.group(METADATA_GROUP).term == 1

    observed(scenario)


def test_the_status_suggests_no_recovery_while_a_leader_is_announced() -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        leader, observer = cluster.leader(METADATA_GROUP), cluster.brokers[LATE]
        observer.group(METADATA_GROUP).replica.elections.leader_gone(leader.id)
        assert "recover" in observer.group(METADATA_GROUP).status().reason
        status = observer.host.status(observer.group(METADATA_GROUP))
        assert status.reason == f"waiting to hear from its leader (broker {leader.id})"

    observed(scenario)


def test_an_observer_that_hears_no_broker_asks_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        cluster.isolate(LATE)
        group = cluster.brokers[LATE].group(METADATA_GROUP)
        await cluster.until(lambda: group.leader is None, 2.0)
        sent: list[Any] = []
        port = group.replica.state.env
        port.send = lambda peer, message: sent.append(message)
        await cluster.run_for(10.0)
        assert sent == []

    observed(scenario)


# ---- they decide nothing ---------------------------------------------------------------------------------------


def test_no_quorum_counts_observers() -> None:
    async def scenario(cluster: Cluster) -> None:
        await commit(cluster, b"x")
        await agree(cluster)
        leader = cluster.leader(METADATA_GROUP)
        for other in (1, 2, 3):
            if other != leader.id:
                cluster.cut(leader.id, other)
        position = leader.propose(b"on one voter and two observers", METADATA_GROUP)
        held = [cluster.brokers[b].group(METADATA_GROUP) for b in (4, 5)]
        await cluster.until(lambda: all(g.log.durable_index >= position.index for g in held), 2.0, "they hold it")
        await cluster.until(lambda: not leader.group(METADATA_GROUP).is_leader, 3.0, "check-quorum: three hear it")
        assert leader.group(METADATA_GROUP).commit_index < position.index

    observed(scenario)


def test_observers_never_campaign_or_vote_and_move_no_term() -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        term = cluster.leader(METADATA_GROUP).group(METADATA_GROUP).term
        kill(cluster, 1, 2)
        said = said_by(cluster, 4, 5)
        await cluster.run_for(20.0)
        groups = [cluster.brokers[b].group(METADATA_GROUP) for b in (4, 5)]
        assert {g.role for g in groups} == {Role.OBSERVER}
        assert {"vote", "request_vote"} & set(said) == set()
        assert all(g.term <= term + 1 for g in groups)
        assert not cluster.leaders(METADATA_GROUP)

    observed(scenario)


def test_leadership_is_never_transferred_to_an_observer() -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        leader = cluster.leader(METADATA_GROUP)
        kill(cluster, *(b.id for b in cluster.followers(METADATA_GROUP) if b.id < LATE))
        assert not leader.process.do(lambda: leader.host.transfer(METADATA_GROUP, LATE))
        await cluster.run_for(0.1)
        assert cluster.brokers[LATE].group(METADATA_GROUP).role is Role.OBSERVER

    observed(scenario)


@pytest.mark.parametrize("seed", first_of(range(5), 1))
def test_a_hanging_isolated_or_dead_observer_delays_nothing(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        cluster.pause(4)
        cluster.isolate(5)
        slowest = 0.0
        for i in range(200):
            begun = cluster.loop.time()
            await commit(cluster, b"%d" % i + bytes(400))
            slowest = max(slowest, cluster.loop.time() - begun)
        assert slowest < 0.05
        leader = cluster.leader(METADATA_GROUP)
        progress = leader.group(METADATA_GROUP).replica.current.leading().replication.progress
        await cluster.until(lambda: not {4, 5} & set(progress), 5.0, "they are forgotten")
        await cluster.until(lambda: not leader.host._schedule._timers, 3.0, "the group rests without the observers")
        cluster.resume(4)
        cluster.heal()
        await agree(cluster)

    observed(scenario, seed)


@pytest.mark.parametrize("seed", first_of(range(4), 1))
def test_storms_with_observers(seed: int) -> None:
    """Brokers of both kinds are killed and isolated at random; the ledger checks all of them."""

    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        cluster.background(cluster.load())
        for _ in range(12):
            victim = cluster.brokers[cluster.rng.randint(1, 5)]
            match cluster.rng.randrange(4):
                case 0 if victim.up:
                    victim.kill()
                case 1:
                    cluster.isolate(victim.id)
                case 2:
                    cluster.heal()
                case _ if victim.id >= LATE:
                    if victim.up:
                        victim.kill()
                    victim.wipe()
            await cluster.run_for(cluster.rng.uniform(0.1, 1.0))
            for broker in cluster.brokers.values():
                if not broker.up and cluster.rng.random() < 0.6:
                    await broker.start()
        cluster.end_background()
        cluster.heal()
        await cluster.start()
        await agree(cluster, 20.0)
        await cluster.check_logs(METADATA_GROUP)

    observed(scenario, seed)


# ---- the leader's state, without brokers ------------------------------------------------------------------------


def with_observer(peer: int = LATE) -> tuple[Any, Any]:
    leader, link, _ = leading()
    link.up.add(peer)
    link.incarnations[peer] = incarnation(peer)
    assert leader.followers.observe(peer)
    return leader, link


def configs() -> Configs:
    return Configs(Config(1, 0, membership()))


ME = Replica(1, incarnation(1))


def test_an_observers_acks_commit_nothing() -> None:
    leader, _ = with_observer()
    leader.acknowledged(LATE, ack(5))
    assert leader.commit(configs(), ME, 0) == 0
    leader.acknowledged(2, ack(5))
    assert leader.commit(configs(), ME, 0) == 5


def test_an_observer_confirms_no_read_and_is_asked_for_none() -> None:
    """While the other two voters are cut off, a read waits, whatever the observers answer."""

    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        leader = cluster.leader(METADATA_GROUP)
        group = leader.group(METADATA_GROUP)
        for voter in (b for b in (1, 2, 3) if b != leader.id):
            cluster.cut(leader.id, voter)
        asked: list[int] = []

        def note(a: int, b: int, channel: object, head: pb.Peer, body: bytes) -> None:
            if head.HasField("commit_notice") and head.commit_notice.read_id:
                asked.append(b)

        cluster.network.on_delivered = note
        answers: list[object] = []
        leading = group.replica.current.leading()
        leader.process.do(lambda: leading.read_index(answers.append))
        forged = AppendAck(
            term=group.term,
            durable=group.log.last_index,
            received=group.log.last_index,
            conflict=False,
            next=0,
            next_term=0,
            commit=group.commit_index,
            count=0,
            read_id=9,
        )
        for observer in (4, 5):
            leader.process.do(lambda peer=observer: group.replica.receive(peer, forged))
        await cluster.run_for(0.2)
        assert group.is_leader, "not yet deposed"
        assert answers == []
        assert LATE not in asked

    observed(scenario)


def test_a_slow_observer_delays_no_lone_write() -> None:
    leader, _ = with_observer()
    for peer in (2, 3):
        leader.acknowledged(peer, ack(5))
    assert leader.followers.nothing_out(), "the leader has not heard the observer in this term"
    assert leader.followers.successors(configs()) == [2, 3]
    assert [r.broker_id for r in leader.followers.present()] == [2, 3]


def test_a_group_rests_when_its_live_observers_know_everything() -> None:
    leader, link = with_observer()
    for peer in (2, 3):
        leader.acknowledged(peer, ack(5, commit=5))
    assert not leader.quiet(configs(), 5)
    leader.acknowledged(LATE, ack(5, commit=5))
    assert leader.quiet(configs(), 5)
    link.up.discard(LATE)
    leader.lost(LATE)
    assert leader.quiet(configs(), 5), "the leader does not wait for dead observers"


def test_the_number_of_observers_is_bounded_and_a_leaving_one_frees_its_place() -> None:
    leader, _ = with_observer()
    for peer in range(LATE + 1, LATE + OBSERVERS_MAX):
        assert leader.followers.observe(peer)
    assert not leader.followers.observe(1000)
    assert leader.followers.observe(LATE), "it is an observer already"
    leader.followers.forget(LATE)
    assert leader.followers.observe(1000)
    leader.followers.forget(2)
    assert 2 in leader.progress, "members stay"


def test_a_cold_read_for_an_observer_that_is_gone_is_dropped() -> None:
    leader, link = with_observer()
    leader.followers.forget(LATE)
    leader.entries_read(LATE, 2, chain([1, 1])[1:], 0)
    assert link.take(LATE) == []


@pytest.mark.parametrize(
    "message",
    [
        AppendAck(term=1, durable=99, received=99, conflict=False, next=0, next_term=0, commit=0, count=0),
        AppendAck(term=1, durable=0, received=99, conflict=False, next=0, next_term=0, commit=0, count=0),
        AppendAck(term=9, durable=2, received=2, conflict=False, next=0, next_term=0, commit=0, count=0),
        RequestVote(9, 99, 9, False, True, 0),
        Vote(9, True, False, 0),
    ],
)
def test_invalid_messages_of_an_observer_change_nothing(message: Any) -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        leader = cluster.leader(METADATA_GROUP)
        group = leader.group(METADATA_GROUP)
        before = (group.term, group.commit_index)
        assert group.term == 1
        leader.process.do(lambda: leader.host._replicas.guarded(group, lambda: group.replica.receive(LATE, message)))
        await cluster.run_for(1.0)
        assert (group.role, group.failure) == (Role.LEADER, None)
        assert (group.term, group.commit_index) == before

    observed(scenario)


def test_a_recovery_counts_no_observer() -> None:
    async def scenario(cluster: Cluster) -> None:
        await agree(cluster)
        reports = [b.group(METADATA_GROUP).report() for b in cluster.running]
        assert isinstance(judge(reports, (1, 2, 3)), Healthy)
        left = [r for r in reports if r.broker_id in (3, 4, 5)]
        assert not isinstance(judge([r for r in left if not r.leads], (1, 2, 3)), Healthy)

    observed(scenario)


def test_after_a_recovery_observers_get_the_surviving_log() -> None:
    """The group had one observer. Another observer joins with an empty disk, without the CONFIG of the forced
    leadership.
    """

    async def scenario(cluster: Cluster) -> None:
        cluster.brokers[5].kill()
        await commit(cluster, b"x")
        await agree(cluster)
        for broker_id in (2, 3, 5):
            cluster.brokers[broker_id].wipe()
        for broker_id in (2, 3):
            await cluster.brokers[broker_id].start()
        await cluster.run_for(3.0)
        found = judge([cluster.brokers[b].group(METADATA_GROUP).report() for b in (1, 2, 3)], (1, 2, 3))
        assert isinstance(found, QuorumLost)
        taker = cluster.brokers[found.survivor.broker_id]
        taker.process.do(lambda: taker.group(METADATA_GROUP).force_leadership(found.term, found.replicas))
        await cluster.brokers[5].start()
        await commit(cluster, b"new")
        await agree(cluster, 30.0)
        for broker_id in (1, 2, 3, 4, 5):
            assert cluster.brokers[broker_id].machine(METADATA_GROUP).payloads == [b"x", b"new"]
        await rest(cluster)

    observed(scenario)
