"""Derives the cluster's time from the wall clocks of a majority of its brokers, or finds that it is unknown.

The clocks of all brokers that hold any replica count, metadata voters included. Let `q` be a majority of them. If at
least q clocks are heard, the time lies between the q-th latest and the q-th earliest clock. Fewer than q clocks are
wrong, so one right clock is no earlier than the q-th latest, and one is no later than the q-th earliest. If all clocks
are heard, these two are adjacent, or the same. If only q are heard, a single wrong clock separates the two; if they are
too far apart, the time is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from tinymq.base.clock import Clock

logger = structlog.get_logger("tinymq.raft")

APART_US_MAX = 60_000_000  # how far apart the two clocks may be: without NTP they drift


def agreed_us(clocks_us: Sequence[int], brokers: int) -> int | None:
    """Return the time by these clocks, where `brokers` is the number of brokers that count. None: too few clocks are
    heard, or they contradict one another."""
    quorum = brokers // 2 + 1
    if len(clocks_us) < quorum:
        return None
    ordered = sorted(clocks_us)
    one, other = ordered[quorum - 1], ordered[-quorum]
    return None if abs(one - other) > APART_US_MAX else min(one, other)


class HeardClocks(Protocol):
    """Other brokers' clocks (tinymq.raft.peers.failure_detector.FailureDetector)."""

    def clocks_us(self, brokers: Collection[int]) -> list[int]:
        """For each live broker of `brokers`, return its wall clock less our monotonic clock."""
        ...


class ClusterTime:
    """The cluster's time, as this broker knows it. Its owner calls `look` whenever a clock or a verdict on a broker may
    have changed."""

    def __init__(self, broker_id: int, clock: Clock, heard: HeardClocks) -> None:
        self.on_known: Callable[[], None] = lambda: None  # called when the time becomes known
        self._broker_id = broker_id
        self._clock = clock
        self._heard = heard
        self._brokers = frozenset({broker_id})
        self._ahead_us: int | None = None  # the cluster's time less our monotonic clock; None: unknown

    def count(self, brokers: Collection[int]) -> None:
        """From now on let the clocks of these brokers and of this one count."""
        counted = frozenset(brokers) | {self._broker_id}
        if counted != self._brokers:
            self._brokers = counted
            self._ahead_us = None  # nothing is known about this set of brokers yet
            self.look()

    def look(self) -> None:
        """Read all clocks again."""
        known = self._ahead_us is not None
        ours_us = self._clock.wall_us() - int(self._clock.monotonic() * 1e6)
        clocks_us = self._heard.clocks_us(self._brokers - {self._broker_id})
        self._ahead_us = agreed_us([ours_us, *clocks_us], len(self._brokers))
        if self._ahead_us is None and known:
            logger.warning("cluster_time_unknown", heard=1 + len(clocks_us), of=len(self._brokers))
        if self._ahead_us is not None and not known:
            self.on_known()

    def now_us(self) -> int | None:
        """The cluster's time. None: it is unknown."""
        return None if self._ahead_us is None else self._ahead_us + int(self._clock.monotonic() * 1e6)
