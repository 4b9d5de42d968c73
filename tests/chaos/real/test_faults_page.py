"""The page of the harness has every fault with its parameters."""

from __future__ import annotations

import re

from tests.chaos.real.test_judging import PAGE
from tinymq_chaos.mutants import REAL
from tinymq_chaos.real.__main__ import fault_line
from tinymq_chaos.real.faults import FAULTS
from tinymq_chaos.real.mutant_runs import FOCUS


def cells(head: str) -> list[list[str]]:
    """Return the rows of the table with this head."""
    rows = PAGE.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in rows]


def test_the_table_of_faults_is_the_codes() -> None:
    shown = cells("| kind | lasts | parameters | what is done | what it does not test |")
    said = [" ".join([name, kind.family, lasts, how.replace("–", "")]).split() for (name, lasts, how, *_), kind
            in zip(shown, FAULTS.values(), strict=True)]  # fmt: skip
    assert said == [fault_line(name, kind).split() for name, kind in FAULTS.items()]
    assert all(what and gap for *_, what, gap in shown)


def test_the_table_of_mutants_is_the_codes() -> None:
    shown = cells("| mutant | what is out | fault | has to show as |")
    assert [name for name, *_ in shown] == [*REAL]
    for name, *_, shows in shown:
        assert {each.strip() for each in re.split(",", shows)} == {str(kind) for kind in FOCUS[name].shows}
