"""The simulator itself: one seed is one run, and the cluster recovers from each row of the table of faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tinymq_chaos.sim.__main__ import parse_options
from tinymq_chaos.sim.campaign.run import Plan, run
from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.virtual.disk import POINTS
from tinymq_chaos.sim.world.brokers import BETWEEN_STEPS, LOST, UNSYNCED

ROOT = Path(__file__).resolve().parent.parent.parent
REPLAYED = 7
PRINT_TWO = """
from tinymq_chaos.sim.campaign.run import Plan, run
print(*run(Plan({seed}, seconds=9.5)).transcript, sep="\\n")
"""
SECONDS = 13.0  # virtual: enough for each fault to happen
SEEDS = range(3, 13)  # tried in turn: a fault that waits for its moment does not find it with every seed
# The faults that wait for a moment, and the moments: one run of those seeds has to have each of them.
HAPPENS = {f"crash_at_{point.replace(' ', '_').replace('-', '_')}": (f"crash at {point}",) for point in POINTS}
HAPPENS |= {"crash_anywhere": (BETWEEN_STEPS,), "power_cut": (UNSYNCED,), "power_cut_all": (UNSYNCED, LOST)}


def _transcript(seed: int, surroundings: dict[str, str]) -> str:
    """Return the transcript of a run in a process of its own."""
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
        (["--seed", "17", "--faults", "kill,nonsense"], "'nonsense' is not one of isolate, "),
        (["--seed", "17", "--workloads", "nonsense"], "'nonsense' is not one of idempotent, "),
        (["--seeds", "5"], "'5' is no A:B"),
    ],
    ids=["a fault", "a workload", "a range"],
)
def test_a_wrong_word_ends_with_the_exit_code_of_wrong_commands(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert parse_options(["--seed", "1", "--faults", "none"]).faults == ()
    assert parse_options(["--seed", "1", "--faults", "kill"]).faults == ("kill",)
    assert list(parse_options(["--seeds", "3:5"]).seeds) == [3, 4]


def _in_pairs(kinds: Iterable[str]) -> list[tuple[str, ...]]:
    """Return pairs of neighbours in the alphabet: they have little to do with each other, except the points of a
    crash."""
    names = sorted(kinds)
    half = (len(names) + 1) // 2
    return [tuple(names[n::half]) for n in range(half)]


def _heals(kinds: tuple[str, ...]) -> None:
    """Try seeds in turn until each fault, and each moment that it waits for, has happened."""
    left = {*kinds, *(moment for kind in kinds for moment in HAPPENS.get(kind, ()))}
    for seed in SEEDS:
        plan = Plan(seed, faults=kinds, workloads=("lone", "churn"), seconds=SECONDS, pace=3.0, segment_bytes=4096)
        result = run(plan)
        assert not result.anomalies, "\n".join([*result.anomalies, f"to replay it: {result.plan.command}"])
        happened = {**result.faults, **result.happened}
        left -= {what for what, times in happened.items() if times > 0}
        if not left:
            return
    raise AssertionError(f"{sorted(left)} did not happen with the seeds of {SEEDS}")


@pytest.mark.parametrize("kinds", _in_pairs(FAULTS), ids="-and-".join)
def test_faults_begin_and_end_and_all_is_well_again(kinds: tuple[str, ...]) -> None:
    """An episode has both faults, and they overlap."""
    _heals(kinds)


@pytest.mark.long  # the pairs above have each fault
@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_fault_begins_and_ends_and_all_is_well_again(kind: str) -> None:
    _heals((kind,))
