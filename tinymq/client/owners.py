"""Whose a lane is: the loop's, or for the time of one lone record that of the thread that sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tinymq.client.delivery import Pending
from tinymq.client.lane import Lane, Owner


class Owners:
    """Of one producer's lanes, under the batcher's lock. One thread of all has a lane, at most."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._claim: tuple[int, Pending] | None = None  # a thread, and the one batch of the lane that it has

    def claim(self, batch: Pending) -> None:
        """Give the lane of a batch, that is nobody's, to the calling thread. The caller has the lock."""
        self._claim = threading.get_ident(), batch
        batch.lane.owner = Owner.THREAD

    def claimed(self) -> Pending | None:
        """The batch of the lane that the calling thread has, if it has one."""
        claim = self._claim
        return claim[1] if claim is not None and claim[0] == threading.get_ident() else None

    def give_back(self, batch: Pending) -> None:
        """The lane is nobody's again. The caller has the lock, and wakes the loop if there is more in it."""
        self._claim = None
        batch.lane.owner = Owner.NOBODY

    def pass_on(self, batch: Pending, adopt: Callable[[], bool]) -> bool:
        """The lane is the loop's from here on, with a batch that was sent. `adopt` tells the loop so, under the lock;
        False: there is nobody left to be told."""
        with self._lock:
            self._claim = None
            batch.lane.owner = Owner.LOOP
            return adopt()

    def take(self, lane: Lane, owner: Owner = Owner.LOOP) -> bool:
        """Make a lane the loop's, or nobody's. False: a thread has it, and wakes the loop when it gives it back."""
        with self._lock:
            if lane.owner is Owner.THREAD:
                return False
            lane.owner = owner
            return True
