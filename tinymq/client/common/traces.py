"""Tracebacks of raised errors show the application's lines, and not the client's own (docs/adr/0141)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from tinymq.base.errors import TinymqError

LOG = logging.getLogger("tinymq.client")

PASSED_THROUGH = {"tinymq", "asyncio", "concurrent"}  # packages that an error crosses on its way to the application

Error = TypeVar("Error", bound=BaseException)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def trim(error: TinymqError) -> None:
    """Take the client's own calls out of the traceback of an operating error, before it is raised to the application.

    They tell an application nothing: `code`, message and `hint` say what happened. The lines of the application's own
    code stay, such as those of a handler that raised. The whole traceback is logged at DEBUG.

        except TinymqError as raised:
            trim(raised)
            raise

    A bare `raise` adds no line of the method that does it, so the traceback ends in the line that called the method.
    """
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None and LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s, as it was raised inside of the client:", error.code, exc_info=error)
    error.__traceback__ = _of_application(error.__traceback__)
    _forget_context(error)


def trimming(
    method: Callable[Parameters, Coroutine[Any, Any, Result]],
) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """Trim what the decorated method raises. For what an iteration waits for, and calls without a core."""

    @functools.wraps(method)
    async def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return await method(*args, **kwargs)
        except TinymqError as raised:
            trim(raised)
            raise

    return call


def untraced(error: Error) -> Error:
    """Return an error that is kept and raised again, without the traceback that it got when it was raised before.

    It would grow by a few lines with each raise, and keep their frames alive. A bug keeps its traceback.
    """
    if isinstance(error, TinymqError):
        error.__traceback__ = None
        _forget_context(error)
    return error


def _of_application(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if not _passes_through(trace):
            kept.append(trace)
        trace = trace.tb_next
    below: TracebackType | None = None
    for each in reversed(kept):
        below = TracebackType(below, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return below


def _forget_context(error: TinymqError) -> None:
    """Drop the errors that the client was handling when it made this one. Errors that the application handles stay."""
    while (handled := error.__context__) is not None:
        # The first line of a traceback is the one that catches.
        if handled.__traceback__ is None or not _passes_through(handled.__traceback__):
            return
        error.__context__ = handled.__context__


def _passes_through(trace: TracebackType) -> bool:
    name: str = trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in PASSED_THROUGH
