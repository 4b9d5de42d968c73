"""The rule that one thread at a time takes records from an object, and that a second one is told so.

The objects that take records need no lock for one thread. Two threads inside them would hand out records twice, or
lose them without a word.
"""

from __future__ import annotations

from threading import get_ident

from tinymq.base.errors import InvalidRequest
from tinymq.client.common import forks


class OneThread:
    """Around each call that takes records. A thread may enter again, as a signal's handler does.

    There is no lock, because an interrupt could leave it locked for ever. Python switches threads, and handles signals,
    only at calls and jumps back: there are none between reading `_inside` and writing it.
    """

    def __init__(self, of: str) -> None:
        """`of`: the object's kind, in the error."""
        self._of = of
        self._inside = 0  # the thread that takes records now; 0: none
        forks.in_child(self, OneThread._leave)

    def __enter__(self) -> None:
        me = get_ident()
        if self._inside not in (0, me):
            raise InvalidRequest(
                f"two threads use the {self._of} at once",
                hint="give each thread one of its own",
            )
        self._inside = me

    def __exit__(self, *_: object) -> None:
        self._inside = 0

    def _leave(self) -> None:
        self._inside = 0
