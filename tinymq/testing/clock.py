"""TestClock: the brokers' clock in a test. It runs as the machine's does, and jumps ahead when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from tinymq.base.clock import SystemClock


class TestClock(SystemClock):
    """The time of all brokers of a cluster: of day, and of the steady clock that append times follow.

    Retention and leases of records follow these, so a jump moves them. To a broker a jump looks like a standstill of
    its process, which it excuses: the other brokers were not silent, and stay registered. Delays that have begun
    keep their length.
    """

    __test__ = False  # pytest collects classes whose names begin with Test

    def __init__(self, carry_out: Callable[[Callable[[], None]], None] = lambda jump: jump()) -> None:
        """`carry_out` makes the jump that it is given, at a moment at which no broker looks at the clock."""
        self._ahead_us = 0
        self._carry_out = carry_out

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self._ahead_us / 1e6

    def wall_us(self) -> int:
        return super().wall_us() + self._ahead_us

    def wall_ns(self) -> int:
        return SystemClock.wall_ns() + self._ahead_us * 1000

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the time of all brokers ahead.

            cluster.clock.advance(days=7)  # records whose retention_ms has passed go within a second

        Calls that are under way may end by their deadline. Raises ValueError for a negative jump.
        """
        jump = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if jump < timedelta(0):
            raise ValueError(f"{jump} is negative: the brokers' clock moves ahead only")
        self._carry_out(lambda: self._add(jump // timedelta(microseconds=1)))

    def _add(self, microseconds: int) -> None:
        self._ahead_us += microseconds
