"""Mutants fit the code that they change, and leave nothing behind. `make mutants` shows that each is caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.test_reliability_page import PAGE
from tests.test_tidy import ROOT
from tinymq.broker.partition import retention as partition_retention
from tinymq.broker.state import retention, retention_index
from tinymq_chaos.mutants import MUTANTS, REAL, Mutant, Patches
from tinymq_chaos.mutants import __main__ as command
from tinymq_chaos.mutants.mutant import ABSENT
from tinymq_chaos.mutants.plain import catches
from tinymq_chaos.mutants.plain.catches import HEAD, NOT_IN_PLAIN_RUNS, Catch
from tinymq_chaos.sim import __main__ as sim
from tinymq_chaos.sim.campaign.run import Plan, Result

TESTED = [mutant.name for mutant in MUTANTS.values() if mutant.test]
# One of each room. Each costs two runs of pytest and fresh imports; `make mutants` has all of them.
FEW = [
    "clients-are-not-charged",
    "sizes-are-of-the-past",
    "clocks-may-contradict",
    "slow-leaders-are-left-alone",
    "causes-are-forgotten",
    "levels-rise-over-older-members",
]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_can_be_put_in_and_taken_out(mutant: Mutant) -> None:
    with mutant.applied() as patches:
        replaced = patches.replaced
    assert replaced
    for owner, name, before in replaced:
        assert vars(owner).get(name, ABSENT) is before


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_replaces_public_rules(mutant: Mutant) -> None:
    with mutant.applied() as patches:
        replaced = [(_room(owner), name) for owner, name, _ in patches.replaced]
    private = [name for room, name in replaced if name.startswith("_") and name != "__init__"]
    assert private == []


def _room(owner: object) -> str:
    return f"{getattr(owner, '__module__', None) or getattr(owner, '__name__', '')}."


def test_a_function_is_replaced_in_every_module_that_imported_it() -> None:
    patches, original = Patches(), retention.due_start
    patches.replace(retention.due_start, _break)
    assert {partition_retention.due_start, retention.due_start} == {_break}  # type: ignore[attr-defined]
    partition_retention.late = _break  # type: ignore[attr-defined]  # as a module has it that was imported meanwhile
    patches.undo()
    assert {partition_retention.due_start, partition_retention.late, retention.due_start} == {original}  # type: ignore[attr-defined]
    del partition_retention.late  # type: ignore[attr-defined]


def test_a_function_is_replaced_in_some_modules_alone() -> None:
    patches, original = Patches(), retention.due_start
    patches.replace(retention.due_start, _break, within=[partition_retention])
    assert (partition_retention.due_start, retention.due_start) == (_break, original)  # type: ignore[attr-defined]
    patches.undo()
    with pytest.raises(AssertionError, match="has imported"):
        patches.replace(retention.due_start, _break, within=[retention_index])


def test_a_second_mutant_of_a_rule_replaces_the_first() -> None:
    """A broker's entry point compares what the two replace, and refuses them."""
    first, second = MUTANTS["sequences-may-be-skipped"], MUTANTS["duplicates-are-appended"]
    with first.applied() as before, second.applied() as after:
        places = [{(owner, name) for owner, name, _ in patches.replaced} for patches in (before, after)]
    assert places[0] == places[1]


def test_there_are_enough_mutants() -> None:
    """Hazards that the design removes have no mutant: there is no rule to take out."""
    assert len(MUTANTS) >= 30
    hazards = {number for m in MUTANTS.values() for number in m.rule.partition(":")[0].split(", ") if number.isdigit()}
    assert set(range(1, 23)) - {5, 6, 12, 16, 21} <= set(map(int, hazards))


def test_the_page_has_a_row_for_each_mutant_and_its_catch() -> None:
    rows = PAGE.partition("| mutant | seeds | virtual s | caught by |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    told = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    assert sorted(name for name, *_ in told) == sorted(MUTANTS)
    by = {name: caught.strip("`") for name, _, _, caught in told}
    named = {name: mutant.test.removeprefix("tests/") for name, mutant in MUTANTS.items() if mutant.test}
    assert {name: by[name] for name in named} == named
    assert f"all {len(MUTANTS)} of them" in PAGE


def test_a_plain_run_is_one_of_make_sim() -> None:
    options = sim.parse_options([])
    some = next(iter(MUTANTS.values()))
    assert [command.plain_plan(some, seed) for seed in range(20)] == [sim._plan(options, seed) for seed in range(20)]


def test_the_page_has_how_soon_plain_runs_catch_each_mutant() -> None:
    known = catches.load()
    rows = catches.PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0].splitlines()
    assert rows == catches.rows(known, MUTANTS)
    assert {*known, *NOT_IN_PLAIN_RUNS} <= {*MUTANTS}
    assert not {*known} & {*NOT_IN_PLAIN_RUNS}


