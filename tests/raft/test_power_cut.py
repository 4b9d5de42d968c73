"""Cut the power of all brokers at any moment under load: acknowledged entries survive.

`kill -9` keeps the page cache, so it proves no sync; here each disk keeps the synced bytes and a random part of the
rest, and a sync batch under way stops at a random point. The mutants prove that the check can fail. `make fuzz
NAMES=raft` runs power cuts and storms with fresh seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tests.seeds import first_of
from tinymq.base.types import GroupId
from tinymq.log.files.files import File
from tinymq.log.replica_log.log import Log
from tinymq.raft import Role
from tinymq.raft.replica import opening
from tinymq.raft.state.replica_state import ReplicaState
from tinymq.simulation.faulty_files import FaultyFiles

CUTS = 2  # in each run: 32 points in `make test`, and 168 more in `make test-long`
MUTANT_SEEDS_MAX = 40  # within which a mutant has to be caught


async def cut_under_load(cluster: Cluster) -> None:
    """Write under load, cut the power, reopen. The ledger compares the entries that are applied again with those
    before.
    """
    await cluster.until(cluster.leaders, 1.0)
    cluster.background(cluster.load(pause_s=0.002))
    for _ in range(CUTS):
        await cluster.run_for(cluster.rng.uniform(0.0, 0.25))
        for broker in cluster.brokers.values():
            broker.power_cut()
        acknowledged = {group: max(indexes) for group, indexes in cluster.ledger.acknowledged.items()}
        await cluster.start()
        for group in cluster.groups:
            await cluster.until(lambda g=group: cluster.leaders(g), 5.0, "somebody leads")
            leader = cluster.leader(group)
            assert leader.group(group).log.first_index == 1
            assert leader.machines[group].index >= acknowledged.get(group, 0), "acknowledged, and lost"
            await cluster.check_logs(group)
    cluster.end_background()
    for group in cluster.groups:
        await cluster.settle(group)
        await cluster.check_logs(group)
        assert all(b.group(group).role in (Role.LEADER, Role.FOLLOWER) for b in cluster.running), cluster.describe()


@pytest.mark.parametrize("seed", first_of(range(90), 14))
def test_acknowledged_records_survive(seed: int) -> None:
    cluster = simulate(cut_under_load, seed)
    assert cluster.ledger.acknowledged[GROUP]


@pytest.mark.parametrize("seed", first_of(range(10), 2))
def test_power_cuts_of_groups_that_share_syncs(seed: int) -> None:
    groups = [GroupId(GROUP.topic_id, p) for p in range(4)]
    cluster = simulate(cut_under_load, seed, groups=groups)
    assert {*groups} == {group for group, indexes in cluster.ledger.acknowledged.items() if indexes}


class Unsynced:
    """A log that reports appended entries as durable."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, "last_index" if name == "durable_index" else name)


class AcknowledgesBeforeTheSync(ReplicaState):
    """Hazard 7 without its fix."""

    def __init__(self, *, log: Log, **rest: object) -> None:
        super().__init__(log=Unsynced(log), **rest)


def acknowledge_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "ReplicaState", AcknowledgesBeforeTheSync)


def sync_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the brokers run, the disk or its caller drops every sync."""
    real = FaultyFiles.sync

    def sync(self: FaultyFiles, files: list[File]) -> None:
        real(self, [f for f in files if not f.path.startswith("groups/")])

    monkeypatch.setattr(FaultyFiles, "sync", sync)


@pytest.mark.parametrize(
    ("mutate", "noticed"),
    [
        (acknowledge_before_the_sync, "which was|and lost"),
        (sync_nothing, "somebody leads"),  # every replica is quarantined: its marks show the loss
    ],
)
def test_mutant_syncs_are_skipped(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], noticed: str
) -> None:
    mutate(monkeypatch)
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            simulate(cut_under_load, seed)
        except AssertionError as error:
            if re.search(noticed, str(error)):
                return
            raise
    pytest.fail(f"{mutate.__name__} was not noticed in {MUTANT_SEEDS_MAX} seeds")
