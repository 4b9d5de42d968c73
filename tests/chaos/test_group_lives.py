"""Random lives of a stream group: rules 1, 2 and 4 of "What must never happen" (docs/groups.md), and an end to each
rebalance."""

from __future__ import annotations

import pytest

from tests.chaos.group_lives import Life, World, live
from tests.seeds import first_of


def check(world: World) -> None:
    shown = "\n".join([*world.anomalies, *world.transcript[-40:]])
    assert not world.anomalies, f"seed {world.life.seed}:\n{shown}"


@pytest.mark.parametrize("seed", first_of(range(400), 2))
def test_random_lives(seed: int) -> None:
    check(live(Life(seed)))


@pytest.mark.parametrize("seed", first_of(range(200), 1))
def test_random_lives_with_slow_handlers(seed: int) -> None:
    check(live(Life(seed, slow_handlers=True, revoke_ms=1500)))


@pytest.mark.parametrize("seed", first_of(range(200), 1))
def test_random_lives_of_static_members(seed: int) -> None:
    check(live(Life(seed, static=True)))


@pytest.mark.parametrize("seed", first_of(range(200), 1))
def test_the_later_session_of_an_instance_id_ends_the_first(seed: int) -> None:
    check(live(Life(seed, static=True, twins=True)))


@pytest.mark.parametrize("seed", first_of(range(200), 1))
def test_a_coordinator_that_lost_its_newest_changes_goes_on(seed: int) -> None:
    check(live(Life(seed, loses_log=True)))


@pytest.mark.parametrize("seed", first_of(range(100), 1))
def test_failovers_cost_no_rebalance(seed: int) -> None:
    world = live(Life(seed, loses=False, disturbs_members=False, gap_s=(3.0, 6.0), stale_s=0.5))
    check(world)
    joined = {consumer.name: consumer.told for consumer in world.consumers}
    assert [told for each in joined.values() for told in each if told.startswith("lost")] == [], f"seed {seed}"
