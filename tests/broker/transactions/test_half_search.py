"""Everything that can happen to a small half message, visited: none of it breaks a promise. And without each rule, some
of it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions.half_world import HalfScope, HalfWorld, anomaly, left_over
from tinymq.broker.transactions.half import half_message, half_messages
from tinymq.broker.transactions.half.half_message import HalfMessage
from tinymq.broker.transactions.rules import Refusal
from tinymq.broker.transactions.transactional_id import Phase

SCOPES = {
    "a coordinator that fails": HalfScope(asks=2),
    "a new leader, and a hasty sender": HalfScope(crashes=0, asks=1, elections=1, hasty=True),
}
LONG = {"answers that come again": HalfScope(crashes=0, late=True)}


@pytest.fixture(autouse=True)
def _few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_message, "CHECKS_MAX", 2)


def search(scope: HalfScope) -> Found:
    return state_search.search(HalfWorld(scope), Rules(anomaly, left_over), 60_000)


@pytest.mark.parametrize("name", SCOPES)
def test_no_state_breaks_a_promise(name: str) -> None:
    check(SCOPES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_no_state_of_a_larger_world_breaks_a_promise(name: str) -> None:
    check(LONG[name])


def check(scope: HalfScope) -> None:
    found = search(scope)
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _count_any(half: HalfMessage, number: int, now_us: int) -> HalfMessage | Refusal:
    return _count(half, half.checks, now_us)


def _end_again(half: HalfMessage, *, commit: bool, held: int | None) -> HalfMessage | Refusal:
    return _end(replace(half, phase=Phase.OPEN), commit=commit, held=held)


def _impatient(half: HalfMessage, now_us: int) -> bool:
    return half.is_open and now_us >= half.due_us


_count, _end = half_message.count, half_message.end


def changed(*which: tuple[Any, str, Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, name, new in which:
            monkeypatch.setattr(owner, name, new)

    return patch


WITHOUT: dict[str, tuple[HalfScope, Patch, str]] = {
    "an answer counts for its own check": (
        HalfScope(crashes=0, late=True), changed((half_messages, "count", _count_any)),
        "dropped before its schedule is over",
    ),
    "a check without an answer does not count": (
        HalfScope(crashes=0), changed((half_message, "is_given_up", _impatient)), "dropped before its schedule is over",
    ),
    "a decision stands": (
        HalfScope(crashes=0, late=True, hasty=True, elections=1), changed((half_messages, "end", _end_again)),
        "different outcomes",
    ),
    "what the partition holds is counted before the decision": (
        HalfScope(crashes=0, asks=0, hasty=True), changed((half_message, "is_whole", lambda expected, held: True)),
        "a committed message is not visible",
    ),
    "a late answer that the batch is staged does not count": (
        HalfScope(crashes=0, asks=0, patient=True), changed(), "dropped before its schedule is over",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, expected = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope)
    assert found.anomaly, str(found)
    assert expected in found.anomaly, str(found)
