"""A replica that is listed again becomes a member once its disk has stored its membership (docs/adr/0022). Then the
next disk can be replaced. The group keeps working even if other brokers fail at that moment.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.raft.harness import Broker, Cluster, Scenario, simulate
from tests.raft.test_rejoining import everybody_agrees, five_writes, listed
from tests.raft.traffic import fails
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.errors import DiskFull
from tinymq.log.broker_files.durability_marks import DurabilityMark, DurabilityMarks
from tinymq.log.files.layout import SEGMENT, group_directory
from tinymq.log.replica_log.commit_progress import UrgentCommits
from tinymq.log.replica_log.log import Log
from tinymq.raft import Role
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.rules.configs import Configs

WRITTEN = [b"%d" % i for i in range(5)]


async def is_back(cluster: Cluster, broker: Broker) -> None:
    """Wait until an operator sees the broker's replica as a follower."""
    await broker.start()
    await cluster.until(lambda: listed(broker), 2.0)


def in_a_row(end: Callable[[Broker], None]) -> Scenario:
    """Replace the disks of a minority in turn, each as soon as the previous replica is a member. All other brokers are
    killed at that moment.
    """

    async def scenario(cluster: Cluster) -> None:
        await five_writes(cluster)
        brokers = list(cluster.brokers.values())
        for gone in reversed(brokers[1:]):
            gone.wipe()
            await cluster.run_for(0.3)
            await is_back(cluster, gone)
            next_one = brokers[brokers.index(gone) - 1]
            for broker in brokers:
                if broker is not next_one:
                    end(broker)
            next_one.wipe()
            await cluster.start()
            await cluster.until(cluster.leaders, 6.0, "a majority of disks is intact")
            await everybody_agrees(cluster, WRITTEN)

    return scenario


@pytest.mark.parametrize(("nodes", "seed"), first_of([(3, 0), (5, 0), (3, 1), (3, 2)], 2))
@pytest.mark.parametrize("end", [Broker.kill, Broker.power_cut])
def test_the_next_disk_may_go_as_soon_as_the_replaced_one_is_a_member(
    end: Callable[[Broker], None], nodes: int, seed: int
) -> None:
    simulate(in_a_row(end), seed, nodes=nodes)


def test_mutant_a_listed_replica_counts_as_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Configs, "has_kept", Configs.lists)
    fails(in_a_row(Broker.kill))
    fails(in_a_row(Broker.power_cut))


def test_mutant_an_unsynced_membership_counts_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "sync_commit", lambda self, index: self.commit_synced(index))
    fails(in_a_row(Broker.power_cut))


# ---- until the disk has stored the membership
# ----------------------------------------------------------------------------------


async def no_mark_is_written(cluster: Cluster) -> None:
    """Broker 3 has a new disk without space for marks: its replica is listed and follows, but is not a member."""
    await five_writes(cluster)
    three = cluster.brokers[3]
    three.wipe()
    await three.start()
    write = DurabilityMarks.write

    def refuse(self: DurabilityMarks, changed: list[DurabilityMark]) -> None:
        if self._files is three.files and changed:
            raise DiskFull("no space for marks")
        write(self, changed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DurabilityMarks, "write", refuse)
        await cluster.until(lambda: three.group().replica.state.is_listed, 2.0)
        await cluster.commit(b"with all three")
        await cluster.run_for(1.0)
        group, leader = three.group(), cluster.leader().group()
        assert (group.role, group.replica.state.failure) == (Role.LEARNER, None)
        assert group.status().reason == "it is listed, and waits until its disk has stored its membership"
        leading = leader.replica.current.leadership
        assert leading is not None
        assert leading.replication.progress[3].commit < leader.replica.state.configs.applied.index, (
            "its leader does not rest"
        )
        assert [leader.replica.can_lose(b) for b in (1, 2, 3)] == [False, False, True]
        cluster.brokers[2].kill()
        await cluster.commit(b"with one and three: it counts")
        await cluster.brokers[2].start()
        await cluster.settle()
        await cluster.run_for(0.5)  # nothing else is written after this
    await cluster.until(lambda: listed(three), 0.3, "the write is retried")
    await cluster.until(lambda: leader.replica.can_lose(2), 0.3)
    await everybody_agrees(cluster, [*WRITTEN, b"with all three", b"with one and three: it counts"])


def test_without_disk_space_for_its_mark_a_replica_is_no_member() -> None:
    simulate(no_mark_is_written)


def test_mutant_a_failed_mark_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UrgentCommits, "__bool__", lambda self: False)
    fails(no_mark_is_written)


async def damage_while_another_is_not_back(cluster: Cluster) -> None:
    """Broker 3 is listed, but its disk has not stored its membership. Broker 2's repair waits: otherwise 1 and 3 might
    be unable to elect a leader.
    """
    await five_writes(cluster)
    await cluster.run_for(0.5)
    two, three = cluster.brokers[2], cluster.brokers[3]
    three.wipe()
    await three.start()
    keep = Log.sync_commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "sync_commit", lambda self, index: None)
        await cluster.until(lambda: three.group().replica.state.is_listed, 2.0)
        two.kill()
        path = max(p for p in two.files.paths() if p.startswith(group_directory(GROUP)) and p.endswith(SEGMENT))
        two.files.flip_bit(path, 64 + 40)
        await two.start()
        await cluster.run_for(4.0)
        assert two.group().role is Role.QUARANTINED
    state = three.group().replica.state
    three.process.do(lambda: keep(state.log, state.configs.applied.index))
    await cluster.until(lambda: listed(two), 5.0, "then its repair may begin")
    await everybody_agrees(cluster, WRITTEN)


def test_a_repair_waits_until_the_newest_member_has_stored_its_membership() -> None:
    simulate(damage_while_another_is_not_back)


def test_mutant_a_repair_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftReplica, "can_lose", lambda self, peer: True)
    fails(damage_while_another_is_not_back)


# ---- cost -----------------------------------------------------------------------------------------


def test_each_config_costs_one_sync_on_the_listed_replicas_disk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Log] = []
    keep = Log.sync_commit

    def ask(self: Log, index: int) -> None:
        asked.append(self)
        keep(self, index)

    monkeypatch.setattr(Log, "sync_commit", ask)

    async def scenario(cluster: Cluster) -> None:
        await five_writes(cluster)
        assert not asked
        three = cluster.brokers[3]
        three.wipe()
        await is_back(cluster, three)
        for i in range(5):
            await cluster.commit(b"%d" % i)
        await cluster.settle()
        assert asked == [three.group().log]

    simulate(scenario)
