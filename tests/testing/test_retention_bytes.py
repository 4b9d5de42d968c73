"""The excess over `retention_bytes` that a partition keeps, by the rule of docs/guarantees.md, for several bounds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tinymq.base.config import Timing
from tinymq.base.topic_config import SEGMENT_BYTES_MIN
from tinymq.broker.partition.partition import Partition
from tinymq.client.common.topic_settings import AIM_BYTES_MIN, KEPT_BATCHES_MIN
from tinymq.log.replica_log.log_config import SEGMENTS_KEPT_MIN
from tinymq.testing import Cluster

CHECK_S = 0.1
TIMES = 8  # the test writes this many times the bound
RECORD_BYTES = 500
BETWEEN = (100_000, 4_000_000)  # long: with the others there is one on each side of every minimum
FRAMING_BYTES = 4096  # of a batch, and of what else its log holds


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, timing=Timing(retention_check_s=CHECK_S)) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["records", "tables"])
@pytest.mark.parametrize("bound", [20_000, 1_000_000, *(pytest.param(b, marks=pytest.mark.long) for b in BETWEEN)])
def test_little_more_than_the_bound_is_kept(cluster: Cluster, bound: int, how: str) -> None:
    mq = cluster.client()
    name = f"{how}-{bound}"
    made = mq.admin.create_topic(name, partitions=1, replication_factor=1, settings={"retention_bytes": bound})
    values = [random.Random(1).randbytes(RECORD_BYTES)] * (TIMES * bound // RECORD_BYTES)
    with mq.producer(compression="none") as producer:
        if how == "tables":
            producer.send_batch(name, pa.table({"value": pa.array(values, pa.binary())}))
        else:
            for value in values:
                producer.send(name, value)

    def held() -> Partition:
        broker = cluster.brokers[1].serving.broker
        assert broker is not None
        found = broker.replica_host.get(made.topic_id, 0)
        assert found is not None
        return found

    def readable() -> int:
        """Bytes of records, as stored."""
        state = held().state
        return state.record_bytes - state.retention_index.below(state.log_start)

    def on_disk() -> int:
        (replica,) = (s for s in cluster.brokers[1].replica_statuses() if s.group.topic_id == made.topic_id)
        return replica.size_bytes

    batch = max(AIM_BYTES_MIN, bound // KEPT_BATCHES_MIN) + FRAMING_BYTES
    segment = max(SEGMENT_BYTES_MIN, bound // SEGMENTS_KEPT_MIN) + batch
    most = bound + bound // 128 + batch
    cluster.wait_until(lambda: readable() <= most and on_disk() <= most + segment)
    assert cluster.call(readable) >= bound, "no fewer bytes stay"
