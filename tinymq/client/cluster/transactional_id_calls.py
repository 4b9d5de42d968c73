"""The calls on one transactional id, or on one application of Spark's sink, to its coordinator, which they find. Each
call is idempotent, and is repeated until its deadline.

At the deadline a call raises OutcomeUnknown if an attempt may have taken effect, else DeadlineExceeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tinymq.base.errors import QuotaExceeded, TinymqError, UnknownTopic
from tinymq.client.cluster.cluster import JITTERED, Cluster
from tinymq.client.cluster.coordinator_calls import coordinator_of
from tinymq.client.cluster.leader_calls import ATTEMPT_S_MIN, at_leader
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import method_of

COMMIT_PART = 0.75  # of an attempt's time: the coordinator's part, so that its answer arrives in time
BUSY_MS = 50  # before `begin` is asked again of a coordinator that carries out too many decisions

Place = tuple[bytes, int]
"""A topic id and a partition's number."""

Commit = pb.CommitTransactionRequest | pb.CommitSetsRequest
R = TypeVar("R", pb.CommitTransactionReply, pb.CommitSetsReply)


@dataclass(frozen=True, slots=True)
class SinkVersion:
    """The version that a Spark job writes."""

    application: str
    version: int
    query: str = ""  # "": a batch
    temporary: bool = False  # the name of the application is never used again


