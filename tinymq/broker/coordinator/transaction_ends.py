"""Tells partitions the decisions on transactions, again and again until each has confirmed them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import structlog

from tinymq.base.errors import TinymqError
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.transaction_topics import TransactionTopics
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.commands import Confirm

ENDS_MAX = 256  # transactions whose partitions are told at the same time

logger = structlog.get_logger("tinymq.broker")


class PartitionLeaders(Protocol):
    """The leaders of partitions, as a coordinator calls them.

    The calls never raise: leaders that do not answer are left out. A leader answers once it has applied the first entry
    of its own term and a majority has confirmed, since the call, that it leads.
    """

    async def held(
        self, transaction: TransactionId, places: Collection[PartitionId], sets: Collection[int] | None = None
    ) -> Mapping[PartitionId, int]:
        """How many staged entries of the transaction, or of these sets in it, each partition has applied."""
        ...

    async def end(
        self,
        transaction: TransactionId,
        places: Collection[PartitionId],
        *,
        publish: bool,
        sets: Collection[int] | None = None,
    ) -> Collection[PartitionId]:
        """Publish the transaction's entries, or those of these sets alone, or discard them. Returns the partitions in
        which that is applied."""
        ...


class DecidedEnd(NamedTuple):
    """The decision on one transaction, and the partitions that have to be told of it."""

    transaction: TransactionId
    places: Sequence[PartitionId]
    publish: bool
    sets: Sequence[int] | None = None  # those to publish, of Spark's sink


class Decisions(Protocol):
    """The transactions of one kind that are decided, in the applied state of a replica."""

    def ends(self, replica: CoordinatorReplica, name: str) -> Iterable[DecidedEnd]:
        """The ends that partitions have not confirmed."""
        ...

    async def confirm(
        self, replica: CoordinatorReplica, name: str, transaction: TransactionId, places: frozenset[PartitionId]
    ) -> None:
        """Note that partitions have applied an end. Raises as CoordinatorReplica.decide."""
        ...


class IdDecisions:
    """The decisions on transactions of transactional ids."""

    def ends(self, replica: CoordinatorReplica, name: str) -> Iterable[DecidedEnd]:
        state = replica.transactional_ids.states.get(name)
        places: dict[tuple[TransactionId, bool], list[PartitionId]] = {}
        for end in rules.ends(state) if state is not None else ():
            places.setdefault((end.transaction, end.publish), []).append(end.place)
        return [DecidedEnd(transaction, some, publish) for (transaction, publish), some in places.items()]

    async def confirm(
        self, replica: CoordinatorReplica, name: str, transaction: TransactionId, places: frozenset[PartitionId]
    ) -> None:
        await replica.decide(name, Confirm(transaction, places))


class TransactionEnds:
    """The ends that this broker sends for the partitions of `__coordinator` that it leads."""

    def __init__(
        self,
        decisions: Decisions,
        leaders: PartitionLeaders,
        topics: TransactionTopics,
        on_ended: Callable[[str], None],
    ) -> None:
        """`on_ended` is called with the name of the transactional id or application when some partitions have applied
        an end of its transaction."""
        self._decisions = decisions
        self._leaders = leaders
        self._topics = topics
        self._on_ended = on_ended
        self._ending: dict[TransactionId, asyncio.Task[None]] = {}  # partitions are being told
        self._ended: dict[TransactionId, frozenset[PartitionId]] = {}  # have applied it; the Confirm is on its way

    async def stop(self) -> None:
        tasks = list(self._ending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def have_applied(self, transaction: TransactionId, places: Collection[PartitionId]) -> bool:
        """Whether these partitions have applied the end, as their leaders have just said."""
        ended = self._ended.get(transaction)
        return ended is not None and ended.issuperset(places)

    def send(self, replica: CoordinatorReplica, name: str) -> None:
        """Tell the partitions of the decided transactions of a name, unless that is under way."""
        for end in self._decisions.ends(replica, name):
            if end.transaction not in self._ending and len(self._ending) < ENDS_MAX:
                work = self._end(replica, name, end)
                self._ending[end.transaction] = asyncio.get_running_loop().create_task(work)

    async def _end(self, replica: CoordinatorReplica, name: str, end: DecidedEnd) -> None:
        transaction, places, publish, sets = end
        try:
            ended = await self._leaders.end(transaction, places, publish=publish, sets=sets)
            confirmed = {*ended, *await self._topics.deleted({*places}.difference(ended))}
            if confirmed and replica.leading:
                self._ended[transaction] = frozenset(confirmed)
                self._on_ended(name)
                await self._decisions.confirm(replica, name, transaction, frozenset(confirmed))
        except TinymqError as error:  # the next turn sends the ends again
            logger.info("transaction_end_waits", id=name, error=error.code, reason=str(error))
        finally:
            del self._ending[transaction]
            self._ended.pop(transaction, None)
