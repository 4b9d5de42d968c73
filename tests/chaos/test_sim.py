"""The simulator itself: one seed is one run, and each row of the table of faults heals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinymq_chaos.sim.__main__ import parse_options
from tinymq_chaos.sim.brokers import BETWEEN_STEPS, LOST, UNSYNCED
from tinymq_chaos.sim.disk import POINTS
from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.run import Plan, run

ROOT = Path(__file__).resolve().parent.parent.parent
REPLAYED = 7
PRINT_TWO = """
from tinymq_chaos.sim.run import Plan, run
print(*run(Plan({seed}, seconds=9.5)).transcript, sep="\\n")
"""
SECONDS = 13.0  # virtual: enough for each kind to happen
SEEDS = range(3, 13)  # tried in turn: a fault that waits for its moment does not find it with every seed
# The faults that wait for a moment, and the moments: one run of those seeds has to have each of them.
HAPPENS = {f"crash_at_{point.replace(' ', '_').replace('-', '_')}": (f"crash at {point}",) for point in POINTS}
HAPPENS |= {"crash_anywhere": (BETWEEN_STEPS,), "power_cut": (UNSYNCED,), "power_cut_of_all": (UNSYNCED, LOST)}


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "17", "--faults", "kill,nonsense"], "'nonsense' is none of isolate_one, "),
        (["--seed", "17", "--workloads", "nonsense"], "'nonsense' is none of idempotent, "),
        (["--seeds", "5"], "'5' is no A:B"),
    ],
    ids=["a fault", "a workload", "a range"],
)
def test_a_word_that_is_none_is_no_anomaly(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert parse_options(["--seed", "1", "--faults", "none"]).faults == ()
    assert parse_options(["--seed", "1", "--faults", "kill"]).faults == ("kill",)
    assert list(parse_options(["--seeds", "3:5"]).seeds) == [3, 4]


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_fault_begins_and_ends_and_all_is_well_again(kind: str) -> None:
    for seed in SEEDS:
        result = run(
            Plan(seed, faults=(kind,), workloads=("lone", "churn"), seconds=SECONDS, pace=3.0, segment_bytes=4096)
        )
        assert not result.anomalies, "\n".join([*result.anomalies, f"to replay it: {result.plan.command}"])
        assert result.faults.get(kind, 0) > 0
        if all(result.happened.get(moment, 0) > 0 for moment in HAPPENS.get(kind, ())):
            return
    raise AssertionError(f"{HAPPENS[kind]} did not happen with the seeds of {SEEDS}")
