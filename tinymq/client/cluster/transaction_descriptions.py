"""Transactional ids and their transactions, asked of their coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from tinymq.base.errors import NotFound, UnknownTopic
from tinymq.base.types import parse_transaction_name, transaction_name
from tinymq.client.cluster.cluster import JITTERED, Cluster
from tinymq.client.cluster.coordinator_calls import COORDINATOR_TOPIC
from tinymq.client.cluster.leader_calls import ask_leader
from tinymq.client.cluster.routing import Broker
from tinymq.client.cluster.transactional_id_calls import TransactionalIdCalls
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb

BROKER_TIMEOUT_S = 2.0  # for one broker's answer, when all of them are asked: a dead broker delays the call this long
TIMEOUT_S_MIN = 0.001

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transaction that is not over.

    for transactional_id in mq.admin.list_transactional_ids():
        for each in transactional_id.transactions:
            print(each.number, each.state, each.until, each.partitions)
    """

    number: int  # of the transactions of its id
    state: str  # "open", "committed" or "aborted"
    until: datetime  # when it is rolled back if it is still open
    # By topic, or by the topic's id in hex if it was deleted. Open: its partitions; else those that have not carried
    # the decision out.
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TransactionalIdDescription:
    """The name under which a program begins transactions, and what its coordinator knows of it.

    for transactional_id in mq.admin.list_transactional_ids():
        print(transactional_id.transactional_id, transactional_id.epoch, transactional_id.used_at)
        print(transactional_id.committed, [each.state for each in transactional_id.transactions])
    """

    transactional_id: str
    producer_id: int
    epoch: int  # rises with each program that takes the id
    used_at: datetime  # when a transaction was begun, or the id taken
    transactions: tuple[TransactionDescription, ...]  # that are not over, the newest last
    decided_number: int | None  # of the newest transaction that was decided; None: none was
    committed: bool | None  # whether that one was committed


@dataclass(frozen=True, slots=True)
class HungTransaction:
    """A transaction with batches in a partition, for whose end the partition's leader has asked in vain.

    for each in mq.admin.list_hung_transactions():
        print(each.transaction, each.reason, each.topic, each.partition, each.records)
    """

    transaction: str  # "1042-0-17": the numbers of its producer, the producer's epoch, and the transaction
    # "unresolved": its coordinator has lost a part of its log, and the decision may be in it. "unanswered": its
    # coordinator does not answer. "behind": it is resolved, and an earlier one of the same producer is not.
    reason: str
    coordinator: int  # the partition of `__coordinator` that has it
    topic: str
    partition: int
    batches: int  # that the partition holds of it, as the next two
    records: int
    bytes: int


