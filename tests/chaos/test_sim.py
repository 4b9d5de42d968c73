"""The simulator itself: one seed is one run, and each row of the table of faults heals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.run import Plan, run

ROOT = Path(__file__).resolve().parent.parent.parent
REPLAYED = 7
PRINT_TWO = """
from tinymq_chaos.sim.run import Plan, run
print(*run(Plan({seed}, seconds=14.0)).transcript, sep="\\n")
"""


def _transcript(seed: int, surroundings: dict[str, str]) -> str:
    """Of a run in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'chaos'}"}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_TWO.format(seed=seed)],
        env={**environment, **surroundings}, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_seed_is_one_run_byte_for_byte() -> None:
    first = _transcript(REPLAYED, {})
    assert first == _transcript(REPLAYED, {"SOMETHING_ELSE_IN_THE_ENVIRONMENT": "x" * 4000})
    assert " FAULT " in first
    assert "replica_changed" in first
    assert first != _transcript(REPLAYED + 1, {})


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_fault_begins_and_ends_and_all_is_well_again(kind: str) -> None:
    plan = Plan(3, faults=(kind,), workloads=("lone", "churn"), seconds=14.0, pace=3.0, segment_bytes=4096)
    result = run(plan)
    assert not result.anomalies, "\n".join([*result.anomalies, f"to replay it: {plan.command}"])
    assert result.faults.get(kind, 0) > 0
