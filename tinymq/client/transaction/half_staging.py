"""The one batch of a half message on its way to its partition: begun at the coordinator first, and then staged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinymq.base.errors import Closed, TinymqError
from tinymq.client.cluster.half_calls import HalfCalls
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.proto import tinymq_pb2 as pb


class HalfStaging:
    """The half message, as its sender uses it (`Staging` in tinymq/client/produce/send_queue.py)."""

    def __init__(self, calls: HalfCalls, context: bytes, check_after_ms: int, left: Callable[[], float]) -> None:
        """`left`: how many seconds are left to begin it."""
        self.begun: pb.BeginHalfMessageReply | None = None
        self.on_failed: Callable[[TinymqError], object] = lambda error: None  # told when it does not begin
        self._calls = calls
        self._context = context
        self._check_after_ms = check_after_ms
        self._left = left
        self._beginning: asyncio.Task[None] | None = None

    def admits(self, queue: SendQueue, then: Callable[[], None]) -> bool:
        """See Staging."""
        if self.begun is None and self._beginning is None:
            self._beginning = asyncio.create_task(self._begin(queue, then))
        return self.begun is not None

    def place_of(self, batch: ProducerBatch) -> bytes:
        """See Staging."""
        assert self.begun is not None, "it is begun before its batch is sent"
        return pb.BatchTransaction(
            transaction=self.begun.transaction, coordinator=self.begun.coordinator, number=batch.first_sequence
        ).SerializeToString()

    def failed(self, error: TinymqError) -> None:
        """See Staging. The delivery has the error, too."""

    async def close(self) -> None:
        """Begin nothing more."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)

    async def _begin(self, queue: SendQueue, then: Callable[[], None]) -> None:
        place = queue.topic_id, queue.partition
        try:
            self.begun = await self._calls.begin(place, self._context, self._check_after_ms, self._left())
        except TinymqError as error:
            self.on_failed(error)
        except asyncio.CancelledError:
            self.on_failed(Closed("the half message was not begun"))
            raise
        else:
            then()