class TransactionAdmin:
    """The questions of an admin about transactions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_ids(self, timeout_s: float) -> list[TransactionalIdDescription]:
        """All transactional ids, by name, as far as brokers that lead their coordinators answer.

        Raises the last error if no broker answers.
        """
        found: dict[str, pb.TransactionalIdInfo] = {}
        for answer in await self._each(self._listed, timeout_s):
            for info in answer:
                known = found.get(info.transactional_id)
                if known is None or known.used_us <= info.used_us:  # two brokers: the coordinator moves
                    found[info.transactional_id] = info
        return [self._described(found[name]) for name in sorted(found)]

    async def describe(self, name: str, timeout_s: float) -> TransactionalIdDescription:
        """One transactional id. Raises NotFound."""
        left = self._cluster.countdown(timeout_s)
        try:
            reply = await TransactionalIdCalls(self._cluster, name).describe(left())
        except UnknownTopic:
            raise unknown(name) from None
        if not reply.ids:
            raise unknown(name)
        (info,) = reply.ids
        if info.transactions:
            await self._cluster.refresh(timeout_s=left(), every=True)
        return self._described(info)

    async def abort(self, name: str, timeout_s: float) -> None:
        """Roll the open transaction of an id back. Raises NotFound."""
        try:
            await TransactionalIdCalls(self._cluster, name).abort(None, timeout_s)
        except UnknownTopic:
            raise unknown(name) from None

    async def list_hung(self, timeout_s: float) -> list[HungTransaction]:
        """The hung transactions of all partitions whose leaders answer, by transaction and partition.

        Raises the last error if no broker answers.
        """
        found = await self._each(self._hung_at, timeout_s)
        by_place = {(each.transaction, each.topic, each.partition): each for some in found for each in some}
        return sorted(
            by_place.values(),
            key=lambda each: (parse_transaction_name(each.transaction), each.topic, each.partition),
        )

    async def resolve(self, transaction: str, commit: bool, timeout_s: float) -> bool:
        """Decide about a hung transaction, and wait until its partitions have carried it out. Returns whether they have
        in time. Raises InvalidRequest, NotFound."""
        ref, left = parse_transaction_name(transaction), self._cluster.countdown(timeout_s)
        hung = await self._hung(transaction, left())
        if not hung:
            hint = "a new leader needs some seconds to find it: tinymq transaction list --hung"
            raise NotFound(f"no partition has a hung transaction {transaction}", hint=hint)
        request = pb.ResolveTransactionRequest(
            transaction=pb.TransactionRef(producer_id=ref.producer_id, epoch=ref.epoch, number=ref.number),
            coordinator=hung[0].coordinator,
            commit=commit,
        )
        topic = await self._cluster.topic(COORDINATOR_TOPIC, left())
        await ask_leader(self._cluster, topic, hung[0].coordinator, request, timeout_s=max(TIMEOUT_S_MIN, left()))
        async for _ in self._cluster.attempts(left(), JITTERED):
            hung = await self._hung(transaction, max(TIMEOUT_S_MIN, left()))
            if not hung or not left():
                break
        return not hung

    async def _hung(self, transaction: str, timeout_s: float) -> list[HungTransaction]:
        return [each for each in await self.list_hung(timeout_s) if each.transaction == transaction]

    async def _hung_at(self, broker: Broker, timeout_s: float) -> list[HungTransaction]:
        reply = await self._cluster.ask_broker(broker.address, pb.ListHungTransactionsRequest(), timeout_s)
        return [
            HungTransaction(
                transaction=transaction_name(
                    each.transaction.producer_id, each.transaction.epoch, each.transaction.number
                ),
                reason=each.reason,
                coordinator=each.coordinator,
                topic=each.topic,
                partition=each.partition,
                batches=each.batches,
                records=each.records,
                bytes=each.bytes,
            )
            for each in reply.transactions
        ]

    async def _each(
        self, ask: Callable[[Broker, float], Awaitable[list[Answer]]], timeout_s: float
    ) -> list[list[Answer]]:
        """The answers of all brokers that answer. Raises the last error if none does."""
        left = self._cluster.countdown(timeout_s)
        view = await self._cluster.refresh(timeout_s=left(), every=True)
        broker_s = min(BROKER_TIMEOUT_S, max(TIMEOUT_S_MIN, left()))
        answers = await asyncio.gather(
            *(ask(broker, broker_s) for broker in view.brokers.values()), return_exceptions=True
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors and len(errors) == len(answers):
            raise errors[-1]
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _listed(self, broker: Broker, timeout_s: float) -> list[pb.TransactionalIdInfo]:
        """The ids whose coordinators this broker leads."""
        infos: list[pb.TransactionalIdInfo] = []
        while True:
            after = infos[-1].transactional_id if infos else ""
            request = pb.ListTransactionalIdsRequest(after=after)
            reply = await self._cluster.ask_broker(broker.address, request, timeout_s)
            infos += reply.ids
            if (
                not reply.more or not reply.ids or reply.ids[-1].transactional_id <= after
            ):  # a page that does not advance would loop for ever
                return infos

    def _described(self, info: pb.TransactionalIdInfo) -> TransactionalIdDescription:
        names = {topic.topic_id: topic.name for topic in self._cluster.view.topics.values()}
        decided = info.HasField("outcome_of")
        return TransactionalIdDescription(
            transactional_id=info.transactional_id,
            producer_id=info.producer_id,
            epoch=info.epoch,
            used_at=as_datetime(info.used_us),
            transactions=tuple(
                TransactionDescription(
                    number=each.number,
                    state=each.state,
                    until=as_datetime(each.until_us),
                    partitions=tuple(
                        sorted((names.get(p.topic_id, p.topic_id.hex()), p.partition) for p in each.unconfirmed)
                    ),
                )
                for each in info.transactions
            ),
            decided_number=info.outcome_of.number if decided else None,
            committed=info.committed if decided else None,
        )


def unknown(name: str) -> NotFound:
    """Return the error for a transactional id that no coordinator knows."""
    return NotFound(f"there is no transactional id {name!r}", hint="see: tinymq transaction list")
