"""How many half messages are not over, and how old the oldest one is: for the metrics of the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinymq.broker.transactions.half.half_message import HalfMessage

SILENT_S = 60.0  # after this time without an answer, a check counts as unanswered


class Halves(NamedTuple):
    """The half messages in the partitions of `__coordinator` that this broker leads, as of a moment ago."""

    open: int = 0
    decided: int = 0  # that a partition has not confirmed yet
    unanswered: int = 0  # whose check has been due for SILENT_S without an answer of a member
    oldest_s: float = 0.0  # age of the oldest open one

    def beside(self, other: Halves) -> Halves:
        """Both together."""
        return Halves(
            open=self.open + other.open,
            decided=self.decided + other.decided,
            unanswered=self.unanswered + other.unanswered,
            oldest_s=max(self.oldest_s, other.oldest_s),
        )


def count_halves(halves: Iterable[HalfMessage], now_us: int) -> Halves:
    """Count half messages. `now_us` is the append clock's time."""
    open_, decided, unanswered, oldest_us = 0, 0, 0, now_us
    for half in halves:
        if half.is_open:
            open_ += 1
            unanswered += now_us - half.due_us >= SILENT_S * 1e6
            oldest_us = min(oldest_us, half.begun_us)
        else:
            decided += 1
    return Halves(open_, decided, unanswered, (now_us - oldest_us) / 1e6)
