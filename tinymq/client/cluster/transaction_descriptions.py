"""Transactional ids and their transactions, asked of their coordinators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from tinymq.base.errors import NotFound, UnknownTopic
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Broker
from tinymq.client.cluster.transaction_calls import TransactionCalls
from tinymq.client.common.values import as_datetime
from tinymq.proto import tinymq_pb2 as pb

BROKER_TIMEOUT_S = 2.0  # for one broker's answer, when all of them are asked: a dead broker delays the call this long
TIMEOUT_S_MIN = 0.001


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


class TransactionAdmin:
    """The questions of an admin about transactions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_ids(self, timeout_s: float) -> list[TransactionalIdDescription]:
        """All transactional ids, by name, as far as brokers that lead their coordinators answer.

        Raises the last error if no broker answers.
        """
        left = self._cluster.countdown(timeout_s)
        view = await self._cluster.refresh(timeout_s=left(), every=True)
        answers = await asyncio.gather(
            *(self._listed(broker, left()) for broker in view.brokers.values()), return_exceptions=True
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors and len(errors) == len(answers):
            raise errors[-1]
        found: dict[str, pb.TransactionalIdInfo] = {}
        for answer in answers:
            for info in answer if not isinstance(answer, BaseException) else ():
                known = found.get(info.transactional_id)
                if known is None or known.used_us <= info.used_us:  # two brokers: the coordinator moves
                    found[info.transactional_id] = info
        return [self._described(found[name]) for name in sorted(found)]

    async def describe(self, name: str, timeout_s: float) -> TransactionalIdDescription:
        """One transactional id. Raises NotFound."""
        left = self._cluster.countdown(timeout_s)
        try:
            reply = await TransactionCalls(self._cluster, name).describe(left())
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
            await TransactionCalls(self._cluster, name).abort(None, timeout_s)
        except UnknownTopic:
            raise unknown(name) from None

    async def _listed(self, broker: Broker, timeout_s: float) -> list[pb.TransactionalIdInfo]:
        """The ids whose coordinators this broker leads."""
        broker_s = min(BROKER_TIMEOUT_S, max(TIMEOUT_S_MIN, timeout_s))
        infos: list[pb.TransactionalIdInfo] = []
        while True:
            after = infos[-1].transactional_id if infos else ""
            request = pb.ListTransactionalIdsRequest(after=after)
            reply = await self._cluster.ask_broker(broker.address, request, broker_s)
            infos += reply.ids
            if (
                not reply.more or not reply.ids or reply.ids[-1].transactional_id <= after
            ):  # or the broker goes in circles
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
