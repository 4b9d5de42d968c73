"""An open transaction whose batches are copied, on three brokers that are wiped, killed and started again."""

from __future__ import annotations

import pytest

from tinymq.base.config import Timing
from tinymq.base.types import Offset
from tinymq.broker.partition.partition import Partition
from tinymq.testing import Cluster

pytestmark = pytest.mark.long
SETTINGS = {"segment_bytes": 65_536, "retention_bytes": 65_536}
LARGE = bytes(20_000)


def replicas(cluster: Cluster, topic_id: bytes) -> list[Partition]:
    found = [cluster.brokers[number].serving.running().replica_host.get(topic_id, 0) for number in (1, 2, 3)]
    return [each for each in found if each is not None]


def test_an_open_transaction_outlives_its_segments_its_leader_and_a_disk() -> None:
    """Its records are sent in several batches, with as much between them as retention removes."""
    with Cluster(nodes=3, timing=Timing(retention_check_s=0.1)) as cluster, cluster.client() as mq:
        mq.admin.create_topic("moves", replication_factor=3, settings=SETTINGS)
        leader = cluster.wait_leader("moves", 0)
        topic_id = cluster.registry(leader).get_topic("moves").topic_id  # type: ignore[union-attr]
        tx = mq.transaction("long", transaction_timeout_ms=600_000, linger_ms=0)
        tx.begin()
        staged = set[int]()
        for number in range(3):
            tx.send("moves", b"kept %d" % number, partition=0).result(10)
            now = replicas(cluster, topic_id)
            staged.add(max(each.state.applied_index for each in now))
            for _ in range(10):
                mq.send("moves", LARGE, partition=0)
        cluster.wait_until(
            lambda: all(each.group.log.first_index > max(staged) for each in replicas(cluster, topic_id))  # type: ignore[attr-defined]
        )
        emptied = next(number for number in (1, 2, 3) if number != cluster.wait_leader("moves", 0))
        cluster.kill(emptied)
        cluster.wipe(emptied)
        cluster.start(emptied)
        cluster.wait_until(lambda: len(replicas(cluster, topic_id)) == 3)
        cluster.wait_until(lambda: all(each.state.staged.waiting.batches == 3 for each in replicas(cluster, topic_id)))
        cluster.restart(cluster.wait_leader("moves", 0))
        cluster.wait_leader("moves", 0)
        tx.commit(timeout=30)
        end = mq.admin.offsets("moves")[0].high_watermark
        values = [message.value for message in mq.reader("moves", start=Offset(end - 3), end="latest")]
        assert values == [b"kept 0", b"kept 1", b"kept 2"]
        states = [each.state for each in replicas(cluster, topic_id)]
        cluster.wait_until(lambda: len({state.dump() for state in states}) == 1)
