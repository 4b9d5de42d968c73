"""Hazard 22: a replica that comes back with a shorter log does not vote, campaign or count."""

from __future__ import annotations

import dataclasses

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.traffic import deliver
from tests.raft.values import GROUP
from tinymq.log.files.layout import VOTES, group_directory, topic_directory
from tinymq.raft import Role
from tinymq.raft.rules.membership import Membership
from tinymq.raft.rules.messages import Append, AppendAck, Vote


async def wiped_follower(cluster: Cluster) -> None:
    """Five writes on a and b; then b's data directory is lost and created again."""
    await cluster.settle()
    b, c = cluster.followers()
    cluster.isolate(c.id)
    for i in range(5):
        await cluster.commit(b"%d" % i)
    b.wipe()
    await b.start()


def test_a_wiped_replica_elects_no_leader() -> None:
    """The scenario of hazard 22: with b's vote c would win, and the five writes would be lost."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        a, (b, c) = cluster.leader(), cluster.followers()
        cluster.isolate(c.id)
        for i in range(5):
            await cluster.commit(b"%d" % i)
        b.wipe()
        a.kill()
        cluster.heal()
        await b.start()
        await cluster.run_for(5.0)
        assert b.group().role is Role.LEARNER
        assert not cluster.leaders(), cluster.describe()
        await a.start()
        await cluster.settle()
        assert c.machine().payloads == [b"%d" % i for i in range(5)]

    simulate(scenario)


def test_mutant_incarnations_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "lists", lambda self, broker_id, incarnation, count: True)
    with pytest.raises(AssertionError):
        test_a_wiped_replica_elects_no_leader()


def test_a_wiped_replica_is_filled_but_does_not_count() -> None:
    async def scenario(cluster: Cluster) -> None:
        await wiped_follower(cluster)
        a, b = cluster.brokers[1], cluster.brokers[2]
        assert b.group().role is Role.LEARNER
        lost = a.propose(b"held by a and by a stranger")
        await cluster.until(lambda: b.group().log.durable_index >= lost.index, 2.0)
        await cluster.run_for(2.0)
        assert a.group().commit_index < lost.index, "its ack does not count as a vote"
        cluster.heal()
        await cluster.until(lambda: a.machine().index >= lost.index, 2.0)
        await cluster.settle()
        assert b.machine().payloads == [*(b"%d" % i for i in range(5)), b"held by a and by a stranger"]
        await cluster.until(lambda: b.group().role is Role.FOLLOWER, 1.0, "with c's help it is a member again")
        await cluster.check_logs()

    simulate(scenario)


def test_a_wiped_replica_does_not_campaign() -> None:
    async def scenario(cluster: Cluster) -> None:
        await wiped_follower(cluster)
        b = cluster.brokers[2]
        await cluster.until(lambda: b.group().log.last_index == cluster.brokers[1].group().log.last_index, 1.0)
        cluster.brokers[1].kill()
        cluster.brokers[3].kill()
        await cluster.run_for(3.0)
        assert b.group().role is Role.LEARNER
        assert b.group().term == 1

    simulate(scenario)


@pytest.mark.parametrize("lost", ["votes", "directory"])
def test_a_lost_hard_state_or_group_directory_gives_another_incarnation(lost: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        await cluster.run_for(1.0)
        broker = cluster.followers()[0]
        broker.kill()
        if lost == "votes":
            for path in VOTES:
                broker.files.remove(path)
        else:
            broker.files.remove_tree(group_directory(GROUP))
            broker.files.sync_directory(topic_directory(GROUP))
        await broker.start()
        assert broker.group().role is Role.LEARNER
        await cluster.commit(b"y")
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 1.0, "it is listed again")
        await cluster.settle()
        assert broker.machine().payloads == [b"x", b"y"]
        assert broker.group().membership.replica(broker.id).count == 1
        await cluster.run_for(1.0)
        broker.power_cut()
        await broker.start()
        assert broker.group().role is Role.FOLLOWER, "and keeps that identity"
        await cluster.settle()

    simulate(scenario)


def forge(cluster: Cluster, source: int, message: Vote | AppendAck) -> None:
    """Deliver a message to broker 1 as if `source` had sent it."""
    deliver(cluster.brokers[1], source, message)


async def lonely_candidate(cluster: Cluster) -> int:
    """Make the isolated broker 1 campaign in a term that the others do not reach. Returns that term."""
    await cluster.settle()
    one = cluster.brokers[1]
    cluster.isolate(1)
    await cluster.until(lambda: one.group().role is Role.CANDIDATE, 3.0)
    while one.group().term < 20:
        one.process.do(lambda: one.group().replica.elections.campaign(pre=False))
    await cluster.run_for(0.05)
    return one.group().term


def test_a_strangers_vote_counts_for_nothing() -> None:
    """Hazard 4: brokers 8 and 9 are not members, and broker 3's vote comes from another incarnation."""

    async def scenario(cluster: Cluster) -> None:
        term = await lonely_candidate(cluster)
        for source, count in ((8, 0), (9, 0), (3, 1)):
            forge(cluster, source, Vote(term, True, False, count))
        await cluster.run_for(0.1)
        assert cluster.brokers[1].group().role is Role.CANDIDATE
        forge(cluster, 3, Vote(term, True, False, 0))
        assert cluster.brokers[1].group().role is Role.LEADER, "the same vote with the right count elects it"

    simulate(scenario)


