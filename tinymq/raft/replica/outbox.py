"""What must wait for the ballot file: nothing that rests on a term or vote leaves before it is synced.

Hazard 7: a vote that is forgotten in a power cut is given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

Action = Callable[[], object]


class Outbox:
    """Actions in order, held while this group's ballot has unsynced changes."""

    __slots__ = ("_durable", "_waiting")

    def __init__(self, durable: Callable[[], bool]) -> None:
        self._durable = durable
        self._waiting: dict[Hashable, Action] = {}  # in the order in which they are done

    def post(self, action: Action, kind: Hashable = None) -> None:
        """Do it now when the ballot is synced and nothing waits before it, else after the sync. What waits of the same
        `kind` is given up for it: a sync may hang for as long as it likes, and timers and retries go on."""
        if not self._waiting and self._durable():
            action()
        else:
            kind = object() if kind is None else kind
            self._waiting.pop(kind, None)
            self._waiting[kind] = action

    def flush(self) -> None:
        """The ballot may have become durable: do what waits, unless something new must be synced first."""
        while self._waiting and self._durable():
            self._waiting.pop(next(iter(self._waiting)))()

    def clear(self) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)
