"""Mutants of clients, and of what they write and read: each field of a record, its times, and where it is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from tinymq.broker.serve import messages, offsets
from tinymq.client.cluster.broker_health import ClusterHealth
from tinymq.client.common.rows import Columns, columns_of
from tinymq.client.consume import records
from tinymq.client.produce import producer_batch
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.queue_owners import QueueOwners
from tinymq.client.produce.send_queue import QueueOwner, SendQueue
from tinymq.client.produce.topic_buffers import TopicBuffers
from tinymq.format.batch import Codec, conform, encode
from tinymq.format.columns import Headers
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

PLACEMENT = "tests/client/produce/test_placement.py::test_"
HEALTH = "tests/client/cluster/test_broker_health.py::test_"
WRITES = Focus(faults=("kill",), workloads=("lone", "idempotent"), pace=0.3)
TABLES = Focus(faults=("kill",), workloads=("batches",), pace=0.3)
QUEUES = Focus(faults=("kill",), workloads=("queues",), pace=0.3)
RECREATED = Focus(faults=("kill",), workloads=("recreated",), pace=0.5)
LATE_US = 3_000_000

Keys = Sequence[bytes | None] | None
ManyHeaders = Sequence[Headers | None] | None


THREADS = Focus(faults=("client_reset", "kill"), workloads=("crowd",), threaded=1.0)


@mutant("the client sends the key of each record", WRITES)
def keys_are_not_sent(p: Patches) -> None:
    def without(
        keys: Keys, values: Sequence[bytes | None], headers: ManyHeaders, times: Sequence[int], codec: Codec
    ) -> pa.Buffer:
        return encode(None, values, headers, times, codec)

    p.replace(encode, without, within=[producer_batch])


@mutant("the client sends the headers of each record", WRITES)
def headers_are_not_sent(p: Patches) -> None:
    def without(
        keys: Keys, values: Sequence[bytes | None], headers: ManyHeaders, times: Sequence[int], codec: Codec
    ) -> pa.Buffer:
        return encode(keys, values, None, times, codec)

    p.replace(encode, without, within=[producer_batch])


@mutant("the client sends the timestamp that the application gives", WRITES)
def timestamps_are_all_alike(p: Patches) -> None:
    def alike(
        keys: Keys, values: Sequence[bytes | None], headers: ManyHeaders, times: Sequence[int], codec: Codec
    ) -> pa.Buffer:
        return encode(keys, values, headers, [times[0]] * len(times), codec)

    p.replace(encode, alike, within=[producer_batch])


@mutant("the rows of a table keep their timestamps", TABLES)
def tables_are_stamped_again(p: Patches) -> None:
    def stamped(data: Any, now_us: int) -> list[pa.RecordBatch]:
        return conform(data.drop_columns("timestamp"), now_us)

    p.replace(conform, stamped)


@mutant("a reader returns the key of each record", WRITES)
def keys_are_not_read(p: Patches) -> None:
    real = columns_of
    p.replace(real, lambda batch: real(batch)._replace(keys=repeat(None, batch.num_rows)), within=[records])


@mutant("a reader returns the headers of each record", WRITES)
def headers_are_not_read(p: Patches) -> None:
    real = columns_of

    def first_ones(batch: pa.RecordBatch) -> Columns:
        columns = real(batch)
        return columns._replace(headers=[pairs[:1] for pairs in columns.headers])

    p.replace(real, first_ones, within=[records])


@mutant("a reader returns the timestamp of each record", WRITES)
def timestamps_are_read_in_milliseconds(p: Patches) -> None:
    real = columns_of

    def rounded(batch: pa.RecordBatch) -> Columns:
        columns = real(batch)
        return columns._replace(times_us=[time_us // 1000 * 1000 for time_us in columns.times_us])

    p.replace(real, rounded, within=[records])


@mutant("QueueService stores the key and the headers of a message", QUEUES)
def queue_messages_are_bare(p: Patches) -> None:
    real = messages.pack_record
    p.replace(real, lambda key, value, headers, timestamp_us: real(None, value, (), timestamp_us))


@mutant("QueueService stores the timestamp that the caller gives", QUEUES)
def queue_messages_lose_their_time(p: Patches) -> None:
    real = messages.pack_record
    p.replace(real, lambda key, value, headers, timestamp_us: real(key, value, headers, 0))


@mutant("a look-up by time finds the first record of that time or later", WRITES)
def look_ups_are_late(p: Patches) -> None:
    real = offsets.find_offset

    async def find(partition: Any, timestamp_us: int, leader_only: bool, offload: Any) -> Any:
        late_us = timestamp_us + LATE_US if timestamp_us >= 0 else timestamp_us
        return await real(partition, late_us, leader_only, offload)

    p.replace(offsets.find_offset, find)


@mutant("a producer goes on into the topic that is made again under the name of a deleted one", RECREATED)
def producers_stay_with_deleted_topics(p: Patches) -> None:
    p.replace(TopicBuffers.forget, lambda self, topic, topic_id: None)


@mutant(
    "a slow leader is retried at once, because no other broker can replace it",
    test=f"{HEALTH}a_leader_that_lost_its_connection_is_sent_to_soon",
)
def slow_leaders_are_left_alone(p: Patches) -> None:
    p.replace(ClusterHealth.retry_s, lambda self, address, now_s: self.cost(address, now_s)[0])


@mutant(
    "unsent batches without a key leave a partition whose leader is lost",
    test=f"{PLACEMENT}free_records_leave_a_dead_broker_and_bound_ones_stay",
)
def waiting_batches_stay(p: Patches) -> None:
    p.replace(SendQueue.withdraw, lambda self: [])


@mutant("a thread passes a queue on, and tells the loop, in one step", THREADS)
def the_loop_is_told_before_the_queue_is_passed_on(p: Patches) -> None:
    real = QueueOwners.pass_on

    def pass_on(self: QueueOwners, queue: SendQueue, owner: QueueOwner, tell: Callable[[], bool]) -> bool:
        told = tell()
        real(self, queue, owner, lambda: told)
        return told

    p.replace(QueueOwners.pass_on, pass_on)


@mutant("a thread wakes the loop for what others have queued behind its record", THREADS)
def threads_leave_the_loop_asleep(p: Patches) -> None:
    def give_back(self: Batcher, batch: ProducerBatch) -> None:
        self.owners.pass_on(batch.queue, QueueOwner.NOBODY, lambda: True)
        self.pool.taken_bytes, batch.bytes = self.pool.taken_bytes - batch.bytes, 0

    p.replace(Batcher.give_back, give_back)
