"""Random lives of transactions: whatever fails, nothing happens that must never happen, and all of it comes to rest."""

from __future__ import annotations

import pytest

from tests.chaos.transaction_lives import TransactionLife, live


@pytest.mark.parametrize("seed", range(12))
def test_a_random_life_keeps_the_promises(seed: int) -> None:
    life = TransactionLife(seed, coordinators_fail=seed % 4 != 3, leaders_fail=seed % 4 != 2, twins=seed % 3 != 0)
    world = live(life)
    assert not world.anomalies, "\n".join([f"seed {seed}", *world.anomalies, *world.transcript])
    assert world.commits, "no transaction was committed"
