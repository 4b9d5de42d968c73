"""Hazard 22, the way back: a replica that lost entries is listed again and votes again, but never too early. Broker 1
leads, and broker 2 loses its disk. Each rule that lets a group continue, or stops it from continuing too early, has a
scene here that ends differently without the rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from tests.raft.harness import Broker, Cluster, simulate
from tests.raft.traffic import deliver, fails, listen
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.log.files.layout import VOTES
from tinymq.raft import Role
from tinymq.raft.host.replica_env import HostReplicaEnv
from tinymq.raft.net.transport import Channel
from tinymq.raft.replica import elections, replica
from tinymq.raft.replica.elections import Elections
from tinymq.raft.rules.configs import Config, Configs
from tinymq.raft.rules.membership import Membership, Replica
from tinymq.raft.rules.messages import Append, CommitNotice, Message, RequestVote, Vote
from tinymq.raft.state.replica_state import ReplicaState

Scene = Callable[[Cluster], Awaitable[None]]


def keep_quiet(broker: Broker, unaware: set[int], index: int) -> None:
    """From now on this process does not announce to `peers` that `index` is committed."""
    port = broker.group().replica.state.env
    send = port.send

    def quietly(peer: int, message: Message) -> bool:
        if peer in unaware and isinstance(message, Append | CommitNotice):
            message = dataclasses.replace(message, commit=min(message.commit, index - 1))
        return bool(send(peer, message))

    port.send = quietly


def send_to_one(broker: Broker, to: int, index: int) -> None:
    """From now on only `to` gets entries behind `index`."""
    port = broker.group().replica.state.env
    send = port.send

    def sparingly(peer: int, message: Message) -> bool:
        lost = peer != to and isinstance(message, Append) and any(e.index > index for e in message.entries)
        return lost or bool(send(peer, message))

    port.send = sparingly


def listed(broker: Broker) -> bool:
    """A member again."""
    return broker.up and GROUP in broker.host.groups and broker.group().role is Role.FOLLOWER


def identity(cluster: Cluster, broker: Broker) -> Replica | None:
    return cluster.leader().group().membership.replica(broker.id)


async def five_writes(cluster: Cluster) -> None:
    for i in range(5):
        await cluster.commit(b"%d" % i)
    await cluster.settle()


async def everybody_agrees(cluster: Cluster, payloads: list[bytes]) -> None:
    """Check that all brokers are back, that all are members, and that nothing was lost."""
    await cluster.until(lambda: all(listed(b) or b in cluster.leaders() for b in cluster.brokers.values()), 5.0)
    await cluster.settle()
    assert [b.machine().payloads for b in cluster.running] == [payloads] * len(cluster.brokers)
    await cluster.check_logs()


def test_a_wiped_replica_is_a_member_again_and_the_next_loss_is_survived() -> None:
    async def scenario(cluster: Cluster) -> None:
        await five_writes(cluster)
        two = cluster.brokers[2]
        before = identity(cluster, two)
        two.wipe()
        await cluster.commit(b"meanwhile")
        await two.start()
        await cluster.until(lambda: listed(two), 1.0)
        assert identity(cluster, two) == two.group().replica.state.me != before
        assert before in cluster.leader().group().membership.retired
        await cluster.settle()
        cluster.brokers[1].kill()
        await cluster.until(cluster.leaders, 2.0, "two and three are a majority")
        await cluster.commit(b"after")
        await cluster.brokers[1].start()
        await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"meanwhile", b"after"])

    simulate(scenario)


# ---- the leader dies when only some brokers know that CONFIG is committed
# ---------------------------------------------------


async def leader_dies(cluster: Cluster, unaware: set[int], ahead: int) -> None:
    """Broker 2 is listed again, and the leader dies at once. `unaware` brokers never heard that CONFIG is committed;
    the last entry reached only `ahead`, so no other broker can win. In a group of five, broker 5 has been down for
    long."""
    await five_writes(cluster)
    one, two = cluster.brokers[1], cluster.brokers[2]
    if 5 in cluster.brokers:
        cluster.brokers[5].kill()
    two.wipe()
    config = one.group().log.last_index + 1
    keep_quiet(one, unaware, config)
    send_to_one(one, ahead, config)
    await two.start()
    rest = [b for b in cluster.running if b is not one]
    await cluster.until(
        lambda: (
            all((b.group().commit_index >= config) is (b.id not in unaware) for b in rest)
            and all(b.group().log.durable_index >= config for b in rest)
        ),
        1.0,
        "CONFIG has reached the right brokers",
    )
    one.propose(b"on one replica")
    await cluster.until(lambda: cluster.brokers[ahead].group().log.durable_index > config, 0.1)
    one.kill()


async def the_rest_goes_on(cluster: Cluster, ahead: int) -> None:
    await cluster.until(cluster.leaders, 5.0, "the remaining brokers are a majority")
    assert cluster.leader().id == ahead
    await cluster.commit(b"after")
    for broker in cluster.brokers.values():
        if not broker.up:
            await broker.start()
    await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"on one replica", b"after"])


async def only_the_new_one_knows_and_three_must_lead(cluster: Cluster) -> None:
    """Broker 3 counts the vote of a replica that it knows only from an uncommitted CONFIG, and learns of the commit
    from that vote.
    """
    await leader_dies(cluster, unaware={3, 4}, ahead=3)
    await the_rest_goes_on(cluster, ahead=3)


async def only_the_new_one_knows_and_must_lead(cluster: Cluster) -> None:
    """Broker 3 answers a candidate that none of the CONFIGs it knows to be committed lists."""
    await leader_dies(cluster, unaware={3, 4}, ahead=2)
    await the_rest_goes_on(cluster, ahead=2)


async def only_the_new_one_does_not_know(cluster: Cluster) -> None:
    """It learns of the commit from the candidate."""
    await leader_dies(cluster, unaware={2}, ahead=3)
    await the_rest_goes_on(cluster, ahead=3)


SCENES = [
    only_the_new_one_knows_and_three_must_lead,
    only_the_new_one_knows_and_must_lead,
    only_the_new_one_does_not_know,
]


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("seed", first_of(range(3), 1))
def test_a_group_survives_a_leader_that_dies_before_all_know_the_config(nodes: int, scene: Scene, seed: int) -> None:
    simulate(scene, seed, nodes=nodes)


def nobody_vouches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "vouched_commit", lambda log, commit, index, term: commit)


def test_mutant_votes_are_counted_by_the_applied_config(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_vouches(monkeypatch)
    simulate(only_the_new_one_knows_and_three_must_lead)  # there are two ways to learn it
    monkeypatch.setattr(Configs, "newest", Configs.membership)
    fails(only_the_new_one_knows_and_three_must_lead)


def test_mutant_commits_are_not_learned_from_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_vouches(monkeypatch)
    monkeypatch.setattr(replica, "reported_commit", lambda commit, reported, matching: commit)
    fails(only_the_new_one_knows_and_three_must_lead)


def test_mutant_only_listed_candidates_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Elections.on_request_vote

    def answer(self: Elections, peer: int, request: RequestVote) -> None:
        if self.state.membership.lists(peer, self.state.env.incarnation(peer), request.count):
            real(self, peer, request)

    monkeypatch.setattr(Elections, "on_request_vote", answer)
    fails(only_the_new_one_knows_and_must_lead)


def test_mutant_candidates_do_not_name_their_config(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_vouches(monkeypatch)
    fails(only_the_new_one_does_not_know)


@pytest.mark.parametrize("nodes", [3, 5])
def test_without_a_replica_that_knows_the_commit_the_group_waits_for_its_old_leader(nodes: int) -> None:
    """The group must wait: it cannot distinguish this CONFIG from an uncommitted one. The leader comes back, and the
    group continues.
    """

    async def scenario(cluster: Cluster) -> None:
        await leader_dies(cluster, unaware={2, 3, 4}, ahead=3)
        await cluster.run_for(3.0)
        assert not cluster.leaders()
        assert cluster.brokers[2].group().role is Role.LEARNER
        await cluster.brokers[1].start()
        await cluster.until(cluster.leaders, 3.0)
        if nodes == 5:
            await cluster.brokers[5].start()
        await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"on one replica"])

    simulate(scenario, nodes=nodes)


# ---- a learner does not vote -------------------------------------------------------------------------------


async def a_learner_that_holds_config_does_not_vote(cluster: Cluster) -> None:
    """CONFIG is in its log but was never committed: broker 3 lacks entries that broker 1 and the old broker 2 had."""
    await cluster.settle()
    one, two, three = (cluster.brokers[i] for i in (1, 2, 3))
    cluster.isolate(3)
    for i in range(5):
        await cluster.commit(b"%d" % i)
    two.wipe()
    three.process.do(
        lambda: three.group().replica.elections.campaign(pre=False)
    )  # its last term equals the term that theirs will have
    await two.start()
    await cluster.until(lambda: two.group().log.last_index == one.group().log.last_index, 1.0)
    one.kill()
    cluster.heal()
    await cluster.run_for(4.0)
    assert two.group().role is Role.LEARNER
    assert not cluster.leaders(), cluster.describe()
    await one.start()
    await everybody_agrees(cluster, [b"%d" % i for i in range(5)])


def test_a_learner_that_holds_config_does_not_vote() -> None:
    simulate(a_learner_that_holds_config_does_not_vote)


def test_mutant_a_config_in_the_log_is_enough_to_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Configs, "lists", lambda self, replica: self.newest.replica(replica.broker_id) is not None)
    monkeypatch.setattr(Membership, "lists", lambda self, broker_id, incarnation, count: True)
    fails(a_learner_that_holds_config_does_not_vote)


# ---- votes and disk of the old identity -----------------------------------------------------------------


async def votes_of_the_old_identity(cluster: Cluster) -> None:
    """Broker 2 lost its hard state and was listed with another count. A vote that it gave before arrives late."""
    await five_writes(cluster)
    one, two = cluster.brokers[1], cluster.brokers[2]
    two.kill()
    for path in VOTES:
        two.files.remove(path)
    await two.start()
    await cluster.until(lambda: listed(two) and identity(cluster, two) == two.group().replica.state.me, 1.0)
    await cluster.settle()
    cluster.isolate(1)
    await cluster.until(lambda: one.group().role is Role.CANDIDATE, 3.0)
    while one.group().term < 20:
        one.process.do(lambda: one.group().replica.elections.campaign(pre=False))
    await cluster.run_for(0.05)
    deliver(one, 2, Vote(one.group().term, True, False, 0))
    assert one.group().role is Role.CANDIDATE, "the voter is no member any more"
    deliver(one, 2, Vote(one.group().term, True, False, 1))
    assert one.group().role is Role.LEADER, "the same vote with the present count elects it"


def test_votes_of_the_old_identity_count_no_more() -> None:
    simulate(votes_of_the_old_identity)


def test_mutant_counts_of_votes_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def lists(self: Membership, broker_id: int, incarnation: bytes | None, count: int) -> bool:
        replica = self.replica(broker_id)
        return replica is not None and replica.incarnation == incarnation

    monkeypatch.setattr(Membership, "lists", lists)
    fails(votes_of_the_old_identity)


async def a_vote_for_who_is_there_no_more(cluster: Cluster) -> None:
    """Broker 3's disk hangs while it syncs its vote for broker 2. Meanwhile broker 2 gets another disk."""
    await five_writes(cluster)
    one, two, three = (cluster.brokers[i] for i in (1, 2, 3))
    await cluster.run_for(0.5)
    hung = three.disk.hung = cluster.loop.create_future()
    heard = listen(cluster)
    one.kill()
    await cluster.until(lambda: three.group().replica.state.voted_for == 2, 3.0)
    two.wipe()
    await two.start()
    await cluster.until(
        lambda: (
            three.group().replica.state.env.incarnation(2) == two.store.identity.incarnation
            and three.host._transport.connected(2, Channel.CONTROL)
        ),
        3.0,
    )
    three.disk.hung = None
    hung.set_result(None)
    await cluster.run_for(0.3)
    votes = [m.vote for a, b, _, m, _ in heard if (a, b) == (3, 2) and m.HasField("vote")]
    assert not [vote for vote in votes if vote.granted and not vote.pre]


