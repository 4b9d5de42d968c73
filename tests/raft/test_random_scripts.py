"""Random scenarios: `pytest tests/raft/test_random_scripts.py --scripts 200 -n auto` for more of them.

A failure prints its commands. With a paragraph above them they make a file for `scenarios/`.
"""

from __future__ import annotations

import pytest

from tests.raft.random_script import lived
from tests.raft.test_scenarios import Patch, votes_are_given_twice, whatever_follows_is_cut

STEPS = 150


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--scripts", default=3)))


@pytest.mark.parametrize("count", [3, 5])
def test_random_scripts_lose_nothing_and_the_group_heals(count: int, seed: int) -> None:
    lived(seed, count, STEPS)


@pytest.mark.parametrize("mutant", [votes_are_given_twice, whatever_follows_is_cut])
def test_the_scenario_notices_the_mutant(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="> brokers 3"):
        _lives(range(8))


def _lives(seeds: range) -> None:
    for seed in seeds:
        lived(seed, 3, STEPS)
