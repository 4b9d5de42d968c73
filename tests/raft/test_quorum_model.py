"""Automatic quorum recovery against the model: settings, power cuts, faults and returning disks in any order."""

from __future__ import annotations

import random

import pytest

from tests.raft.quorum_model import Group

STEPS = 120


@pytest.mark.parametrize("part", range(2))
def test_without_faults_a_group_always_goes_on_and_keeps_entries_synced_by_a_majority(part: int) -> None:
    """`Group` asserts the second half at every election and recovery."""
    recovered = 0
    for seed in range(part, 240, 2):
        group = Group(random.Random(seed), faults=False)
        for _ in range(STEPS):
            group.step()
        assert group.settle(), f"seed {seed}: the group cannot continue"
        recovered += group.recovered
    assert recovered > 20, "the model reached the case under test"


def test_with_faults_entries_synced_by_a_majority_are_kept_or_the_group_waits() -> None:
    recovered = waiting = 0
    for seed in range(240):
        group = Group(random.Random(seed))
        for _ in range(STEPS):
            group.step()
        waiting += not group.settle()
        recovered += group.recovered
    assert recovered > 20
    assert waiting > 20
