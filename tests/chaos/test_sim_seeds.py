"""A fixed set of seeds: whole brokers and real clients under whatever they draw.

`make test` runs four of them; `make test-long` has the others, worth 200 virtual seconds more.

`make test` pins the hashes of strings, so that a seed that fails here fails in `make sim SEED=n`, too.
"""

from __future__ import annotations

import pytest

from tinymq_chaos.sim.campaign.run import Plan, run

SEEDS = [(2, 3), (4, 3), (7, 3), (105, 5)]  # (seed, brokers)
MORE = [(1, 3), (3, 3), (5, 3), (6, 3), (8, 3), (110, 5), (115, 5)]  # more of them: long
VIRTUAL_S_MIN = 27.0


@pytest.mark.parametrize(("seed", "nodes"), [*SEEDS, *(pytest.param(*seed, marks=pytest.mark.long) for seed in MORE)])
def test_a_seed(seed: int, nodes: int) -> None:
    plan = Plan(seed, nodes)
    result = run(plan)
    assert not result.anomalies, "\n".join([*result.anomalies, *result.transcript[-40:], f"replay it: {plan.command}"])
    assert result.virtual_s > VIRTUAL_S_MIN
    assert result.records > 10