class TransactionalIdCalls:
    """Finds the partition of `__coordinator` that has the name, and asks its leader."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._name = transactional_id

    async def register(self, timeout_s: float) -> pb.RegisterOwnerReply:
        """Take the transactional id. Raises InvalidName, Denied, QuotaExceeded (too many ids)."""
        request = pb.RegisterOwnerRequest(transactional_id=self._name)
        reply: pb.RegisterOwnerReply = await self._ask_first(request, timeout_s)
        return reply

    async def begin(self, producer_id: int, epoch: int, lasts_ms: float, timeout_s: float) -> pb.TransactionRef:
        """Begin a transaction that lasts `lasts_ms` at most. Raises Fenced."""
        request = pb.BeginTransactionRequest(
            transactional_id=self._name, producer_id=producer_id, epoch=epoch, timeout_ms=int(lasts_ms)
        )
        reply: pb.BeginTransactionReply = await self._ask(request, timeout_s)
        return reply.transaction

    async def add(
        self, transaction: pb.TransactionRef, places: list[Place], timeout_s: float, *, offsets: Sequence[Place] = ()
    ) -> None:
        """Add partitions to a transaction, and those in which it only moves cursors.

        Raises TransactionAborted, Fenced, UnknownPartition, InvalidRequest.
        """
        request = pb.AddPartitionsRequest(
            transactional_id=self._name,
            transaction=transaction,
            partitions=_partitions(dict.fromkeys(places, 0)),
            offsets=_partitions(dict.fromkeys(offsets, 0)),
        )
        await self._ask(request, timeout_s)

    async def commit(
        self, transaction: pb.TransactionRef, batches: Mapping[Place, int], timeout_s: float, *, visible: bool
    ) -> bool:
        """Commit. With `visible`, wait until all partitions show the records. Returns whether they do.

        Raises TransactionAborted, Fenced, OutcomeUnknown. Once the transaction is committed, it raises nothing.
        """
        request = pb.CommitTransactionRequest(
            transactional_id=self._name, transaction=transaction, partitions=_partitions(batches), visible=visible
        )
        left = self._cluster.countdown(timeout_s)
        reply: pb.CommitTransactionReply = await self._ask(request, timeout_s)
        async for _ in self._cluster.attempts(left(), JITTERED):
            if reply.visible or not visible or not left():
                break
            reply = await self._committed(request, left(), reply)
        return reply.visible

    async def abort(self, transaction: pb.TransactionRef | None, timeout_s: float) -> None:
        """Roll a transaction back; None: the open one of the id, of any owner. Raises InvalidRequest (it is
        committed), Fenced, NotFound."""
        await self._ask(pb.AbortTransactionRequest(transactional_id=self._name, transaction=transaction), timeout_s)

    # ---- of an application of Spark's sink

    async def open_set(self, version: SinkVersion, run: str, lasts_ms: int, timeout_s: float) -> pb.OpenSetReply:
        """Begin a set. Raises VersionReused, QuotaExceeded."""
        request = pb.OpenSetRequest(
            application=self._name, version=version.version, run=run, query=version.query, timeout_ms=lasts_ms,
            temporary=version.temporary,
        )  # fmt: skip
        reply: pb.OpenSetReply = await self._ask_first(request, timeout_s)
        return reply

    async def commit_sets(
        self,
        version: SinkVersion,
        transaction: pb.TransactionRef | None,
        writers: Sequence[int],
        batches: Mapping[Place, int],
        timeout_s: float,
    ) -> bool:
        """Commit a version with these sets, and wait until all partitions show the records. Returns whether they do.

        Raises TransactionAborted, VersionReused. Once the version is committed, it raises nothing.
        """
        request = pb.CommitSetsRequest(
            application=self._name, version=version.version, query=version.query, transaction=transaction,
            writers=writers, partitions=_partitions(batches), visible=True, temporary=version.temporary,
        )  # fmt: skip
        left = self._cluster.countdown(timeout_s)
        reply: pb.CommitSetsReply = await self._ask_first(request, timeout_s)
        async for _ in self._cluster.attempts(left(), JITTERED):
            if reply.visible or not left():
                break
            reply = await self._committed(request, left(), reply)
        return reply.visible

    async def discard_sets(self, transaction: pb.TransactionRef, timeout_s: float) -> None:
        """Drop the sets of a run, unless they are committed."""
        await self._ask(pb.DiscardSetsRequest(application=self._name, transaction=transaction), timeout_s)

    async def describe(self, timeout_s: float) -> pb.ListTransactionalIdsReply:
        """The state of the id: one item, or none if it does not exist."""
        reply: pb.ListTransactionalIdsReply = await self._ask(
            pb.ListTransactionalIdsRequest(transactional_id=self._name), timeout_s
        )
        return reply

    async def _committed(self, request: Commit, timeout_s: float, before: R) -> R:
        """Ask again whether the partitions show a committed transaction. Returns `before` if nobody answers."""
        try:
            reply: R = await self._ask(request, timeout_s)
        except TinymqError:
            return before
        return reply

    async def _ask_first(self, request: Any, timeout_s: float) -> Any:
        """As `_ask`, for a call that makes the topic `__coordinator` if it is the first of the cluster. Any broker
        makes the topic; after that, this finds the topic's leader."""
        left = self._cluster.countdown(timeout_s)
        try:
            return await self._ask(request, timeout_s)
        except UnknownTopic:
            return await self._cluster.ask(request, timeout_s=max(ATTEMPT_S_MIN, left()), changes=True)

    async def _ask(self, request: Any, timeout_s: float) -> Any:
        left = self._cluster.countdown(timeout_s)
        topic, number = await coordinator_of(self._cluster, self._name, timeout_s)

        async def ask(address: str, left_s: float) -> Any:
            attempt_s = max(ATTEMPT_S_MIN, min(left_s, self._cluster.attempt_s))
            if isinstance(request, Commit):
                request.timeout_ms = max(1, int(attempt_s * COMMIT_PART * 1000))
            try:
                return await self._cluster.ask_broker(address, request, attempt_s)
            except QuotaExceeded as error:
                if isinstance(request, pb.BeginTransactionRequest):
                    error.detail.setdefault("retry_after_ms", str(BUSY_MS))  # some decision is carried out soon
                raise

        what = f"{method_of(request).name} of {self._name!r}"
        return await at_leader(self._cluster, topic, number, ask, what=what, timeout_s=max(ATTEMPT_S_MIN, left()))


def _partitions(batches: Mapping[Place, int]) -> list[pb.TransactionPartition]:
    return [
        pb.TransactionPartition(topic_id=topic_id, partition=number, batches=count)
        for (topic_id, number), count in batches.items()
    ]