def test_a_result_is_kept_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    catches.keep("b", Catch(3, 90.2, "lost write: p-1 is not there"), path)
    catches.keep("a", Catch(200, 6000.0, ""), path)
    assert catches.load(path) == {"a": Catch(200, 6000, ""), "b": Catch(3, 90, "lost write")}
    shown = catches.rows(catches.load(path), {"b": Mutant("b", "", _break), "a": Mutant("a", "", _break)})
    assert shown == ["| b | 3 seeds | lost write |", "| a | none in 200 seeds | only by its own plan |"]


def test_mutants_for_real_processes_need_no_simulator() -> None:
    assert [name for name in REAL if MUTANTS[name].needs_simulator or MUTANTS[name].test] == []


@pytest.mark.parametrize("names", [FEW, pytest.param(TESTED, marks=pytest.mark.long)], ids=["a few", "all"])
def test_tests_of_the_suite_catch_mutants_that_no_simulated_run_shows(names: list[str]) -> None:
    """In a process of its own, which runs tests as pytest does, with and without the rules."""
    command = [sys.executable, "-m", "tinymq_chaos.mutants", *names]
    around = os.environ | {"PYTHONPATH": str(ROOT / "chaos"), "PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, timeout=100)
    said = ran.stdout.splitlines()
    assert [line.split()[:3] for line in said[:-1]] == [[name, "caught", "by"] for name in names], ran.stdout
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_few_are_of_several_rooms() -> None:
    tests = [MUTANTS[name].test for name in FEW]
    assert {test.split("/")[1] for test in tests} == {MUTANTS[name].test.split("/")[1] for name in TESTED}
    assert len(TESTED) >= 15


def test_the_tests_that_mutants_name_exist() -> None:
    """A renamed test would leave its rule without a mutant that is tried: only the long run above starts them all."""
    missing = []
    for name in TESTED:
        file, _, function = MUTANTS[name].test.partition("::")
        if f"def {function.partition('[')[0]}(" not in (ROOT / file).read_text():
            missing.append(f"{name}: {MUTANTS[name].test}")
    assert missing == []


def test_a_missing_test_is_an_error() -> None:
    test = "tests/raft/rules/test_automatic_recovery.py::test_that_there_is_none_of"
    look = f"from tinymq_chaos.mutants import suite; suite.failures({test!r})"
    around = os.environ | {"PYTHONPATH": str(ROOT / "chaos")}
    ran = subprocess.run([sys.executable, "-c", look], cwd=ROOT, env=around, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert f"AssertionError: {test} shows nothing:" in ran.stderr


class Product:
    """The part of the product that the mutant below breaks."""

    right = True


def _break(patches: Patches) -> None:
    patches.set(Product, "right", False)


def test_a_catch_counts_only_if_the_same_plan_is_clean_without_the_mutant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(plan: Plan) -> Result:
        """Seed 1 fails by itself, seed 2 shows nothing, and from seed 3 on the mutant shows."""
        found = ["of its own"] if plan.seed == 1 else ["the mutant's"] if plan.seed >= 3 and not Product.right else []
        return Result(plan, found)

    monkeypatch.setattr(command, "run", run)
    caught = command.hunt(Mutant("broken", "", _break), range(1, 9))
    assert (caught.seeds, caught.by) == (3, "the mutant's")
    said = capsys.readouterr().out
    assert said.startswith("broken: no catch")
    assert "make sim SEED=1 " in said
    assert "of its own" in said
    assert not command.hunt(Mutant("broken", "", _break), range(1, 3)).by


def test_an_unknown_name_is_answered_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(MUTANTS))
    assert command.main([name[:-1]]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert said.count("\n") == 1


def test_the_list_has_every_name_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[m.name, m.rule] for m in MUTANTS.values()]
