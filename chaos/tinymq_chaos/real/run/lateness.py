"""How late the harness's loop was, because it waited for the processor. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0  # the deadline of a call, 4 s, and the time by which it may be late


class Lateness:
    """Adds up how late the loop's turns were, over the worst window.

    A call takes several turns of the loop, each of which may be late. So the longest single wait does not say how late
    a call may end: on a machine with twenty tasks for each processor, calls ended 6 s after their deadline, after three
    waits of 2 to 3 s.
    """

    def __init__(self) -> None:
        self.worst_s = 0.0  # the sum of one window
        self._recent: deque[tuple[float, float]] = deque()  # (when a turn came, how late it was)
        self._sum_s = 0.0

    def note(self, now_s: float, late_s: float) -> None:
        """Note that a turn came at `now_s`, `late_s` after it was due."""
        self._recent.append((now_s, late_s))
        self._sum_s += late_s
        while self._recent[0][0] <= now_s - WINDOW_S:
            self._sum_s -= self._recent.popleft()[1]
        self.worst_s = max(self.worst_s, self._sum_s)
