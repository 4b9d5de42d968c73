"""The owners of a producer's send queues: the loop, or for one lone record the thread that sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import QueueOwner, SendQueue


class QueueOwners:
    """The owners of one producer's queues, guarded by the batcher's lock. At most one thread owns at most one queue.

    A thread may be interrupted between any two steps. Its claim then still stands: the thread finds it by `claimed`,
    and nobody else touches the queue before the thread has given it back.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        # A thread, and the one batch of the queue that it owns. The claim is void unless the queue's owner is THREAD.
        self._claim: tuple[int, ProducerBatch] | None = None

    def may_claim(self, queue: SendQueue) -> bool:
        """Has the queue no owner, and does no thread own another one? The caller holds the lock."""
        claim = self._claim
        return queue.owner is QueueOwner.NOBODY and (claim is None or claim[1].queue.owner is not QueueOwner.THREAD)

    def claim(self, batch: ProducerBatch) -> None:
        """Give the batch's queue to the calling thread. The caller holds the lock."""
        # The claim before the owner: an interrupt between them leaves a void claim, and no queue without a claim.
        self._claim = threading.get_ident(), batch
        batch.queue.owner = QueueOwner.THREAD

    def claimed(self) -> ProducerBatch | None:
        """Return the batch of the queue that the calling thread owns; None if it owns none."""
        claim = self._claim
        mine = claim is not None and claim[0] == threading.get_ident() and claim[1].queue.owner is QueueOwner.THREAD
        return claim[1] if mine and claim is not None else None

    def pass_on(self, queue: SendQueue, owner: QueueOwner, tell: Callable[[], bool]) -> bool:
        """Give the queue of the calling thread to `owner`, and return what `tell` returns.

        `tell` informs the loop, which needs the lock before it can take the queue. If a signal interrupts the thread in
        `tell`, the thread still owns the queue.
        """
        with self._lock:
            told = tell()
            queue.owner = owner
            self._claim = None
            return told

    def take(self, queue: SendQueue, owner: QueueOwner = QueueOwner.LOOP) -> bool:
        """Give a queue to the loop, or to nobody. False: a thread has it, and wakes the loop when it gives it back."""
        with self._lock:
            if queue.owner is QueueOwner.THREAD:
                return False
            queue.owner = owner
            return True
