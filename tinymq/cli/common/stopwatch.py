"""When the running command began. `--timeout` counts from there: loading gRPC and Arrow takes a second or two on a busy
machine, and would come on top of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_began_s: ContextVar[float | None] = ContextVar("began_s", default=None)


@contextmanager
def command() -> Iterator[None]:
    """A command runs as long as the block."""
    before = _began_s.set(time.monotonic())
    try:
        yield
    finally:
        _began_s.reset(before)


def elapsed_s() -> float:
    """The seconds since the running command began; 0 outside of a command."""
    began_s = _began_s.get()
    return 0.0 if began_s is None else time.monotonic() - began_s
