"""Objects of the client in a forked child: every one of them refuses its calls with Closed, at once.

The child has a copy of each object and of what it fetched, but none of the threads that work for it. A copy of a
consumer would hand out records that the parent handles, too, and a call would wait for ever. gRPC, which is below all
of it, supports no fork once it was used. So the objects drop what they have. They take no lock for it, because a thread
that does not exist in the child may have held it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from tinymq.base.errors import Closed
from tinymq.client.common.argument_checks import FORK_HINT

T = TypeVar("T")

HOOKS_HINT = "uWSGI runs no fork hooks of Python by default: set py-call-osafterfork and enable-threads, or lazy-apps"

_process = os.getpid()  # as the hooks know it
_calls: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def in_child(of: T, call: Callable[[T], None]) -> None:
    """Make `call(of)` in each child that this process forks, as long as `of` exists."""
    _calls[of] = call


def forked() -> Closed:
    """The error that a forked child gets from an object that its parent made and used before the fork.

    A process that was forked without Python's hooks gets it from everything that was made before.
    """
    if os.getpid() != _process:
        return Closed("made before this process was forked without Python's fork hooks", hint=HOOKS_HINT)
    return Closed("made and used before this process forked", hint=FORK_HINT)


def refuse(*_: object, **__: object) -> NoReturn:
    """Stand in for a method in a child. Raises Closed."""
    raise forked()


def _after_fork() -> None:
    global _process
    _process = os.getpid()
    for of, call in list(_calls.items()):
        call(of)


os.register_at_fork(after_in_child=_after_fork)
