"""A second process with the number of a broker that runs: it was started twice, on an empty or a copied data directory.

With an empty directory, the second broker may take the place of the first one as soon as the others do not hear that:
that is how a disk is replaced. A copy must not, because it lacks what the first one has acknowledged since. tinymq
promises to refuse it as long as all brokers hear the first one, so the copy ends when one of them does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tinymq_chaos.broker_changes import TwinSpan
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.damage import victim
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World

COPIED = 0.5  # how often the data directory is a copy
LOOK_S = 0.005
UNHEARD_S = 0.3  # after this silence a broker may soon take the first one for gone


@action
def twin(world: World, rng: random.Random) -> Iterator[str | None]:
    """Start a second process with the id of a broker that runs, on another machine."""
    broker, copied = victim(world, rng), rng.random() < COPIED
    if broker is None or broker.unhealthy() or (copied and not _all_hear(world, broker)):
        yield None
        return
    second = world.add_twin(broker)
    second.damaged = second.tampered = True
    if copied:
        second.files = broker.files.copied(random.Random(rng.random()))
        _end_once_unheard(world, broker, second)
    else:
        broker.damaged = broker.tampered = True  # the second one may take its place
    second.span = TwinSpan(broker.id, copied, world.loop.time())
    world.history.twins.append(second.span)
    second.start()
    yield f"broker {broker.id} once more, {'on a copy of its disk' if copied else 'on an empty disk'}"
    _end(second)
    broker.twin = None


def _end(second: SimBroker) -> None:
    second.wanted = False
    second.kill()
    if second.span is not None and second.span.until_s is None:
        second.span.until_s = second.world.loop.time()


def _all_hear(world: World, broker: SimBroker) -> bool:
    """Return whether every other broker runs, and has heard this one lately."""
    others = [other for other in world.brokers.values() if other is not broker]
    return broker.running and all(
        other.running and other.app.host.failure_detector.silence_s(broker.id, other.clock.monotonic()) < UNHEARD_S
        for other in others
    )


def _end_once_unheard(world: World, broker: SimBroker, second: SimBroker) -> None:
    if broker.twin is not second:
        return
    if _all_hear(world, broker):
        world.clock.call_later(LOOK_S, lambda: _end_once_unheard(world, broker, second))
    else:
        _end(second)
