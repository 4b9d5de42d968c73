"""The handles of callbacks on the virtual loop, which cost less than asyncio's."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any


class SoonHandle(asyncio.Handle):
    """A callback to run soon, made in one call: a run makes hundreds of them per virtual second.

    It sets the fields of asyncio's Handle, and leaves out what a loop in debug mode reads.
    """

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        own: Any = self
        own._context = contextvars.copy_context() if context is None else context
        own._loop, own._callback, own._args = loop, callback, args
        own._cancelled, own._repr, own._source_traceback = False, None, None


class TimedHandle(asyncio.TimerHandle):
    """The same for a timer."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        own: Any = self
        own._context = contextvars.copy_context() if context is None else context
        own._loop, own._callback, own._args = loop, callback, args
        own._cancelled, own._repr, own._source_traceback = False, None, None
        own._when, own._scheduled = when, True
