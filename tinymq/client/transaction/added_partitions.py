"""The partitions of one transaction: each is added at the coordinator before the first batch is sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinymq.base.errors import TinymqError
from tinymq.client.cluster.transactional_id_calls import Place, TransactionalIdCalls
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.client.transaction.owner import Begun
from tinymq.proto import tinymq_pb2 as pb

PLACES_MAX = 1000  # of one call


class AddedPartitions:
    """The transaction, as its sender uses it (`SenderTransaction` in tinymq/client/produce/send_queue.py)."""

    def __init__(
        self, calls: TransactionalIdCalls, begun: Begun, timeout_s: float, on_failed: Callable[[TinymqError], None]
    ) -> None:
        """`on_failed` is told of each failure. After a failure, the transaction cannot be committed."""
        self._calls = calls
        self._begun = begun
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._added: set[Place] = set()
        self._wanted: dict[Place, None] = {}  # to be added, in order
        self._thens: dict[Callable[[], None], None] = {}
        self._closed = False
        self._adding: asyncio.Task[None] | None = None

    def admits(self, queue: SendQueue, then: Callable[[], None]) -> bool:
        """See SenderTransaction. Partitions that are used at the same time are added by one call."""
        if self._closed:
            return False
        place = queue.topic_id, queue.partition
        if place in self._added:
            return True
        self._wanted[place] = self._thens[then] = None
        if self._adding is None or self._adding.done():
            self._adding = asyncio.create_task(self._add())
        return False

    def place_of(self, batch: ProducerBatch) -> bytes:
        """See SenderTransaction."""
        assert batch.first_sequence >= 0, "the queue numbers a batch before it is sent"
        transaction, coordinator, writer = self._begun
        return pb.BatchTransaction(
            transaction=transaction, coordinator=coordinator, writer=writer, number=batch.first_sequence
        ).SerializeToString()

    def failed(self, error: TinymqError) -> None:
        """See SenderTransaction."""
        self._on_failed(error)

    def close(self) -> None:
        """Admit and add nothing more: the transaction is over."""
        self._closed = True
        if self._adding is not None:
            self._adding.cancel()

    async def _add(self) -> None:
        while self._wanted:
            places = list(self._wanted)[:PLACES_MAX]
            try:
                await self._calls.add(self._begun.transaction, places, self._timeout_s)
            except TinymqError as error:
                self.failed(error)
                return
            self._added.update(places)
            for place in places:
                del self._wanted[place]
            thens, self._thens = self._thens, {}
            for then in thens:
                then()
