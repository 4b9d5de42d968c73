"""One attempt to transfer a leadership to a chosen follower."""

from __future__ import annotations

from dataclasses import dataclass

BEHIND_ENTRIES_MAX = 200  # writers would wait too long for a follower that lacks more entries


@dataclass(frozen=True, slots=True)
class LeadershipTransfer:
    """A transfer under way. Until it ends the leader accepts no proposal, and the successor catches up."""

    successor: int
    until: float  # monotonic seconds; the leader gives the transfer up then
    manual: bool  # an operator asked for it

    def is_over(self, now: float) -> bool:
        """Is its time up? Then the leader accepts proposals again."""
        return now > self.until
