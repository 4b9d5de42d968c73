"""One attempt at a task of Spark's sink: a set of batches that becomes visible if its driver commits it. Internal.

A producer of its own stages the records, as that of a transaction does. The difference is that the attempt does not
commit: it returns what it has staged (StagedSet), and `commit_sets` commits the sets of many tasks, from another
process. An attempt that dies needs no cleanup: the commit of its version drops its set.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tinymq.base.errors import Closed, NotDelivered, TinymqError, TransactionAborted
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transactional_id_calls import Place, SinkVersion, TransactionalIdCalls
from tinymq.client.common.config import ProducerConfig
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.transaction.added_partitions import AddedPartitions
from tinymq.client.transaction.owner import Begun
from tinymq.client.transaction.refusals import aborted_by
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

RENEWALS = 4  # of a set's time, before it is up
DISCARD_S = 5.0


@dataclass(frozen=True, slots=True)
class StagedSet:
    """The batches that one attempt has staged, as a commit needs them. Picklable."""

    producer_id: int  # the first three name the transaction of the run
    epoch: int
    number: int
    writer: int
    batches: tuple[tuple[bytes, int, int], ...]  # (topic id, partition, how many)

    @property
    def transaction(self) -> tuple[int, int, int]:
        return self.producer_id, self.epoch, self.number


class StagedSetCore:
    """A set that is being written. For one task at a time."""

    def __init__(self, cluster: Cluster, version: SinkVersion, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._version = version
        self._config = config
        self._calls = TransactionalIdCalls(cluster, version.application)
        self._begun: Begun | None = None
        self._partitions: AddedPartitions | None = None
        self._producer: ProducerCore | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._failure: TinymqError | None = None

    async def begin(self, run: str, lasts_ms: int, timeout_s: float) -> bool:
        """Begin a set of this run. False: the version is committed, and there is nothing to write.

        The set is dropped `lasts_ms` after this process's last sign of life. Raises VersionReused, Denied, InvalidName,
        UnsupportedVersion, QuotaExceeded, DeadlineExceeded.
        """
        reply = await self._calls.open_set(self._version, run, lasts_ms, timeout_s)
        if reply.committed:
            return False
        self._begun = Begun(reply.transaction, reply.coordinator, reply.writer)
        request_s = self._cluster.config.request_timeout_ms / 1000
        self._partitions = AddedPartitions(self._calls, self._begun, request_s, self._failed)
        self._producer = ProducerCore(self._cluster, self._config, self._wake, self._partitions)
        self._renewing = asyncio.create_task(self._renew(reply.transaction, lasts_ms / 1000 / RENEWALS))
        return True

    async def send_batch(self, topic: str, data: pa.RecordBatch, partition: int | None) -> None:
        """Give a table its place in the buffer, as AsyncProducer.send_batch does. Raises the first failure: the set can
        no longer be committed."""
        assert self._producer is not None, "the set has begun"
        try:
            await self._producer.send_batch(topic, data, partition=partition)
        except Closed:
            if self._failure is not None:
                raise self._failure from None
            raise

    async def end(self, timeout_s: float | None = None) -> StagedSet:
        """Return the set once everything is staged. Raises TransactionAborted, or why a record was refused. Without
        `timeout_s`, each batch has its own deadline."""
        assert self._producer is not None, "the set has begun"
        assert self._begun is not None, "as above"
        try:
            await self._producer.flush(timeout_s)
        except NotDelivered:
            pass  # `_failed` was told of the first error
        except TimeoutError as error:
            self._failed(TransactionAborted(f"not everything was staged in time: {error}"))
        if self._failure is not None:
            raise self._failure
        at = self._begun.transaction
        batches = sorted((*place, count) for place, count in self._producer.written.items())
        return StagedSet(at.producer_id, at.epoch, at.number, self._begun.writer, tuple(batches))

    def close(self) -> None:
        """Send nothing more. Staged batches stay until a driver decides."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._partitions is not None:
            self._partitions.close()
        if self._producer is not None:
            self._producer.abandon(self._failure or Closed("the set is closed"))

    def _wake(self, call: Callable[[], None]) -> None:
        self._cluster.loop.call_soon_threadsafe(call)

    async def _renew(self, transaction: pb.TransactionRef, every_s: float) -> None:
        """Renew the time of the run, while the task computes what it will write next."""
        while True:
            await self._cluster.clock.sleep(every_s)
            try:
                await self._calls.add(transaction, [], every_s)
            except TransactionAborted as error:
                self._failed(error)
                return
            except TinymqError as error:
                LOG.info("the time of a set of %r is renewed later: %s", self._version.application, error)

    def _failed(self, error: TinymqError) -> None:
        if self._failure is None:
            self._failure = aborted_by(error)
            if self._producer is not None:
                # later, because the sender is just ending batches
                self._cluster.loop.call_soon(self._producer.abandon, self._failure)


async def commit_sets(cluster: Cluster, version: SinkVersion, sets: Sequence[StagedSet], timeout_s: float) -> bool:
    """Commit a version with these sets, and no others. Returns whether all partitions show the records already.

    If the version is committed already, the call changes nothing. Raises TransactionAborted (nothing of it will ever be
    visible), VersionReused, Denied, DeadlineExceeded (not decided), OutcomeUnknown: call it again.
    """
    if len({each.transaction for each in sets}) > 1:  # numbers of sets are unique only within a transaction
        raise TransactionAborted("the sets of some tasks were dropped before the others were written")
    counts = Counter[Place]()
    for each in sets:
        for topic_id, partition, count in each.batches:
            counts[topic_id, partition] += count
    transaction = None
    if sets:
        transaction = pb.TransactionRef(producer_id=sets[0].producer_id, epoch=sets[0].epoch, number=sets[0].number)
    writers = sorted({each.writer for each in sets})
    calls = TransactionalIdCalls(cluster, version.application)
    return await calls.commit_sets(version, transaction, writers, counts, timeout_s)


async def discard_sets(cluster: Cluster, application: str, sets: Sequence[StagedSet]) -> None:
    """Drop the runs of these sets, unless they are committed. A run whose coordinator does not answer is dropped when
    its time is up."""
    calls = TransactionalIdCalls(cluster, application)
    for producer_id, epoch, number in dict.fromkeys(each.transaction for each in sets):
        try:
            ref = pb.TransactionRef(producer_id=producer_id, epoch=epoch, number=number)
            await calls.discard_sets(ref, DISCARD_S)
        except TinymqError as error:
            LOG.info("sets of %r are dropped when their time is up, or with a commit: %s", application, error)