def test_a_vote_does_not_go_to_the_candidates_replacement() -> None:
    simulate(a_vote_for_who_is_there_no_more)


def test_mutant_a_vote_goes_to_the_candidates_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(self: ReplicaState, peer: int, message: Message) -> None:
        self.vote_barrier.post(lambda: self.env.send(peer, message))

    monkeypatch.setattr(ReplicaState, "post", post)
    fails(a_vote_for_who_is_there_no_more)


async def the_old_disk_comes_back(cluster: Cluster) -> None:
    """Neither broker 3 nor the old disk of broker 2 has the entries that broker 1 and the new broker 2 acknowledged.
    The old disk believes that it is a member, but no replica with the newer CONFIG counts it.
    """
    await five_writes(cluster)
    one, two, three = (cluster.brokers[i] for i in (1, 2, 3))
    two.kill()
    old = two.files
    two.wipe()
    await two.start()
    await cluster.until(lambda: listed(two), 1.0)
    await cluster.settle()
    await cluster.run_for(0.5)
    cluster.isolate(3)
    await cluster.commit(b"on one and the new two")
    two.power_cut()
    two.files = old
    one.kill()
    cluster.heal()
    await two.start()
    await cluster.run_for(4.0)
    assert not cluster.leaders(), cluster.describe()
    assert three.group().role is not Role.LEADER
    await one.start()
    await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"on one and the new two"])


