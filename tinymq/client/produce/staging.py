"""What the sender asks of the transaction to which its batches belong (tinymq/client/transaction)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tinymq.base.errors import TinymqError
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue


class Staging(Protocol):
    """A transaction that is open. All calls are made on the loop."""

    def admits(self, queue: SendQueue, then: Callable[[], None]) -> bool:
        """Is the queue's partition in the transaction? If not, it is added, and `then` is called when it is in."""
        ...

    def place_of(self, batch: ProducerBatch) -> bytes:
        """Return the place of a numbered batch in the transaction, as it is sent: a BatchTransaction."""
        ...

    def failed(self, error: TinymqError) -> None:
        """Note that a batch has failed. The transaction cannot be committed any more."""
        ...
