"""Whose a lane is: the loop's, or for the time of one lone record that of the thread that sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tinymq.client.produce.delivery import ProducerBatch
from tinymq.client.produce.send_queue import Owner, SendQueue


class Owners:
    """Of one producer's lanes, under the batcher's lock. One thread of all has a lane, at most.

    A thread may be interrupted between any two steps: then what it has claimed is still there to be seen by it, and
    nobody else touches the lane before.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._claim: tuple[int, ProducerBatch] | None = (
            None  # a thread, and the one batch of its lane; void if it has none
        )

    def may_claim(self, lane: SendQueue) -> bool:
        """Is the lane nobody's, and has no thread one? The caller has the lock."""
        claim = self._claim
        return lane.owner is Owner.NOBODY and (claim is None or claim[1].lane.owner is not Owner.THREAD)

    def claim(self, batch: ProducerBatch) -> None:
        """Give the batch's lane to the calling thread. The caller has the lock."""
        self._claim = threading.get_ident(), batch
        batch.lane.owner = Owner.THREAD

    def claimed(self) -> ProducerBatch | None:
        """The batch of the lane that the calling thread has, if it has one."""
        claim = self._claim
        mine = claim is not None and claim[0] == threading.get_ident() and claim[1].lane.owner is Owner.THREAD
        return claim[1] if mine and claim is not None else None

    def pass_on(self, lane: SendQueue, owner: Owner, tell: Callable[[], bool]) -> bool:
        """The lane is its thread's no more, once `tell` has told the loop so, which waits for the lock before it takes
        the lane. What it answers. Interrupted in it, the thread has the lane still."""
        with self._lock:
            told = tell()
            lane.owner = owner
            self._claim = None
            return told

    def take(self, lane: SendQueue, owner: Owner = Owner.LOOP) -> bool:
        """Make a lane the loop's, or nobody's. False: a thread has it, and wakes the loop when it gives it back."""
        with self._lock:
            if lane.owner is Owner.THREAD:
                return False
            lane.owner = owner
            return True
