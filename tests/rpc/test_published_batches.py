"""All ways to read records find those of transactions: in the broker's memory and on its disk, after a restart, and on
a broker that was emptied in the middle of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.fakes.batches import TIME_US, payload
from tests.fakes.transacted import name_of, stage, transact
from tinymq import Offset
from tinymq.base.config import Limits, Timing
from tinymq.broker.partition.partition import Partition
from tinymq.broker.partition.staged import copies
from tinymq.broker.serve.messages import look
from tinymq.log import Log
from tinymq.testing.cluster import Cluster

TOPIC = "t"
LARGE = b"x" * 30_000


def at_us(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1e6, UTC)


class Filled:
    """A topic with plain records, a small transaction, and a large one whose batches lie between others."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.mq = cluster, cluster.client()
        self.topic_id = self.mq.admin.create_topic(TOPIC, partitions=1).topic_id
        self.values: list[bytes] = []
        self._plain(b"first")
        self._transact([payload(3, value=b"small"), payload(2, value=b"more")], b"small0 small1 small2 more0 more1", 1)
        self._plain(b"second")
        sizes = (1, 2, 1, 3)
        batches = [payload(n, value=LARGE + b"%d." % n, time_us=TIME_US + 1000 * n) for n in sizes]
        self._transact(batches, b" ".join(LARGE + b"%d.%d" % (n, i) for n in sizes for i in range(n)), 2)
        self._plain(b"third")

    @property
    def partition(self) -> Partition:
        broker = self.cluster.brokers[1].serving.broker
        assert broker is not None
        found = broker.replica_host.get(self.topic_id, 0)
        assert found is not None
        return found

    def _plain(self, value: bytes) -> None:
        self.mq.send(TOPIC, value, partition=0, timestamp=at_us(1))
        self.values.append(value)

    def _transact(self, payloads: list[bytes], values: bytes, number: int) -> None:
        self.cluster.run(transact(self.partition, payloads, number))
        self.values += values.split()


@pytest.fixture(scope="module", params=["in memory", "on disk"])
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    limits = Limits(tail_cache_bytes_max=1) if request.param == "on disk" else Limits()
    with Cluster(nodes=1, limits=limits) as cluster:
        found = Filled(cluster)
        yield found
        found.mq.close()


def test_readers_get_each_record_at_its_offset(filled: Filled) -> None:
    for start in range(len(filled.values)):
        with filled.mq.reader(TOPIC, start=Offset(start), end="latest") as reader:
            got = [(message.offset, message.value) for message in reader]
        assert got == list(enumerate(filled.values))[start:]


def test_tables_and_scans_have_the_records(filled: Filled) -> None:
    with filled.mq.reader(TOPIC, end="latest") as reader:
        table = reader.to_arrow()
    assert table.column("value").to_pylist() == filled.values
    assert table.column("offset").to_pylist() == list(range(len(filled.values)))
    for start, end in ((2, 9), (5, 6), (8, 12)):
        with filled.mq.scan(TOPIC, 0, start, end) as scan:
            assert [value.as_py() for batch in scan for value in batch.column("value")] == filled.values[start:end]


def test_a_reader_begins_at_the_record_of_a_time(filled: Filled) -> None:
    """In the middle of a batch in the middle of a transaction. Plain records are older."""
    start = filled.values.index(LARGE + b"2.1")
    with filled.mq.reader(TOPIC, start={0: at_us(TIME_US + 2001)}, end="latest") as reader:
        first = next(iter(reader))
    assert (first.offset, first.value) == (start, LARGE + b"2.1")


def test_single_records_are_found(filled: Filled) -> None:
    broker = filled.cluster.brokers[1].serving.broker
    assert broker is not None
    for offset, value in enumerate(filled.values):
        found = filled.cluster.run(look(broker, filled.partition, offset, 0.0))
        assert found.record is not None
        assert (found.record.offset, found.record.value) == (offset, value)


def test_workers_get_the_records(filled: Filled) -> None:
    got: dict[int, bytes | None] = {}
    with filled.mq.worker(TOPIC, group="workers") as worker:
        while len(got) < len(filled.values):
            for job in worker.poll(10.0):
                got[job.offset] = job.value
                job.ack()
    assert got == dict(enumerate(filled.values))


def test_channels_consume_the_records(filled: Filled) -> None:
    with filled.mq.queue(TOPIC, channel="c") as queue:
        got = [message.value for _ in filled.values for message in queue.poll(timeout=10.0)]
    assert got == filled.values


def test_the_records_are_there_after_a_restart(filled: Filled) -> None:
    filled.cluster.restart(1)
    filled.cluster.wait_leader(TOPIC)
    with filled.mq.reader(TOPIC, end="latest") as reader:
        assert [message.value for message in reader] == filled.values


def test_an_emptied_broker_serves_what_was_staged_before_and_published_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments stay while a transaction needs its batches, and go when retention has reached the records."""
    monkeypatch.setattr(copies, "PINNED_MAX", 10**9)  # a copy of the batches would free the segments
    large, batches = bytes(900_000), [payload(1, value=b"%d." % n) for n in range(3)]
    with Cluster(nodes=3, timing=Timing(retention_check_s=0.1)) as cluster, cluster.client() as mq:
        settings = {"segment_bytes": 1 << 20}
        topic_id = mq.admin.create_topic(TOPIC, partitions=1, settings=settings).topic_id

        def replica(broker_id: int) -> Partition | None:
            return cluster.brokers[broker_id].serving.running().replica_host.get(topic_id, 0)

        def ends_at(broker_id: int, end: int) -> bool:
            found = replica(broker_id)
            return found is not None and found.closed is None and found.high_watermark == end

        leader = cluster.wait_leader(TOPIC)
        partition = replica(leader)
        assert partition is not None
        indexes = cluster.run(stage(partition, batches, 1))
        for _ in range(4):
            mq.send(TOPIC, large, partition=0)
        assert mq.admin.trim(TOPIC, 0, "latest") == 4
        emptied = leader % 3 + 1
        cluster.kill(emptied)
        cluster.wipe(emptied)
        cluster.start(emptied)
        cluster.wait_until(lambda: ends_at(emptied, 4))
        cluster.call(partition.retain)
        assert first_index(partition) <= indexes[0]
        cluster.run(partition.transactions.end(name_of(1), publish=True))
        cluster.wait_until(lambda: ends_at(emptied, 7))
        with mq.scan(TOPIC, 0, 4, 7, replicas=((emptied,),)) as scan:
            assert [value.as_py() for batch in scan for value in batch.column("value")] == [b"0.0", b"1.0", b"2.0"]
        for _ in range(2):
            mq.send(TOPIC, large, partition=0)
        assert mq.admin.trim(TOPIC, 0, "latest") == 9
        cluster.wait_until(lambda: first_index(partition) > indexes[-1])


def first_index(partition: Partition) -> int:
    log = partition.group.log
    assert isinstance(log, Log)
    return log.first_index
