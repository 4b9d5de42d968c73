"""Messages that wait for the vote store: none that rests on a term or a vote leaves before both are synced.

Hazard 7: a replica that forgets its vote in a power cut votes twice in a term.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

Action = Callable[[], object]


class Outbox:
    """Actions in order, held while this group's term or vote is not synced."""

    __slots__ = ("_durable", "_waiting")

    def __init__(self, durable: Callable[[], bool]) -> None:
        self._durable = durable
        self._waiting: dict[Hashable, Action] = {}  # by kind, in the order in which they are done

    def post(self, action: Action, kind: Hashable = None) -> None:
        """Do it now if the vote is synced and nothing waits before it, else after the sync.

        It replaces an action of the same `kind` that waits. So the queue stays short while a sync hangs and timers and
        retries go on.
        """
        if not self._waiting and self._durable():
            action()
        else:
            kind = object() if kind is None else kind
            self._waiting.pop(kind, None)
            self._waiting[kind] = action

    def flush(self) -> None:
        """The vote may have become durable: do what waits, until something new must be synced first."""
        while self._waiting and self._durable():
            self._waiting.pop(next(iter(self._waiting)))()

    def clear(self) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)
