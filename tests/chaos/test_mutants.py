"""Mutants still fit the code that they change, and leave nothing behind. That each is caught shows `make mutants`."""

from __future__ import annotations

import pytest

from tinymq_chaos.mutants import MUTANTS, Mutant
from tinymq_chaos.mutants.mutant import ABSENT


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_can_be_put_in_and_taken_out(mutant: Mutant) -> None:
    with mutant.applied() as patches:
        replaced = patches.replaced
    assert replaced
    for owner, name, before in replaced:
        assert vars(owner).get(name, ABSENT) is before


def test_there_are_enough_of_them() -> None:
    """Hazards that vanish by replacement have none: what they were is not there to be taken out."""
    assert len(MUTANTS) >= 30
    hazards = {number for m in MUTANTS.values() for number in m.rule.partition(":")[0].split(", ") if number.isdigit()}
    assert set(range(1, 23)) - {5, 6, 12, 16, 21} <= set(map(int, hazards))
