"""State machines and properties for Hypothesis, by name, for longer runs than in the tests."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.broker.test_model import PartitionLife
from tests.fuzz import test_requests, test_words
from tests.log.test_model import LogLife
from tests.registry.test_model import RegistryLife

ROUND = 100
"""Examples between two readings of the clock."""

LONG = settings(
    max_examples=ROUND,
    derandomize=False,
    database=None,
    deadline=None,
    stateful_step_count=60,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

Life = Callable[[], None] | type[RuleBasedStateMachine]


def _properties(module: Any) -> dict[str, Life]:
    found = {name: value for name, value in vars(module).items() if hasattr(value, "hypothesis")}
    room = module.__name__.rpartition("test_")[2]
    return {f"{room}.{name.removeprefix('test_')}": value for name, value in found.items()}


MACHINES: dict[str, Life] = {"model.log": LogLife, "model.registry": RegistryLife, "model.partition": PartitionLife}
ALL: dict[str, Life] = {**MACHINES, **_properties(test_words), **_properties(test_requests)}


def run(name: str, seed: int, seconds: float) -> int:
    """Run rounds of examples until the time is over. Returns 1 when one failed; Hypothesis has then shrunk it."""
    life: Any = ALL[name]
    end = time.monotonic() + seconds
    began, rounds = time.monotonic(), 0
    while time.monotonic() < end:
        life._hypothesis_internal_use_seed = seed * 1000 + rounds
        try:
            if isinstance(life, type):
                run_state_machine_as_test(life, settings=LONG)
            else:
                life._hypothesis_internal_use_settings = LONG
                life()
        except Exception:
            print(f"FOUND {name} seed {seed} round {rounds}\n{traceback.format_exc()[-6000:]}")
            return 1
        rounds += 1
    rate = rounds * ROUND / (time.monotonic() - began)
    print(f"{name:24} {rounds * ROUND:8d} examples {rate:8.0f}/s", flush=True)
    return 0
