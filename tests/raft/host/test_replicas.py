"""When an operation on a replica fails or has to wait, the status says so, and no other replica is affected."""

from __future__ import annotations

import pytest
import structlog

from tests.raft.harness import Broker, Cluster, Recorder, simulate
from tests.raft.host.test_repair import FIRST, OTHER, filled, flip_first
from tests.raft.replica.test_snapshot_receiver import LARGE, trimmed
from tests.raft.traffic import append_to, deliver, entry_after
from tests.raft.values import GROUP
from tinymq.base.errors import CorruptData, DiskFull, StorageError, SyncFailed, TinymqError
from tinymq.format.entry import Entry
from tinymq.log.engine.damaged_logs import has_quarantined, prepare_quarantine
from tinymq.log.files.layout import SNAPSHOT, group_directory, quarantine_directory
from tinymq.raft import Role


async def found_damaged(broker: Broker) -> None:
    flip_first(broker)
    with pytest.raises(CorruptData):
        await broker.process.run(broker.group().log.reader.read(2, 10_000))


@pytest.mark.parametrize("error", [SyncFailed, DiskFull])
def test_a_replica_that_cannot_install_a_snapshot_reports_failure(error: type[TinymqError]) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        away = cluster.followers()[0]
        await trimmed(cluster, away)
        await away.start()
        if error is SyncFailed:
            away.files.fail_sync(f"{group_directory(GROUP)}/*{SNAPSHOT}")
        else:
            away.files.disk_full(0)
        await cluster.until(lambda: away.group().role is Role.FAILED, 3.0)
        assert isinstance(away.group().failure, error)
        assert away.group().status().reason.startswith(error.__name__)
        await cluster.commit(b"the others go on")
        away.power_cut()
        await away.start()
        await cluster.settle()
        assert away.group().role is Role.FOLLOWER
        await cluster.check_logs()

    simulate(scenario)


def test_a_repair_that_the_disk_refuses_names_the_reason() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.followers()[0]
        await found_damaged(broker)
        broker.files.fail_sync("aside*")
        await cluster.until(lambda: broker.group().role is Role.FAILED, 3.0)
        assert isinstance(broker.group().failure, SyncFailed)
        assert FIRST in broker.files.paths()

    simulate(scenario)


def test_a_log_with_a_long_lease_delays_nothing() -> None:
    """After a recovery that accepted loss, the log in quarantine may have more committed entries than all others."""

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.followers()[0]
        broker.kill()
        prepare_quarantine(broker.files, GROUP, 10_000)
        broker.files.open(f"{quarantine_directory(GROUP)}/{FIRST.rsplit('/', 1)[1]}", create=True)
        await broker.start()
        await cluster.settle()
        await cluster.run_for(1.0)
        assert has_quarantined(broker.files, GROUP), "more entries were committed there than this log has"
        await found_damaged(broker)
        assert broker.group().role is Role.QUARANTINED
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 6.0)
        assert broker.group().replica.state.me.count == 1
        await cluster.settle()
        await cluster.check_logs()

    simulate(scenario)


def test_a_log_that_cannot_be_removed_stops_no_other_replica() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker = cluster.followers()[0]
        await found_damaged(broker)
        await cluster.until(lambda: has_quarantined(broker.files, GROUP), 3.0)
        broker.files.fail_sync("aside", once=False)
        await cluster.until(lambda: broker.group().role is Role.FOLLOWER, 5.0)
        await cluster.run_for(1.0)
        assert broker.group().role is Role.FOLLOWER
        await cluster.settle()

    simulate(scenario)


def test_a_replica_that_could_not_be_opened_can_be_opened_later() -> None:
    class Refuses(Recorder):
        def apply(self, entry: Entry) -> None:
            raise StorageError("the disk refuses")

    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        broker, first = cluster.followers()[0], cluster.first_entries[GROUP]
        await broker.process.run(broker.host.close_group(GROUP))
        with pytest.raises(StorageError, match="refuses"):
            await broker.process.run(broker.host.open_group(GROUP, first, Refuses(cluster.ledger, GROUP, broker.id)))
        await broker.process.run(broker.open_group(GROUP, first))
        await cluster.settle()
        assert broker.group().role is Role.FOLLOWER

    simulate(scenario)


def test_a_head_that_is_removed_while_it_is_read_for_a_follower_stops_no_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await filled(cluster)
        leader, follower = cluster.leader(), cluster.followers()[0]
        env, log = leader.group().replica.state.env, leader.group().log

        def both() -> None:
            env.read_cold(follower.id, 2)
            log.remove_before(40)

        leader.process.do(both)
        await cluster.run_for(0.5)
        assert log.first_index > 2
        assert leader.group().role is Role.LEADER
        await cluster.commit(b"it goes on")
        await cluster.settle()

    simulate(scenario)


def test_every_end_of_a_replica_is_logged() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        await cluster.settle()
        follower = cluster.followers()[0]
        with structlog.testing.capture_logs() as logged:
            deliver(follower, cluster.leader().id, append_to(follower, entry_after(follower, 99, 1)))
        assert [(e["log_level"], e["error"]) for e in logged if e["event"] == "replica_failed"] == [
            ("error", "UnsupportedVersion")
        ]

    simulate(scenario)


def test_a_failing_replica_does_not_hide_a_dead_broker_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [GROUP, OTHER]

    async def scenario(cluster: Cluster) -> None:
        for group in groups:
            await cluster.settle(group)
        leader, other = cluster.leader(GROUP), cluster.leader(OTHER)
        if other is not leader:
            assert other.process.do(lambda: other.host.transfer(OTHER, leader.id))
            await cluster.until(lambda: cluster.leaders(OTHER) == [leader], 3.0)
            await cluster.settle(OTHER)

        def refuse() -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(leader.machine(GROUP), "follow", refuse)
        cluster.isolate(leader.id)
        await cluster.until(lambda: not leader.group(OTHER).is_leader, 3.0)
        assert leader.group(GROUP).role is Role.FAILED
        cluster.heal()
        await cluster.settle(OTHER)
        assert leader.group(OTHER).role is Role.FOLLOWER

    simulate(scenario, groups=groups)


def test_a_partial_snapshot_is_dropped_when_another_leader_has_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "padding", LARGE)

    async def scenario(cluster: Cluster) -> None:
        await cluster.settle()
        leader, (away, other) = cluster.leader(), cluster.followers()
        await cluster.commit(b"first")
        await cluster.settle()
        away.kill()
        for i in range(60):
            await cluster.commit(b"%d" % i + bytes(700))
        await cluster.settle()
        leader.process.do(lambda: leader.group().log.remove_before(40))  # `other` gets nothing: it has all entries
        await away.start()
        incoming = away.host._replicas.installs._incoming
        await cluster.until(lambda: GROUP in incoming and incoming[GROUP].received, 5.0)
        leader.kill()
        await cluster.until(lambda: cluster.leaders() == [other] and away.group().commit_index > 60, 5.0)
        await cluster.run_for(0.5)
        assert away.group().log.first_index == 1, "it needed no snapshot"
        assert not incoming
        await leader.start()
        await cluster.settle()
        await cluster.check_logs()

    simulate(scenario, delay_s=(0.01, 0.002))
