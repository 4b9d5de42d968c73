"""What plain runs draw, the schedule of faults, and how a failure is reduced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinymq_chaos import workloads
from tinymq_chaos.sim.campaign import draws
from tinymq_chaos.sim.campaign.plan import Plan
from tinymq_chaos.sim.campaign.reduce import reduced
from tinymq_chaos.sim.campaign.run import Result
from tinymq_chaos.sim.campaign.storm import Act, schedule
from tinymq_chaos.sim.faults import DAMAGE, FAULTS

PAGE = Path(draws.__file__).parents[1] / "README.md"
SEEDS = range(600)
KINDS = ("kill", "isolate", "one_way")


def plain(seed: int) -> Plan:
    return draws.filled(Plan(seed, draws.BROKERS.of(seed)))


def test_the_page_shows_the_table_of_the_code() -> None:
    assert draws.page() in PAGE.read_text()


@pytest.mark.parametrize("draw", draws.TABLE, ids=lambda draw: draw.name)
def test_every_value_is_drawn(draw: draws.Draw) -> None:
    assert {draw.of(seed) for seed in SEEDS} == {value for value, _ in draw.odds}


def test_every_fault_with_a_weight_and_every_workload_is_drawn() -> None:
    plans = [plain(seed) for seed in SEEDS]
    weighed = {name for name, fault in FAULTS.items() if fault.drawn.weight}
    assert {name for plan in plans for name in plan.faults or ()} == weighed
    assert {name for plan in plans for name in plan.workloads} == {*workloads.WORKLOADS} - workloads.NAMED


def test_a_filled_plan_leaves_nothing_open_and_is_its_own() -> None:
    for seed in SEEDS[:50]:
        plan = plain(seed)
        assert None not in (plan.faults, plan.replicas, plan.pace, plan.gap_s, plan.client_bytes_per_s)
        assert plan.workloads
        assert draws.filled(plan) == plan


def test_draws_keep_within_the_promises() -> None:
    for seed in SEEDS:
        plan = plain(seed)
        assert plan.faults is not None
        assert plan.replicas is not None
        weak = bool(workloads.WEAK & {*plan.workloads})
        damages = bool(DAMAGE & {*plan.faults})
        assert not (damages and (weak or plan.nodes < 3 or plan.replicas < 3)), plan.command
        assert plan.replicas <= plan.nodes
        assert all(FAULTS[name].drawn.brokers_min <= plan.nodes for name in plan.faults), plan.command
        assert not (workloads.OF_THREE & {*plan.workloads} and plan.nodes < 3), plan.command


def test_a_narrowed_plan_keeps_the_usual_replicas_gaps_and_quotas() -> None:
    for seed in SEEDS[:50]:
        plan = draws.filled(Plan(seed, 5, workloads=("lone",), faults=("kill",)))
        assert (plan.workloads, plan.faults, plan.replicas) == (("lone",), ("kill",), 3)
        assert (plan.gap_s, plan.client_bytes_per_s) == (0.7, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_shorter_storm_has_the_same_faults_as_far_as_it_goes(seed: int) -> None:
    whole, short = schedule(seed, KINDS, 0.7, 22.0), schedule(seed, KINDS, 0.7, 12.0)
    assert [act.number for act in whole] == list(range(len(whole)))
    assert short == [Act(a.number, a.kind, a.begins_s, min(a.ends_s, 12.0)) for a in whole if a.begins_s < 12.0]
    assert all(0 <= act.begins_s <= act.ends_s <= 22.0 for act in whole)
    assert whole
    assert schedule(seed, (), 0.7, 22.0) == []


def failing(plan: Plan) -> Result:
    """Run a plan that fails if faults 2 and 5 happen beside `lone`, and by a gap if fault 3 happens, too."""
    acts = [act.number for act in schedule(plan.seed, KINDS, 0.7, plan.seconds - 8.0)]
    begun = [number for number in acts if plan.acts is None or number in plan.acts]
    fails = {2, 5} <= {*begun} and "lone" in plan.workloads
    anomalies = [*(["lost write: p-0"] if fails else []), *(["gap: 3"] if fails and 3 in begun else [])]
    return Result(plan, anomalies, begun=begun)


def test_a_failure_is_reduced_to_the_parts_that_it_needs() -> None:
    first = failing(Plan(1, 5, faults=KINDS, workloads=("lone", "churn"), gap_s=0.7, replicas=4, client_bytes_per_s=9))
    assert len(first.begun) > 6
    shortest = reduced(first, runs=failing)
    assert shortest.anomalies == ["lost write: p-0"]
    plan = shortest.plan
    assert plan.acts == (2, 5)
    assert (plan.nodes, plan.replicas, plan.client_bytes_per_s, plan.workloads) == (3, 3, 0, ("lone",))
    assert plan.seconds < 30.0
    assert re.fullmatch(
        r"make sim SEED=1 BROKERS=3 RUN_S=[\d.]+ WORKLOADS=lone FAULTS=kill,isolate,one_way ACTS=2,5"
        r" REPLICAS=3 GAP_S=0.7 QUOTA=0",
        plan.command,
    )


def test_a_reduction_ends_with_its_time() -> None:
    first = failing(Plan(1, faults=KINDS, workloads=("lone", "churn"), gap_s=0.7))
    assert reduced(first, 0.0, runs=failing) is first
