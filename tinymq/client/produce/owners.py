"""Whose a send queue is: the loop's, or for the time of one lone record that of the thread that sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tinymq.client.produce.delivery import ProducerBatch
from tinymq.client.produce.send_queue import Owner, SendQueue


class Owners:
    """Of one producer's send queues, under the batcher's lock. One thread of all has a send queue, at most.

    A thread may be interrupted between any two steps: then what it has claimed is still there to be seen by it, and
    nobody else touches the send queue before.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._claim: tuple[int, ProducerBatch] | None = (
            None  # a thread, and the one batch of its send queue; void if it has none
        )

    def may_claim(self, queue: SendQueue) -> bool:
        """Is the send queue nobody's, and has no thread one? The caller has the lock."""
        claim = self._claim
        return queue.owner is Owner.NOBODY and (claim is None or claim[1].queue.owner is not Owner.THREAD)

    def claim(self, batch: ProducerBatch) -> None:
        """Give the batch's send queue to the calling thread. The caller has the lock."""
        self._claim = threading.get_ident(), batch
        batch.queue.owner = Owner.THREAD

    def claimed(self) -> ProducerBatch | None:
        """The batch of the send queue that the calling thread has, if it has one."""
        claim = self._claim
        mine = claim is not None and claim[0] == threading.get_ident() and claim[1].queue.owner is Owner.THREAD
        return claim[1] if mine and claim is not None else None

    def pass_on(self, queue: SendQueue, owner: Owner, tell: Callable[[], bool]) -> bool:
        """Give the queue of the calling thread to `owner`, and return what `tell` returns.

        `tell` tells the loop, which waits for the lock before it takes the queue. A thread that is interrupted in
        `tell` still has the queue.
        """
        with self._lock:
            told = tell()
            queue.owner = owner
            self._claim = None
            return told

    def take(self, queue: SendQueue, owner: Owner = Owner.LOOP) -> bool:
        """Give a queue to the loop, or to nobody. False: a thread has it, and wakes the loop when it gives it back."""
        with self._lock:
            if queue.owner is Owner.THREAD:
                return False
            queue.owner = owner
            return True
