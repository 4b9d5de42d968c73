"""What time it is in the cluster: what the wall clocks of a majority of its brokers say, or that nobody can tell.

The brokers that count are those that hold a replica of anything, metadata voters included. With a majority `q` of them
heard, the time lies between the q-th latest and the q-th earliest clock: fewer than q are wrong, so one right clock is
no earlier than the first, and one is no later than the second. With all brokers heard the two are next to each other,
or the same. While only a bare majority is heard, one wrong clock among it sets them apart: then nobody can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from tinymq.clock import Clock

logger = structlog.get_logger("tinymq.raft")

APART_US_MAX = 60_000_000  # clocks that a bare majority has may be so far apart: those without NTP are


def agreed_us(clocks_us: Sequence[int], brokers: int) -> int | None:
    """The time by these clocks, of `brokers` brokers that count. None: too few are heard, or they contradict."""
    quorum = brokers // 2 + 1
    if len(clocks_us) < quorum:
        return None
    ordered = sorted(clocks_us)
    one, other = ordered[quorum - 1], ordered[-quorum]
    return None if abs(one - other) > APART_US_MAX else min(one, other)


class HeardClocks(Protocol):
    """Other brokers' clocks (tinymq.raft.liveness.Liveness)."""

    def clocks_us(self, brokers: Collection[int]) -> list[int]:
        """Of those of `brokers` that are alive: wall clock less our monotonic one."""
        ...


class ClusterTime:
    """The cluster's time, as this broker knows it. `look` is called whenever a clock or a verdict may be another."""

    def __init__(self, broker_id: int, clock: Clock, heard: HeardClocks) -> None:
        self.on_known: Callable[[], None] = lambda: None  # the time is known, and was not
        self._broker_id = broker_id
        self._clock = clock
        self._heard = heard
        self._brokers = frozenset({broker_id})
        self._ahead_us: int | None = None  # of our monotonic clock

    def count(self, brokers: Collection[int]) -> None:
        """From now on these brokers count, and this one."""
        counted = frozenset(brokers) | {self._broker_id}
        if counted != self._brokers:
            self._brokers = counted
            self._ahead_us = None  # of these brokers nothing was known
            self.look()

    def look(self) -> None:
        """Read the clocks anew."""
        known = self._ahead_us is not None
        ours_us = self._clock.wall_us() - int(self._clock.monotonic() * 1e6)
        clocks_us = self._heard.clocks_us(self._brokers - {self._broker_id})
        self._ahead_us = agreed_us([ours_us, *clocks_us], len(self._brokers))
        if self._ahead_us is None and known:
            logger.warning("cluster_time_unknown", heard=1 + len(clocks_us), of=len(self._brokers))
        if self._ahead_us is not None and not known:
            self.on_known()

    def now_us(self) -> int | None:
        """The cluster's time. None: too few clocks are heard."""
        return None if self._ahead_us is None else self._ahead_us + int(self._clock.monotonic() * 1e6)