def test_an_old_disk_that_comes_back_elects_no_leader() -> None:
    simulate(the_old_disk_comes_back)


def test_mutant_an_old_disk_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "lists", lambda self, broker_id, incarnation, count: True)
    fails(the_old_disk_comes_back)


# ---- one after the other -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", first_of(range(3), 1))
@pytest.mark.parametrize("pause_s", [0.0, 0.015, 0.03, 0.1, 1.0])
def test_a_replica_may_be_lost_twice_in_a_row(seed: int, pause_s: float) -> None:
    """The second disk is lost as well, at any point of the first replica's return."""

    async def scenario(cluster: Cluster) -> None:
        await five_writes(cluster)
        two = cluster.brokers[2]
        first = identity(cluster, two)
        two.wipe()
        await two.start()
        await cluster.run_for(pause_s)
        two.wipe()
        await cluster.commit(b"meanwhile")
        await two.start()
        await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"meanwhile"])
        membership = cluster.leader().group().membership
        assert identity(cluster, two) == two.group().replica.state.me
        assert first in membership.retired
        assert membership.epoch == 2 + len(membership.retired) - 1

    simulate(scenario, seed)


def test_two_of_five_may_be_lost_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await five_writes(cluster)
        for number in (2, 3):
            cluster.brokers[number].wipe()
        await cluster.commit(b"meanwhile")
        for number in (2, 3):
            await cluster.brokers[number].start()
        await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"meanwhile"])
        for number in (1, 4):
            cluster.brokers[number].kill()
        await cluster.commit(b"with the new ones")

    simulate(scenario, nodes=5)


