"""A replica whose disk fails: hazards 7 and 22, promise 6. It does not retry a failed sync."""

from __future__ import annotations

import pytest

from tests.raft.harness import LIMITS, Broker, Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import CorruptData, DiskFull, NotLeader, SyncFailed
from tinymq.base.types import GroupId
from tinymq.format.entry import HEADER_SIZE, Kind, NewEntry
from tinymq.log.broker_files.vote_store import load_votes
from tinymq.log.files.layout import SEGMENT, VOTES, group_directory, in_group
from tinymq.raft import Role

OTHER = GroupId(GROUP.topic_id, 1)
SEGMENT_OF_GROUP = in_group(group_directory(GROUP), 1, SEGMENT)


def failed(broker: Broker) -> bool:
    return broker.group().role is Role.FAILED


@pytest.mark.parametrize("leads", [True, False])
def test_a_failed_sync_stops_the_replicas_of_that_sync_and_no_others(leads: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x", GROUP)
        await cluster.commit(b"x", OTHER)
        await cluster.run_for(1.0)
        broker = cluster.leader() if leads else cluster.followers()[0]
        broker.files.fail_sync(f"{group_directory(GROUP)}/*")
        cluster.leader().propose(b"y")
        await cluster.until(lambda: failed(broker), 1.0)
        assert isinstance(broker.group().failure, SyncFailed)
        assert broker.group().status().reason.startswith("SyncFailed")
        assert broker.group(OTHER).role in (Role.LEADER, Role.FOLLOWER)
        assert broker.failures == [], "the broker keeps running"
        with pytest.raises(NotLeader):
            broker.group().propose(NewEntry(Kind.DATA, b""))
        await cluster.commit(b"the others go on")
        await cluster.commit(b"and so does the other group", OTHER)
        await cluster.settle(OTHER)
        assert failed(broker), "a failed replica never comes back by itself"

    simulate(scenario, groups=[GROUP, OTHER])


def test_a_failed_sync_acknowledges_nothing() -> None:
    """The second sync of the same file would succeed without having written anything."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader, (one, other) = cluster.leader(), cluster.followers()
        for follower in (one, other):
            follower.files.fail_sync("groups/*")
        lost = leader.propose(b"y")
        await cluster.until(lambda: failed(one) and failed(other), 1.0)
        leader.propose(b"z")
        await cluster.run_for(3.0)
        assert leader.machine().index < lost.index
        assert leader.group().commit_index < lost.index

    simulate(scenario)


def test_a_replica_whose_sync_failed_comes_back_after_a_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        follower = cluster.followers()[0]
        follower.files.fail_sync("groups/*")
        await cluster.commit(b"y")
        await cluster.until(lambda: failed(follower), 1.0)
        for i in range(5):
            await cluster.commit(b"%d" % i)
        await cluster.run_for(0.5)
        follower.power_cut()
        await follower.start()
        await cluster.settle()
        assert follower.group().role is Role.FOLLOWER
        assert follower.machine().payloads == [b"x", b"y", *(b"%d" % i for i in range(5))]
        await cluster.check_logs()

    simulate(scenario)


@pytest.mark.parametrize("seed", first_of(range(4), 1))
@pytest.mark.parametrize("how", ["sync", "full"])
def test_a_replica_that_failed_under_load_comes_back_as_a_member(seed: int, how: str) -> None:
    """Entries that arrived after the failure were never written, and no mark may cover them."""

    async def scenario(cluster: Cluster) -> None:
        cluster.background(cluster.load(pause_s=0.002))
        await cluster.until(lambda: cluster.ledger.end(GROUP) > 20, 2.0)
        broker = cluster.brokers[cluster.rng.randint(1, 3)]
        if how == "sync":
            broker.files.fail_sync("groups/*")
        else:
            broker.files.disk_full(cluster.rng.randrange(5000))
        await cluster.until(lambda: failed(broker), 3.0)
        await cluster.run_for(0.5)
        if seed % 2:
            broker.power_cut()
        else:
            broker.kill()
        await broker.start()
        cluster.end_background()
        await cluster.settle()
        assert broker.group().role in (Role.FOLLOWER, Role.LEADER), broker.state
        await cluster.check_logs()

    simulate(scenario, seed)


@pytest.mark.parametrize("copy", VOTES)
def test_a_failed_sync_of_the_ballots_stops_the_broker(copy: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        leader = cluster.leader()
        voter = cluster.followers()[0]
        voter.files.fail_sync(copy)
        leader.kill()
        await cluster.until(lambda: voter.failures, 3.0)
        assert isinstance(voter.failures[0], SyncFailed)
        assert failed(voter)
        assert voter.group().status().reason
        assert not [b for b in cluster.leaders() if b is not leader], "one vote of three elects no leader"

    simulate(scenario)


def test_a_full_disk_stops_the_replica_and_the_status_says_so() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        follower = cluster.followers()[0]
        follower.files.disk_full(0)
        await cluster.commit(bytes(2000))
        await cluster.until(lambda: failed(follower), 1.0)
        assert isinstance(follower.group().failure, DiskFull)
        await cluster.commit(b"y")
        follower.kill()
        await follower.start()
        await cluster.settle()
        assert follower.group().role is Role.FOLLOWER
        await cluster.check_logs()

    simulate(scenario)


def test_a_leader_with_a_full_disk_is_succeeded() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        leader = cluster.leader()
        leader.files.disk_full(0)
        leader.propose(bytes(2000))
        await cluster.until(lambda: [b for b in cluster.leaders() if b is not leader], 2.0)
        await cluster.commit(b"y")

    simulate(scenario)


@pytest.mark.parametrize("leads", [True, False])
def test_damage_found_at_opening_quarantines_the_replica(leads: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        for i in range(10):
            await cluster.commit(b"%d" % i)
        await cluster.settle()
        await cluster.run_for(1.0)  # the marks are synced
        broker = cluster.leader() if leads else cluster.followers()[0]
        broker.kill()
        broker.files.flip_bit(SEGMENT_OF_GROUP, 64 + HEADER_SIZE + 100)
        await broker.start()
        assert broker.group().role is Role.QUARANTINED
        assert isinstance(broker.group().failure, CorruptData)
        assert "CorruptData" in broker.group().status().reason
        for other in cluster.running:
            cluster.cut(broker.id, other.id) if other is not broker else None
        await cluster.run_for(3.0)
        assert broker.group().role is Role.QUARANTINED, "it asks no other broker, so it changes nothing"
        assert cluster.leader() is not broker

    simulate(scenario)


def test_a_log_without_any_valid_entry_is_quarantined() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        await cluster.run_for(1.0)
        broker = cluster.leader()
        broker.kill()
        broker.files.remove(SEGMENT_OF_GROUP)
        await broker.start()
        assert broker.group().role is Role.QUARANTINED

    simulate(scenario)


def test_damage_found_while_reading_quarantines_the_replica() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        follower = cluster.followers()[0]
        follower.kill()
        for _ in range(40):
            await cluster.commit(bytes(1000))
        leader = cluster.leader()
        leader.files.flip_bit(SEGMENT_OF_GROUP, 3000)
        await follower.start()
        await cluster.until(lambda: leader.group().role is Role.QUARANTINED, 2.0)
        await cluster.settle()
        assert cluster.leader() is not leader
        assert [len(b.machine().payloads) for b in cluster.running if b is not leader] == [40, 40]

    simulate(scenario, limits=LIMITS)


def test_a_term_known_only_from_entries_is_stored_before_any_message_of_it() -> None:
    """A power cut kept the entries that brought a new term, but lost the hard state of the same sync batch."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        broker = cluster.followers()[0]
        before = {path: broker.files.content(path) for path in VOTES}
        voted = load_votes(broker.files).hard_states[GROUP]
        assert voted[1] is not None
        cluster.leader().kill()
        await cluster.commit(b"y")
        await cluster.settle()
        broker.kill()
        for path, content in before.items():
            broker.files.put(path, content)
        await broker.start()
        state = broker.group().replica.state
        assert state.term > voted[0]
        assert state.voted_for is None, "that vote belonged to an earlier term"
        assert not broker.store.votes.durable(GROUP), "no message leaves before the term is written"
        await cluster.until(lambda: load_votes(broker.files).hard_states[GROUP][0] >= state.term, 1.0)
        await cluster.settle()

    simulate(scenario)
