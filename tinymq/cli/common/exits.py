"""How the command line ends: stable exit codes, and errors as a message and a hint."""

from __future__ import annotations

from enum import IntEnum

from tinymq.base.errors import Denied, InvalidRequest, NotFound, OutcomeUnknown, TinymqError, Unavailable
from tinymq.cli.common.output import say


class Exit(IntEnum):
    """Exit codes. Scripts rely on them: a number never changes its meaning."""

    OK = 0
    FAILED = 1  # the command did its work, and what it checked does not hold
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNAVAILABLE = 5  # or timed out
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


# The first match counts.
_EXITS: tuple[tuple[type[Exception], Exit], ...] = (
    (NotFound, Exit.NOT_FOUND),
    (Denied, Exit.DENIED),
    (Unavailable, Exit.UNAVAILABLE),
    (OutcomeUnknown, Exit.UNAVAILABLE),
    (InvalidRequest, Exit.USAGE),
    (TinymqError, Exit.FAILED),
    (FileNotFoundError, Exit.NOT_FOUND),
    (PermissionError, Exit.DENIED),
    (OSError, Exit.FAILED),
)


def exit_of(error: Exception) -> Exit | None:
    """The exit code for `error`; None when it is no operating error but a bug."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), None)


def explain(error: Exception) -> None:
    """Say on stderr what went wrong and what to do about it."""
    if isinstance(error, TinymqError):
        say(f"error: {error.message} [{error.code}]")
        if error.hint:
            say(f"hint: {error.hint}")
    elif isinstance(error, OSError) and error.filename:
        say(f"error: {error.filename}: {error.strerror}")
    else:
        say(f"error: {error}")
