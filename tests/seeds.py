"""Seeds of random runs: `make test` uses a few, and `make test-long` the others, which test the same rule. `make fuzz`
draws fresh ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(seeds: Iterable[Any], count: int) -> list[Any]:
    """All of `seeds` for `parametrize`; those after the first `count` are marked `long`. A tuple is several values."""
    return [seed if at < count else _long(seed) for at, seed in enumerate(seeds)]


def _long(seed: Any) -> Any:
    values = seed if isinstance(seed, tuple) else (seed,)
    return pytest.param(*values, marks=pytest.mark.long)
