"""The table of faults and the actions of each tier agree: a row has its actions, and an action its row."""

from __future__ import annotations

from tests.raft import faults as replicas
from tinymq_chaos.faults import FAULTS, Real, Simulated
from tinymq_chaos.real.faults import FAULTS as REAL_FAULTS
from tinymq_chaos.real.faults.kind import ACTIONS as REAL_ACTIONS
from tinymq_chaos.sim.faults import FAULTS as SIMULATED_FAULTS
from tinymq_chaos.sim.faults.action import ACTIONS as SIMULATED_ACTIONS

TIERS = ("simulated", "real", "replicas")


def test_the_simulator_has_an_action_for_each_of_its_rows() -> None:
    rows = {name for name, row in FAULTS.items() if isinstance(row.simulated, Simulated)}
    assert rows == {*SIMULATED_ACTIONS}
    assert rows <= {*SIMULATED_FAULTS}, "the others are variants of rows"
    assert all(fault.drawn.weight == 0 for name, fault in SIMULATED_FAULTS.items() if name not in rows)


def test_the_harness_of_real_processes_has_an_action_for_each_of_its_rows() -> None:
    rows = [name for name, row in FAULTS.items() if isinstance(row.real, Real)]
    assert {*rows} == {*REAL_ACTIONS}
    assert rows == [*REAL_FAULTS], "it does each once, in the order of the table"


def test_the_storms_of_replicas_have_an_action_for_each_of_their_rows() -> None:
    rows = {name for name, row in FAULTS.items() if isinstance(row.replicas, int)}
    assert rows == {action.__name__ for action in replicas.ACTIONS} - {"heal"}


def test_each_fault_has_a_tier_and_each_tier_without_it_has_a_reason() -> None:
    for name, row in FAULTS.items():
        reasons = [reason for tier in TIERS if isinstance(reason := getattr(row, tier), str)]
        assert len(reasons) < len(TIERS), name
        assert all(reasons), name


def test_a_reason_of_one_word_is_a_row_that_the_tier_does() -> None:
    for name, row in FAULTS.items():
        for tier in TIERS:
            reason = getattr(row, tier)
            if isinstance(reason, str) and " " not in reason:
                assert not isinstance(getattr(FAULTS[reason], tier), str), f"{name}: the tier does not do {reason}"
