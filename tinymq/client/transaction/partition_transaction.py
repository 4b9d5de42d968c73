"""AsyncPartitionTransaction: records of one partition that become visible together, or never, without a coordinator.

They are kept in memory until the commit, which sends them as one batch. A batch is one entry of the partition's log: a
majority has all of it or none, and a retry of the producer is never written twice. So there is nothing to decide, to
fence or to roll back (docs/adr/0143-a-transaction-of-one-partition-is-a-batch.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import NoReturn, Self

import pyarrow as pa

from tinymq.base.errors import BatchTooLarge, Closed, InvalidRequest, OutcomeUnknown, TinymqError, TransactionAborted
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import WAIT_S_MIN, check_partition, check_topic, check_wait
from tinymq.client.common.values import (
    HeadersLike,
    Timestamp,
    check_headers,
    check_key,
    check_timestamp,
    check_value,
    header_bytes,
)
from tinymq.client.produce.batcher import RECORD_OVERHEAD_BYTES
from tinymq.client.produce.delivery import BatchDelivery
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.produce.topic_buffers import BATCH_OVERHEAD_BYTES
from tinymq.client.transaction.refusals import aborted_by, check_plain
from tinymq.client.transaction.transaction import Wait
from tinymq.format.batch import conform, record_batch
from tinymq.format.columns import Headers

NEEDS_ID = 'give the transaction an id: mq.transaction("NAME")'


class State(Enum):
    """How far a transaction of one partition is."""

    OPEN = "open"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTED = "rolled back"
    UNKNOWN = "of unknown outcome"  # the batch was sent, and has no answer yet


class PartitionTransactionCore:
    """A transaction of one partition. Made by AsyncClient.transaction() without an id; use it in `async with`, which
    commits at the end, and drops the records if an exception leaves the block.

        async with mq.transaction() as tx:
            await tx.send("orders", b"three pears", key=b"42")
            await tx.send("orders", b"one plum", key=b"42")

    For one task at a time.
    """

    def __init__(self, cluster: Cluster, producer: Callable[[], ProducerCore]) -> None:
        """`producer` is called at the commit."""
        self._cluster = cluster
        self._producer = producer
        self._limits = cluster.config.limits
        self._state = State.OPEN
        self._topic = ""
        self._partition: int | None = None  # None: the keys choose it, or else the producer
        self._rows: list[tuple[bytes | None, bytes | None, Headers | None, int]] = []  # key, value, headers, time
        self._batches: list[pa.RecordBatch] = []  # the records before `_rows`
        self._count = 0
        self._bytes = BATCH_OVERHEAD_BYTES
        self._delivery: BatchDelivery | None = None

    def __repr__(self) -> str:
        topic = self._topic or "no topic"
        return f"<AsyncPartitionTransaction, {self._count} records for {topic}, {self._state.value}>"

    @property
    def visible(self) -> bool:
        """Are the records in the log, for every reader? True once the transaction is committed."""
        return self._state is State.COMMITTED

    # ---- records -------------------------------------------------------------------------------------

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: None = None, delay: None = None,
        deliver_at: None = None,
    ) -> None:  # fmt: skip
        """Add one record. It is kept in memory until the commit.

        All records go to one topic, and to one partition: the named one, or that of their keys, or any. A message_id, a
        delay and deliver_at are refused. Raises InvalidRequest, BatchTooLarge, Closed; the transaction stays as it is.
        """
        check_plain(message_id, delay, deliver_at)
        self.append(topic, value, key, headers, timestamp, partition)

    async def send_batch(self, topic: str, data: pa.Table | pa.RecordBatch, *, partition: int | None = None) -> None:
        """Add a whole table, as AsyncProducer.send_batch takes it. Raises as `send`, and InvalidBatch."""
        if not isinstance(data, pa.Table | pa.RecordBatch):
            raise InvalidRequest(
                f"data is {type(data).__name__}, not a table",
                hint='pass pyarrow.table({"value": [b"..."]}), or use send',
            )
        batches = conform(data, self._cluster.clock.wall_us())
        self._reserve(topic, partition, data.num_rows, sum(batch.nbytes for batch in batches))
        self._end_rows()
        self._batches += batches

    def append(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None,
    ) -> None:  # fmt: skip
        """Add one record, in any thread. Raises as `send`."""
        value, key = check_value(value), None if key is None else check_key(key)
        pairs = check_headers(headers or ())
        time_us = self._cluster.clock.wall_us() if timestamp is None else check_timestamp(timestamp)
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + header_bytes(pairs)
        self._reserve(topic, partition, 1, size)
        self._rows.append((key, value, pairs or None, time_us))

    def _reserve(self, topic: str, partition: int | None, count: int, size: int) -> None:
        """Check that the batch can take these records, and count them. Raises InvalidRequest, BatchTooLarge, Closed."""
        if self._state is not State.OPEN:
            self._refuse()
        check_topic(topic)
        if partition is not None:
            check_partition(partition)
        if self._topic and topic != self._topic:
            raise InvalidRequest(f"records of {self._topic!r} and {topic!r} in one transaction", hint=NEEDS_ID)
        if self._count and partition != self._partition:
            raise InvalidRequest(
                f"partition={partition} beside records with partition={self._partition}",
                hint=f"name one partition for all records, or none; for several, {NEEDS_ID}",
            )
        limits = self._limits
        if self._count + count > limits.batch_records_max or self._bytes + size > limits.batch_bytes_max:
            raise BatchTooLarge(
                f"{self._count + count} records of {self._bytes + size} bytes in a transaction without an id, which is "
                f"one batch: at most {limits.batch_records_max} records and {limits.batch_bytes_max} bytes",
                hint=NEEDS_ID,
            )
        self._topic, self._partition = topic, partition
        self._count += count
        self._bytes += size

    # ---- the end -------------------------------------------------------------------------------------

    async def commit(self, wait: Wait = "visible", *, timeout: float | None = None) -> bool:
        """Send the records, and wait until they are in the log: on a majority of disks, and visible. Returns True.

        `wait` changes nothing, because the records are visible as soon as they are decided. `timeout` in seconds;
        request_timeout_ms if not given. Raises InvalidRequest if the keys belong to several partitions,
        TransactionAborted, or why the records were refused: nothing will ever be visible. OutcomeUnknown: no broker has
        answered in time. After a timeout of its own, `commit` may be called again, and waits for the same batch.
        """
        self._cluster.check_loop()
        check_wait(timeout, least_s=WAIT_S_MIN)
        if wait not in ("visible", "decided"):
            raise InvalidRequest(f"wait={wait!r}", hint="one of 'visible', 'decided'")
        if self._state is State.COMMITTED:
            return True
        if self._state not in (State.OPEN, State.UNKNOWN):
            self._refuse()
        self._state = State.COMMITTING
        try:
            async with asyncio.timeout(timeout):  # without one, the delivery has a time limit of its own
                await self._deliver()
        except TimeoutError:
            self._state = State.ABORTED if self._delivery is None else State.UNKNOWN
            if self._delivery is None:
                raise TransactionAborted(f"the batch was not sent within {timeout:g} s") from None
            raise OutcomeUnknown(
                f"the batch has no answer after {timeout:g} s", hint="call commit again: it waits for the same batch"
            ) from None
        except OutcomeUnknown:
            self._state = State.UNKNOWN
            raise
        except TinymqError as error:
            self._state = State.ABORTED
            aborted = aborted_by(error)
            raise aborted from aborted.__cause__
        except BaseException:
            self._state = State.ABORTED if self._delivery is None else State.UNKNOWN
            raise
        self._state = State.COMMITTED
        return True

    async def _deliver(self) -> None:
        if self._delivery is None and self._count:
            self._end_rows()
            self._delivery = await self._producer().send_whole(self._topic, self._batches, self._partition)
        if self._delivery is not None:
            await self._delivery

    async def abort(self) -> None:
        """Drop the records. A second call does nothing. Raises InvalidRequest if they were sent."""
        if self._state in (State.COMMITTING, State.COMMITTED, State.UNKNOWN):
            raise InvalidRequest(f"the transaction is {self._state.value}", hint="begin another one")
        self._state = State.ABORTED
        self._rows, self._batches = [], []

    async def __aenter__(self) -> Self:
        if self._state is not State.OPEN:
            self._refuse()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state is State.OPEN:
            await (self.commit() if error is None else self.abort())

    def _end_rows(self) -> None:
        """Make a record batch of the rows, so that the records stay in their order."""
        if self._rows:
            self._batches.append(record_batch(*zip(*self._rows, strict=True)))
            self._rows = []

    def _refuse(self) -> NoReturn:
        raise Closed(f"the transaction is {self._state.value}", hint="begin another one: mq.transaction()")