# ---- a CONFIG that is undone -------------------------------------------------------------------------------


async def a_config_is_undone(cluster: Cluster) -> None:
    """Broker 1 appends CONFIG without reaching a majority. The others elect a leader whose log replaces it."""
    await five_writes(cluster)
    one, two = cluster.brokers[1], cluster.brokers[2]
    two.wipe()
    for a in (1, 2):
        for b in (3, 4, 5):
            cluster.cut(a, b)
    await two.start()
    await cluster.until(lambda: one.group().replica.state.configs.above, 0.5, "broker 1 has appended CONFIG")
    await cluster.until(lambda: two.group().replica.state.configs.above, 0.5, "two, too")
    await cluster.until(lambda: [b for b in cluster.leaders() if b is not one], 3.0)
    await cluster.commit(b"after")
    assert two.group().role is Role.LEARNER
    cluster.heal()
    await everybody_agrees(cluster, [*(b"%d" % i for i in range(5)), b"after"])
    for broker in cluster.running:
        state = broker.group().replica.state
        assert (state.membership.epoch, state.newest_membership) == (2, state.membership)
        assert state.configs.applied.term > 1, "it has the second leader's CONFIG"
        assert state.me.count == 0, "no replica had to start with an empty log"


@pytest.mark.parametrize("seed", first_of(range(3), 1))
def test_a_config_that_was_never_committed_is_undone(seed: int) -> None:
    simulate(a_config_is_undone, seed, nodes=5)


