"""A replica that cannot open files because no descriptors are left stops, and continues once descriptors are free."""

from __future__ import annotations

import pytest

from tests.raft.harness import LIMITS, Broker, Cluster, simulate
from tests.raft.values import GROUP
from tinymq.base.errors import OutOfDescriptors
from tinymq.base.types import GroupId
from tinymq.log.files.layout import SEGMENT, group_directory
from tinymq.raft import Role
from tinymq.raft.host.replicas import REOPEN_S

OTHER = GroupId(GROUP.topic_id, 1)
FOLDER = group_directory(GROUP)
PAYLOAD = bytes(LIMITS.segment_bytes // 4)


def failed(broker: Broker) -> bool:
    return isinstance(broker.group().failure, OutOfDescriptors)


async def fill(cluster: Cluster, broker: Broker) -> None:
    """Write until a segment is full and the next one cannot be created."""
    for _ in range(30):
        if failed(broker):
            return
        await cluster.until(lambda: bool(cluster.leaders()), 5.0)
        cluster.leader().propose(PAYLOAD)
        await cluster.run_for(0.05)
    raise AssertionError("it has not failed")


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("path", [f"{FOLDER}/*{SEGMENT}", FOLDER], ids=["a segment", "the sync of the directory"])
def test_a_replica_comes_back_with_its_whole_log_and_votes_again(leads: bool, path: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x", GROUP)
        await cluster.commit(b"x", OTHER)
        broker = cluster.leader() if leads else cluster.followers()[0]
        broker.files.out_of_descriptors(path)
        await fill(cluster, broker)
        assert broker.group(OTHER).role in (Role.LEADER, Role.FOLLOWER)
        assert broker.failures == [], "the broker keeps running"
        await cluster.run_for(5 * REOPEN_S)
        assert failed(broker)
        await cluster.commit(b"the others go on")
        broker.files.out_of_descriptors("")
        await cluster.until(lambda: broker.group().role in (Role.LEADER, Role.FOLLOWER), 5.0)
        await cluster.commit(b"and this one with them")
        await cluster.settle()
        await cluster.check_logs()
        assert broker.group().log.last_index == cluster.leader().group().log.last_index

    simulate(scenario, groups=[GROUP, OTHER])


def test_a_replica_closed_meanwhile_is_not_reopened() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.commit(b"x")
        broker = cluster.followers()[0]
        broker.files.out_of_descriptors(f"{FOLDER}/*")
        await fill(cluster, broker)
        await broker.host.close_group(GROUP)
        await cluster.run_for(5 * REOPEN_S)
        assert GROUP not in broker.host.groups

    simulate(scenario)
