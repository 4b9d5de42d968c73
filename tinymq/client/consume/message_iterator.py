"""Iterate over messages that come in batches, without a line of Python for each of them.

The iterator consists of C code that draws from the batch at hand, and calls Python when that is used up. A generator
would do the same, but an error or an interrupt ends a generator for good, and its next user would see a clean end. This
one goes on: an error leaves it where it was.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from tinymq.client.consume.records import Message

Turn = Iterator[Message] | None


def message_iterator(more: Callable[[], Iterator[Message] | None]) -> Iterator[Message]:
    """Iterate over all messages of the batches that `more` returns, up to None. `more` may wait, and may raise."""
    turns: deque[Turn] = deque()
    turns.append(_Asking(more, turns).turn())
    return chain.from_iterable(iter(turns.popleft, None))


class _Asking:
    """A turn between two batches. It yields no message: it calls `more`, and then puts a batch and itself into `turns`.

    `chain` ends for good when its source of turns raises. So that source is a C iterator over `turns`, which never
    waits. When a turn itself raises, `chain` goes on with the same turn. So everything that may raise is in `_ask`.
    """

    def __init__(self, more: Callable[[], Iterator[Message] | None], turns: deque[Turn]) -> None:
        self._more = more
        # Weak, because `turns` refers to this object: an iterator that nobody uses any more is freed at once, and so is
        # the reader.
        self._turns = weakref.ref(turns)

    def turn(self) -> Iterator[Message]:
        return iter(self._ask, None)

    def _ask(self) -> Message | None:
        turns = self._turns()
        assert turns is not None, "the iterator that has the turns draws from one"
        if not turns:  # otherwise an interrupt struck when the turns were there already
            messages = self._more()
            turns.extend((None,) if messages is None else (messages, self.turn()))
        return None
