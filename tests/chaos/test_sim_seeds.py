"""A fixed set of seeds, worth at least 300 virtual seconds: whole brokers and real clients under whatever they draw.

`make test` pins the hashes of strings, so that a seed that fails here fails in `make sim SEED=n`, too.
"""

from __future__ import annotations

import pytest

from tinymq_chaos.sim.run import Plan, run

SEEDS = [(seed, 3) for seed in range(1, 9)] + [(105, 5), (110, 5), (115, 5)]  # (seed, brokers)


@pytest.mark.parametrize(("seed", "nodes"), SEEDS)
def test_a_seed(seed: int, nodes: int) -> None:
    plan = Plan(seed, nodes)
    result = run(plan)
    assert not result.anomalies, "\n".join([*result.anomalies, *result.transcript[-40:], f"replay it: {plan.command}"])
    assert result.virtual_s > 300 / len(SEEDS)
    assert result.records > 10
