"""The records of one queue group in one partition that are to be buried. Pure.

A record is dead by the replicated state alone: its worker rejected it, or its failed deliveries are as many as the
group allows. So every leader finds the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinymq.broker.state.queue_group import REJECTED, Failure, QueueGroup


class DeadRecords:
    """The dead records whose burial has not begun, the oldest first."""

    def __init__(self, deliveries_max: int) -> None:
        """With `deliveries_max` 0, only a rejected record is dead."""
        self._most = deliveries_max or REJECTED
        self._offsets: dict[int, None] = {}  # some may be settled since

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def is_dead(self, failure: Failure) -> bool:
        return failure.deliveries >= self._most

    def note(self, offsets: Iterable[int], group: QueueGroup) -> None:
        """Add those of `offsets` whose failures make them dead."""
        for offset in offsets:
            failure = group.failures.get(offset)
            if failure is not None and self.is_dead(failure):
                self._offsets[offset] = None

    def take(self, group: QueueGroup, is_open: Callable[[int], bool]) -> list[tuple[int, Failure]]:
        """The dead records that are neither settled nor being buried, with their failures."""
        failures = group.failures
        found = [(offset, failures[offset]) for offset in self._offsets if is_open(offset) and offset in failures]
        self._offsets = {offset: None for offset, _ in found}
        return found

    def clear(self) -> None:
        self._offsets.clear()
