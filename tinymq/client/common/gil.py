"""Does this interpreter have a global lock? Where it has none, code that relies on it takes a lock of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

_is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)  # from Python 3.13 on

GIL: Final = _is_enabled()
"""True: threads take turns, and a call of C code that calls no Python code is one step for all other threads."""
