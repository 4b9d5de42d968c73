"""The replicas that a partition's fetcher avoids for a while. No I/O; the time is an argument."""

from __future__ import annotations

import logging

from tinymq.base.errors import CorruptData, TinymqError
from tinymq.base.retry import Backoff

LOG = logging.getLogger("tinymq.client")

AVOIDED = Backoff(0.2, 10.0)  # how long a replica is avoided, by its failures


class AvoidedReplicas:
    """The replicas of one partition that failed, each avoided for longer the more often it failed."""

    def __init__(self) -> None:
        # The broker whose last answer was damaged; None: no broker is in doubt. It may have sent its file without
        # reading it (docs/adr/0027), so the fetcher asks it once more, and then it verifies what it sends.
        self.doubted: int | None = None
        self._until_s: dict[int, float] = {}  # by broker
        self._failures: dict[int, int] = {}  # by broker, since `clear`

    def avoid(self, broker: int, now_s: float) -> None:
        """Avoid a broker that has just failed."""
        failures = self._failures[broker] = self._failures.get(broker, 0) + 1
        self._until_s[broker] = now_s + AVOIDED.pause_s(failures)

    def left_s(self, broker: int, now_s: float) -> float:
        """Return for how much longer a broker is avoided, in seconds; 0 if it may be asked."""
        return max(0.0, self._until_s.get(broker, 0.0) - now_s)

    def doubts(self, broker: int, error: TinymqError) -> bool:
        """Is `error` the first damage that this broker sent? If so, the broker is asked to verify its data."""
        first = isinstance(error, CorruptData) and self.doubted is None
        self.doubted = broker if first else None
        if first:
            LOG.info("broker %d sent damage, and is asked to verify it: %s", broker, error.message)
        return first

    def clear(self) -> None:
        """Forget all failures, after a comparison has shown that the replica in use has every record."""
        self._until_s.clear()
        self._failures.clear()
