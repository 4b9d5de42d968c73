"""Acks in transactions, as designed: every state of a small world, with all rules, and without each of them."""

from __future__ import annotations

from functools import partial

import pytest

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions.ack_world import AckScope, AckWorld, Rule, anomaly, left_over

SCOPES = {"a lease ends": AckScope(begins=1, expiries=2), "a worker dies": AckScope(begins=1, deaths=1)}
LONG = {
    "a lease ends": AckScope(),
    "a leader changes": AckScope(expiries=0, elections=1),
    "a worker dies": AckScope(expiries=0, deaths=1),
}
WITHOUT = {
    Rule.ONE_ACK: (AckScope(), "twice"),
    Rule.REPLICATED: (AckScope(elections=1), "twice"),
    Rule.FREED: (AckScope(deaths=1), "lost"),
    Rule.SETTLED: (AckScope(), "twice"),
    Rule.COUNTED: (AckScope(), "twice"),
    Rule.ENDED: (AckScope(deaths=1), "for ever"),
}


def search(scope: AckScope) -> Found:
    return state_search.search(AckWorld(scope), Rules(anomaly, partial(left_over, scope)), 100_000)


@pytest.mark.parametrize("name", SCOPES)
def test_no_job_is_handled_twice_or_lost(name: str) -> None:
    check(SCOPES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_no_job_of_a_larger_world_is_handled_twice_or_lost(name: str) -> None:
    check(LONG[name])


def check(scope: AckScope) -> None:
    found = search(scope)
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.parametrize("rule", Rule)
def test_each_rule_is_needed(rule: Rule) -> None:
    scope, expected = WITHOUT[rule]
    found = search(AckScope(frozenset({rule}), scope.expiries, scope.elections, scope.deaths, scope.begins))
    assert found.anomaly, "no path needs it"
    assert expected in found.anomaly, str(found)
