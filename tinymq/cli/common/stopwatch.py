"""When the running command began. `--timeout` counts from there: loading gRPC and Arrow takes a second or two on a busy
machine, and would come on top of it."""

from __future__ import annotations

import time
from contextvars import ContextVar

_began_s: ContextVar[float] = ContextVar("began_s")


def begin() -> None:
    """Note that a command begins."""
    _began_s.set(time.monotonic())


def elapsed_s() -> float:
    """The seconds since the running command began; 0 outside of a command."""
    now_s = time.monotonic()
    return now_s - _began_s.get(now_s)
