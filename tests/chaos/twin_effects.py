"""The effects of a second process with the number of a broker."""

from __future__ import annotations

from tests.chaos.worlds import begun, numbers
from tinymq.rpc.common.broker_state import BrokerState
from tinymq_chaos.sim.observers.replicas import watched
from tinymq_chaos.sim.world.world import World

LIVES_S = 2.0


async def starts_twice(world: World) -> None:
    with watched(world):
        await _refused(world)
        await _joins_once_the_first_is_gone(world)


async def _refused(world: World) -> None:
    """A copy is refused with words."""
    words, fault = begun(world, "twin", "on a copy of its disk")
    first = world.brokers[numbers(words)[0]]
    second = first.twin
    assert second is not None
    assert second.span is not None
    await world.clock.sleep(LIVES_S)
    assert second.app.state is BrokerState.RUNNING
    assert not second.span.let_in
    assert any("another process of broker" in reason for reason in second.span.told)
    assert not world.unhealthy()
    next(fault, None)
    assert not second.up


async def _joins_once_the_first_is_gone(world: World) -> None:
    """A second broker with an empty disk does not join, and replaces one that the others do not hear."""
    words, fault = begun(world, "twin", "on an empty disk")
    first = world.brokers[numbers(words)[0]]
    second = first.twin
    assert second is not None
    assert second.span is not None
    await world.clock.sleep(LIVES_S)
    assert second.app.state is BrokerState.UNFORMED
    assert "alive with another data directory" in second.app.reason
    assert not world.unhealthy()
    world.pause(first)
    await world.clock.sleep(LIVES_S)
    assert second.app.state is BrokerState.RUNNING
    assert {*second.span.let_in} == {*world.brokers} - {first.id}
    world.resume(first.process)
    next(fault, None)
    assert await world.healthy(20.0) == ""
