"""Messages that wait for the vote store. A message that rests on a term or a vote leaves after both are synced.

Hazard 7: a replica that forgets its vote in a power cut votes twice in a term.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

Action = Callable[[], object]


class VoteBarrier:
    """A queue of actions, held while this group's term or vote is not synced."""

    __slots__ = ("_durable", "_waiting")

    def __init__(self, durable: Callable[[], bool]) -> None:
        self._durable = durable
        self._waiting: dict[Hashable, Action] = {}  # by kind, in the order of execution

    def post(self, action: Action, kind: Hashable = None) -> None:
        """Run `action` now if the vote is synced and no other action waits, else after the sync.

        It replaces a waiting action of the same `kind`, so the queue stays short while a sync hangs and timers go on
        to post. None: an action of its own kind.
        """
        if not self._waiting and self._durable():
            action()
        else:
            kind = object() if kind is None else kind
            self._waiting.pop(kind, None)
            self._waiting[kind] = action

    def flush(self) -> None:
        """Run the waiting actions if the vote is durable, until one of them changes the term or the vote again."""
        while self._waiting and self._durable():
            self._waiting.pop(next(iter(self._waiting)))()

    def clear(self) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)
