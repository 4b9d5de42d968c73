"""docs/raft.md names every module of the room and every scenario, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "raft.md").read_text()
HERE = Path(__file__).parent
TESTS = {path.stem: path for path in HERE.rglob("test_*.py")}  # of the room


HAZARDS = "| # | stock PySyncObj | here | where | test (`tests/raft/`) |"


def _table(heading: str) -> list[list[str]]:
    """Return the cells of each row of the table under `heading`, without the line of dashes."""
    rows = PAGE.partition(f"{heading}\n")[2].partition("\n\n")[0].splitlines()
    assert rows, heading
    return [row.strip("|").split("|") for row in rows[1:]]


def _names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_table_of_modules_names_each_of_them_once() -> None:
    named = [name for modules, *_ in _table("| module of `tinymq/raft/` | what it is |") for name in _names(modules)]
    there = {path.stem for path in (ROOT / "tinymq" / "raft").rglob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(there)


def test_the_table_of_scenarios_names_each_of_them_once() -> None:
    named = [name for _, scenarios in _table("| hazard | scenarios |") for name in _names(scenarios)]
    assert sorted(named) == sorted(path.stem for path in (HERE / "scenarios").glob("*.txt"))


def test_the_tests_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)", PAGE))
    assert {name for name in named if name not in TESTS} == set()
    assert len(named) > 20
    functions = re.findall(r"`(test_\w+)\.(test_\w+)`", PAGE)
    assert functions
    assert not [f for module, f in functions if f"def {f}(" not in TESTS[module].read_text()]


def test_the_code_that_closes_a_hazard_is_where_the_page_says() -> None:
    named = [found for row in _table(HAZARDS) for found in re.findall(r"`(\w+)\.(\w+)`", row[3])]
    sources = {path.stem: path.read_text() for path in (ROOT / "tinymq" / "raft").rglob("*.py")}
    assert len(named) > 10
    assert not [f"{m}.{n}" for m, n in named if not re.search(rf"(def|class) {n}\b", sources[m])]


def test_the_modules_that_close_a_hazard_are_there() -> None:
    missing = []
    for number, _, _, where, *_ in _table(HAZARDS):
        names = [name for name in re.findall(r"`([\w./]+)`", where) if not (ROOT / name).is_file()]
        missing += [(number.strip(), name) for name in names if not _is_module(name)]
    assert missing == []


def _is_module(name: str) -> bool:
    """Is `name` a module of the room, `log/module`, or the package of another room?"""
    room, _, module = name.rpartition("/")
    if not module or (ROOT / "tinymq" / name).is_dir():
        return (ROOT / "tinymq" / name).is_dir()
    return any((ROOT / "tinymq" / (room or "raft")).rglob(f"{module.partition('.')[0]}.py"))


def test_the_scenarios_that_show_a_hazard_are_there() -> None:
    cells = [row[4] for row in _table(HAZARDS)]
    named = [name for cell in cells for name in re.findall(r"`(?:scenarios/)?([a-z]\w+)`", cell)]
    shown = [name for name in named if not name.startswith("test_")]
    assert len(shown) > 3
    assert [name for name in shown if not (HERE / "scenarios" / f"{name}.txt").exists()] == []
