"""`__coordinator` grows no faster than what it holds: the log of many joins and leaves goes with each snapshot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.patience import PATIENT
from tinymq.broker.groups.groups import COORDINATOR_TOPIC
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.members.group_members import Member, Members, MembersDelta
from tinymq.testing import Cluster

pytestmark = pytest.mark.long

SEGMENT_ENTRIES = 8192  # docs/adr/0023-segments-of-8192-entries.md
GROUPS = 200  # that change side by side, so that changes share their syncs
STEPS = 130  # of each group: more than three segments in all


def coordinator(cluster: Cluster) -> CoordinatorReplica:
    broker = cluster.brokers[1].serving.broker
    assert broker is not None
    return next(replica for (_, number), replica in broker.replica_host.internal.items() if number == 0)


async def join_and_leave(replica: CoordinatorReplica) -> None:
    async def one(name: str) -> None:
        for step in range(STEPS):
            member: dict[str, Any] = {"m": Member(step.to_bytes(16)) if step % 2 == 0 else None}
            await replica.commit(name, replica.groups.get(name, Members(1)), MembersDelta(members=member))
        await replica.commit(name, replica.groups[name], MembersDelta(), remove=True)

    await asyncio.gather(*(one(f"group-{number}") for number in range(GROUPS)))


def test_the_log_of_a_coordinator_is_trimmed_and_a_restart_reads_what_is_left() -> None:
    with Cluster(1, timing=replace(PATIENT, retention_check_s=0.2)) as cluster:
        with cluster.client() as mq:
            mq.admin.create_topic("t", partitions=1, replication_factor=1)
            mq.admin.create_group("first", "t")
        cluster.wait_leader(COORDINATOR_TOPIC)
        cluster.run(join_and_leave(coordinator(cluster)), timeout_s=300)
        log = coordinator(cluster).group.log
        last = cluster.call(lambda: log.last_index)  # type: ignore[attr-defined]
        assert last > 3 * SEGMENT_ENTRIES
        cluster.wait_until(lambda: log.first_index > last - 2 * SEGMENT_ENTRIES)  # type: ignore[attr-defined]
        assert len(cluster.call(coordinator(cluster).dump)) < 1000, "what is gone takes no room"
        cluster.restart(1)
        cluster.wait_leader(COORDINATOR_TOPIC)
        assert coordinator(cluster).group.log.first_index > last - 2 * SEGMENT_ENTRIES  # type: ignore[attr-defined]
        assert dict(coordinator(cluster).groups) == {}
