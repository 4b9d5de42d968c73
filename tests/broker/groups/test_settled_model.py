"""The answer to an ack whose own answer was lost: each rule is needed, and together they are enough."""

from __future__ import annotations

import pytest

from tests.broker.groups.settled_model import RULES, Grant, Held, Rule, State, Worker, explore

FIRST = Grant(1, 1, 1)
START = State(lease=(0, FIRST), grants=1, workers=(Worker(1, True, 1, Held(FIRST)), Worker(1, True, 1)))
FAILOVER = START._replace(failovers=1, cuts=0, seeks=0)
SEEK = START._replace(failovers=0, cuts=1, seeks=1)


def test_no_worker_takes_anything_else_for_an_answer() -> None:
    states, steps = explore(RULES, SEEK)
    assert steps == []
    assert states > 20_000


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        FAILOVER,
        FAILOVER._replace(cuts=1),
        FAILOVER._replace(seeks=1),
        FAILOVER._replace(cuts=1, seeks=1),
    ],
)
def test_nor_in_larger_worlds(start: State) -> None:
    states, steps = explore(RULES, start, states_max=5_000_000)
    assert steps == []
    assert states > 20_000


@pytest.mark.parametrize(
    ("rule", "start", "wrong"),
    [
        (Rule.APPLIED, SEEK, "was never settled"),
        (Rule.SAME_ERA, SEEK, "was never settled"),
        pytest.param(Rule.ACKS, FAILOVER, "its nack does not count", marks=pytest.mark.long),
        (Rule.THAT_LEASE, FAILOVER, "handles it still"),
    ],
)
def test_each_rule_is_needed(rule: Rule, start: State, wrong: str) -> None:
    _, steps = explore(RULES - {rule}, start)
    assert wrong in steps[-1], "; ".join(steps)
