"""One attempt to give a leadership to a certain follower."""

from __future__ import annotations

from dataclasses import dataclass

BEHIND_ENTRIES_MAX = 200  # a transfer to a follower that lacks more entries keeps writers waiting


@dataclass(frozen=True, slots=True)
class LeadershipTransfer:
    """While it lasts, the leader accepts nothing and the successor catches up."""

    successor: int
    until: float  # monotonic time; what is not done by then is given up
    manual: bool  # an operator asked for it

    def is_over(self, now: float) -> bool:
        """Has it taken too long? Then the leader goes on as before."""
        return now > self.until
