"""A queue group's limits in one partition: its share of the group's rate and concurrency, and the active workers.
Pure: the time is an argument.

The leaders of a group's partitions do not talk to each other about grants. Each gets an even share of the group's
bounds, so that together they never exceed them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tinymq.broker.groups.definition import GroupDefinition


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The bounds in a group's settings. None: no bound."""

    rate_max: int | None = None  # records per second
    concurrency_max: int | None = None
    max_members: int | None = None
    message_ttl_ms: int | None = None
    paused: bool = False

    @classmethod
    def of(cls, group: GroupDefinition) -> GroupLimits:
        """The bounds of a group of the registry."""
        config = group.config()
        return cls(
            rate_max=config["rate_max"],
            concurrency_max=config["concurrency_max"],
            max_members=config["max_members"],
            message_ttl_ms=config["message_ttl_ms"],
            paused=group.paused,
        )

    @property
    def is_divided(self) -> bool:
        """Whether a bound is divided among the partitions."""
        return self.rate_max is not None or self.concurrency_max is not None


class GroupShare:
    """One partition's share of its group's bounds."""

    def __init__(self, now_s: float) -> None:
        self.rate_max: float | None = None  # records per second
        self.concurrency_max: int | None = None
        self._tokens = 0.0
        self._counted_s = now_s

    def divide(self, limits: GroupLimits, place: int, places: int) -> None:
        """Set the share of the partition at `place` (from 0) among the group's `places` partitions."""
        places = max(1, places)
        self.rate_max = None if limits.rate_max is None else limits.rate_max / places
        if limits.concurrency_max is None:
            self.concurrency_max = None
        else:
            least, extra = divmod(limits.concurrency_max, places)
            self.concurrency_max = max(1, least + (place < extra))  # with 0, the partition would never be read

    def most(self, leased: int, now_s: float) -> int | None:
        """How many more records may be granted now that `leased` records are leased; None: any number."""
        bounds = [] if self.concurrency_max is None else [max(0, self.concurrency_max - leased)]
        if self.rate_max is not None:
            # After a pause, a second's worth may be granted at once, and at least one record.
            full = max(1.0, self.rate_max)
            self._tokens = min(full, self._tokens + (now_s - self._counted_s) * self.rate_max)
            bounds.append(int(self._tokens))
        self._counted_s = now_s
        return min(bounds, default=None)

    def granted(self, count: int) -> None:
        """Note that records were granted."""
        if self.rate_max is not None:
            self._tokens -= count


def active_sessions(
    sessions: Iterable[bytes], attached: Collection[bytes], holding: Collection[bytes], most: int | None
) -> set[bytes]:
    """The at most `most` workers that are active: first those that hold records, then those that began first.

    `sessions` are in the order in which they began. Those in `holding` have records, or may have some after a change of
    leaders. A worker that has lost its connection stays active while it has records.
    """
    present = [session for session in sessions if session in attached or session in holding]
    present.sort(key=lambda session: session not in holding)  # stable, so the order of beginning stays within each kind
    return set(present if most is None else present[:most])
