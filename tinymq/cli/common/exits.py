"""Exit codes of the command line, which are stable, and the text of errors: a message and a hint."""

from __future__ import annotations

from enum import IntEnum

from tinymq.base.errors import Denied, InvalidRequest, NotFound, OutcomeUnknown, TinymqError, Unavailable
from tinymq.cli.common.output import say


class Exit(IntEnum):
    """Exit codes. Scripts rely on them: a number never changes its meaning."""

    OK = 0
    FAILED = 1  # the operation failed, or a check found a problem
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNAVAILABLE = 5  # no broker answered, or the call timed out
    INTERRUPTED = 130  # 128 + SIGINT, as in shells


# Ordered from the specific to the general: the first match decides.
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
    """Return the exit code for `error`, or None if the error is a bug rather than an operating error."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), None)


def explain(error: Exception) -> None:
    """Print an error and its hint on stderr."""
    if isinstance(error, TinymqError):
        say(f"error: {error.message} [{error.code}]")
        if error.hint:
            say(f"hint: {error.hint}")
    elif isinstance(error, OSError) and error.filename:
        say(f"error: {error.filename}: {error.strerror}")
    else:
        say(f"error: {error}")
