"""Tells partitions the decisions on half messages, again and again until each has confirmed."""

from __future__ import annotations

import asyncio

import structlog

from tinymq.base.errors import TinymqError
from tinymq.broker.coordinator.transaction_ends import PartitionLeaders
from tinymq.broker.coordinator.transaction_topics import TransactionTopics
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half.half_commands import ConfirmHalf
from tinymq.broker.transactions.half.half_message import HalfMessage
from tinymq.broker.transactions.transactional_id import Phase

ENDS_MAX = 256  # half messages whose partitions are told at the same time

logger = structlog.get_logger("tinymq.broker")


class HalfEnds:
    """The ends that this broker sends for the partitions of `__coordinator` that it leads."""

    def __init__(self, leaders: PartitionLeaders, topics: TransactionTopics) -> None:
        self._leaders = leaders
        self._topics = topics
        self._ending: dict[TransactionId, asyncio.Task[None]] = {}  # partitions are being told
        self._applied: set[TransactionId] = set()  # their partitions have applied it; the Confirm is on its way
        self._waiting: dict[TransactionId, list[asyncio.Future[None]]] = {}

    async def stop(self) -> None:
        tasks = list(self._ending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def has_applied(self, half: HalfMessage) -> bool:
        """Whether the partition has applied the end, as its leader has just said."""
        return half.transaction in self._applied

    def wait(self, half: HalfMessage) -> asyncio.Future[None]:
        """A future that ends when the partition has applied the end, or an attempt to tell it has failed."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(half.transaction, []).append(waiting)
        return waiting

    def wake_all(self) -> None:
        """Wake all calls that wait, because this broker's part has changed."""
        for transaction in list(self._waiting):
            self._wake(transaction)

    def send(self, replica: CoordinatorReplica, half: HalfMessage) -> None:
        """Tell the partition of a decided half message, unless that is under way, or it is over."""
        known = replica.transactional_ids.half_messages.halves
        if half.transaction in known and half.transaction not in self._ending and len(self._ending) < ENDS_MAX:
            work = self._end(replica, half)
            self._ending[half.transaction] = asyncio.get_running_loop().create_task(work)

    async def _end(self, replica: CoordinatorReplica, half: HalfMessage) -> None:
        try:
            publish = half.phase is Phase.COMMITTED
            ended = await self._leaders.end(half.transaction, [half.place], publish=publish)
            if (ended or await self._topics.deleted([half.place])) and replica.leading:
                self._applied.add(half.transaction)
                self._wake(half.transaction)
                await replica.decide_half(half.group, ConfirmHalf(half.transaction))
        except TinymqError as error:  # the next look sends the end again
            logger.info("half_message_end_waits", group=half.group, error=error.code, reason=str(error))
        finally:
            del self._ending[half.transaction]
            self._applied.discard(half.transaction)
            self._wake(half.transaction)

    def _wake(self, transaction: TransactionId) -> None:
        for each in self._waiting.pop(transaction, ()):
            if not each.done():
                each.set_result(None)