def test_mutant_a_truncated_config_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Configs.after

    def after(self: Configs, cut_from: int | None, entries: object) -> list[Config]:
        return real(self, None, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(Configs, "after", after)
    fails(a_config_is_undone, nodes=5)


# ---- a leader that ended unnoticed -----------------------------------------------------------------


async def a_leader_ends_before_it_was_known_to_be_alive(cluster: Cluster) -> None:
    """Broker 2 has an Append from the leader, but no heartbeat yet. When another process replaces the leader's, broker
    2 must not wait for the old one.
    """
    await cluster.commit(b"x")
    await cluster.settle()
    one, two = cluster.brokers[1], cluster.brokers[2]
    two.kill()
    await cluster.run_for(0.5)
    cluster.network.drop_next(1, 2, count=3, matching=lambda message: message.HasField("heartbeat"))
    await two.start()
    await cluster.until(lambda: two.group().leader == 1, 2.0)
    one.wipe()
    await one.start()
    await cluster.until(cluster.leaders, 3.0)
    await everybody_agrees(cluster, [b"x"])


@pytest.mark.parametrize("seed", first_of(range(8), 2))
def test_a_leader_that_ended_before_its_first_heartbeat_is_replaced(seed: int) -> None:
    simulate(a_leader_ends_before_it_was_known_to_be_alive, seed)


def test_mutant_another_process_passes_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostReplicaEnv, "session", lambda self, peer: None)
    fails(a_leader_ends_before_it_was_known_to_be_alive)


# ---- all faults at random -----------------------------------------------------------------------------------


def test_a_learner_that_loses_its_leader_finds_it_again() -> None:
    """Broker 2 comes back without its disk. The CONFIG that lists it is not committed, because broker 3 does not
    answer. Then broker 2 misses heartbeats of its leader, and the leader does not notice. Nothing is written
    afterwards.
    """

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, learner = cluster.brokers[1], cluster.brokers[2]
        learner.wipe()
        late = leader.group().log.last_index + 1
        cluster.network.drop_next(3, 1, count=10**6, matching=lambda head: head.append_ack.durable >= late)
        await learner.start()
        await cluster.until(lambda: learner.group().log.last_index == late, 5.0, "it has the CONFIG")
        await cluster.run_for(1.0)
        cluster.cut(leader.id, learner.id, both=False)
        await cluster.until(lambda: learner.group().leader is None, 1.0)
        cluster.heal()
        await cluster.until(lambda: learner.group().leader == leader.id, 1.0, "it knows its leader")
        assert learner.group().role is Role.LEARNER
        assert leader.group().term == 1

    simulate(scenario)


def all_are_members(cluster: Cluster) -> bool:
    """Are all replicas members under their present identities, and do they all know the only leader?"""
    if not cluster.all_up() or len(cluster.leaders()) != 1:
        return False
    groups = [broker.group() for broker in cluster.brokers.values()]
    newest = cluster.leader().group().replica.state.newest_membership
    return all(g.role in (Role.LEADER, Role.FOLLOWER) and newest.has(g.replica.state.me) for g in groups) and all(
        g.membership == newest for g in groups
    )


async def minorities_are_lost(cluster: Cluster) -> None:
    """Again and again a minority loses its disks or dies, in the middle of writes and in any state of the others. The
    next minority follows once all replicas are members again. The ledger checks that nothing acknowledged is lost.
    """
    await cluster.settle()
    rng = cluster.rng
    cluster.background(cluster.load(pause_s=0.004, payload_bytes_max=100))
    for _ in range(6):
        hurt = [
            cluster.brokers[i] for i in rng.sample(sorted(cluster.brokers), rng.randint(1, len(cluster.brokers) // 2))
        ]
        for broker in hurt:
            rng.choice([broker.wipe, broker.wipe, broker.kill, broker.power_cut])()
            await cluster.run_for(rng.choice([0.0, 0.01, 0.3, 1.0]))
        if rng.random() < 0.3:
            cluster.cut(*rng.sample(sorted(cluster.brokers), 2))
        await cluster.run_for(rng.choice([0.0, 0.02, 0.2]))
        for broker in hurt:
            await broker.start()
            await cluster.run_for(rng.choice([0.0, 0.01, 0.05]))
        cluster.heal()
        await cluster.until(lambda: all_are_members(cluster), 10.0, "all are members")
    cluster.end_background()
    await cluster.run_for(0.5)
    await cluster.settle()
    await cluster.check_logs()


@pytest.mark.parametrize(("nodes", "seed"), first_of([(3, 0), (5, 0), (3, 1), (3, 2), (3, 3)], 2))
def test_any_minority_may_be_lost_repeatedly(nodes: int, seed: int) -> None:
    simulate(minorities_are_lost, seed, nodes=nodes)


def test_mutant_no_replacement_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Configs, "replacement", lambda self, seen: None)
    fails(minorities_are_lost)