@pytest.mark.parametrize("member", [False, True])
def test_a_stranger_raises_no_term(member: bool) -> None:
    """Hazard 8. The same message from a member does raise the term, which proves that the check can fail."""
    messages: list[Append | AppendAck | Vote] = [
        Append(7, 0, 0, 0),
        AppendAck(term=8, durable=0, received=0, conflict=False, next=0, next_term=0, commit=0, count=0),
        Vote(9, False, False, 0),
    ]
    for message in messages:

        async def scenario(cluster: Cluster, message: Append | AppendAck | Vote = message) -> None:
            await cluster.settle()
            one = cluster.brokers[1]
            before = one.group().term
            deliver(one, 2 if member else 9, message)
            assert one.group().term == (message.term if member else before)

        simulate(scenario)


def test_a_vote_counts_once() -> None:
    """Hazard 4, with five members: two votes of one voter and our own vote are not three votes."""

    async def scenario(cluster: Cluster) -> None:
        term = await lonely_candidate(cluster)
        for _ in range(5):
            forge(cluster, 3, Vote(term, True, False, 0))
        forge(cluster, 4, Vote(term - 1, True, False, 0))  # of another term
        forge(cluster, 4, Vote(term, True, True, 0))  # before a vote
        forge(cluster, 4, Vote(term, False, False, 0))
        await cluster.run_for(0.05)
        assert cluster.brokers[1].group().role is Role.CANDIDATE
        forge(cluster, 4, Vote(term, True, False, 0))
        assert cluster.brokers[1].group().role is Role.LEADER

    simulate(scenario, nodes=5)


@pytest.mark.parametrize(
    "stale",
    [{"term": 0}, {"count": 1}, {}],
    ids=["of another term", "of another incarnation", "true"],
)
def test_an_ack_of_another_term_or_incarnation_commits_nothing(stale: dict[str, int]) -> None:
    """Hazards 3 and 22. The last row proves that the check can fail: the same ack from the right sender commits."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader = cluster.leader()
        cluster.isolate(leader.id)
        position = leader.propose(b"y")
        await cluster.until(lambda: leader.group().log.durable_index >= position.index, 0.1)
        ack = AppendAck(
            term=1,
            durable=position.index,
            received=position.index,
            conflict=False,
            next=0,
            next_term=0,
            commit=1,
            count=0,
        )
        forge(cluster, 2, dataclasses.replace(ack, **stale))
        await cluster.run_for(0.01)
        assert (leader.group().commit_index >= position.index) is (not stale)
        if not stale:  # the majority was forged, so the ledger must not judge the run
            cluster.ledger.chosen[GROUP].clear()

    simulate(scenario)
