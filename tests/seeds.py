"""Seeds of random lives: `make test` lives a few of them, and `make test-long` the others, which show the same rule.

`make fuzz` draws fresh ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(seeds: Iterable[Any], count: int) -> list[Any]:
    """All of `seeds`, for `parametrize`: those behind the first `count` are `long`. A tuple is several values."""
    return [seed if at < count else _long(seed) for at, seed in enumerate(seeds)]


def _long(seed: Any) -> Any:
    values = seed if isinstance(seed, tuple) else (seed,)
    return pytest.param(*values, marks=pytest.mark.long)
