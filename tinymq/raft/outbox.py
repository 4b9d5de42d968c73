"""What must wait for the ballot file: nothing that rests on a term or vote leaves before it is synced.

Hazard 7: a vote that is forgotten in a power cut is given twice.
"""

from __future__ import annotations

from collections.abc import Callable

Action = Callable[[], object]


class Outbox:
    """Actions in order, held while this group's ballot has unsynced changes."""

    __slots__ = ("_durable", "_waiting")

    def __init__(self, durable: Callable[[], bool]) -> None:
        self._durable = durable
        self._waiting: list[Action] = []

    def post(self, action: Action) -> None:
        """Do it now when the ballot is synced and nothing waits before it, else after the sync."""
        if not self._waiting and self._durable():
            action()
        else:
            self._waiting.append(action)

    def flush(self) -> None:
        """The ballot may have become durable: do what waits, unless something new must be synced first."""
        while self._waiting and self._durable():
            self._waiting.pop(0)()

    def clear(self) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)
