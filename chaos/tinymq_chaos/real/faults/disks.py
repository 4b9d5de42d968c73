"""Faults of disks: full, slow, failing, without power. They are asked for by the brokers' own disks (real/disks.py).

Whoever may have refused a write, or failed a sync, is started again when the fault is over: a replica that its disk let
down stays so until then, and a broker that can do nothing without its disk has ended by itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, cast

from tinymq.log.layout import INDEX
from tinymq_chaos.real.disk_control import DiskControl, Look
from tinymq_chaos.real.faults.chosen import ANYONE, LEADER, one, up
from tinymq_chaos.real.faults.kind import ANYBODY, Kind, Parameters, Stage
from tinymq_chaos.real.faults.processes import named
from tinymq_chaos.real.power import Loss, Remains

WHEN = ("in the middle of a write", "in the middle of a sync", "at once")  # power is cut
WEIGHTS = (
    0.45,
    0.45,
    0.1,
)  # what is written is synced within a millisecond: at any moment hardly anything could be lost
OPERATIONS_MAX = 6  # of its disk, from a write to that moment
WRITTEN_BYTES_MAX = 2048
PATIENCE_S = 2.0  # for an idle one to do something to its disk
SYNC_S = 60.0  # a sync that power is cut in: longer than anybody waits
HANGING_S_MAX = 0.3
POLL_S = 0.001
POWER = "power cut"
KILL = "kill"


class Disked(Protocol):
    """The stage of a cluster whose disks obey."""

    def disk(self, broker: int) -> DiskControl: ...


def asked(stage: Stage, broker: int, ask: Callable[[DiskControl], Look]) -> bool:
    """Whether its disk heard it: one that has just been started, or is gone, does not."""
    try:
        ask(cast(Disked, stage).disk(broker))
    except ConnectionError:
        return False
    return True


def slow_sync(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """Each sync takes so much longer; many seconds are a disk that hangs until the fault is over."""
    broker, seconds, pattern = one(stage, rng, how), float(how["seconds"]), str(how["pattern"])
    if broker is None or not asked(stage, broker, lambda disk: disk.slow_sync(seconds, pattern)):
        yield None
        return
    yield f"of broker {broker}: {seconds:g} s more for {pattern}"
    asked(stage, broker, lambda disk: disk.mend("slow_sync"))


def disk_full(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    broker, left = one(stage, rng, how), int(how["bytes_left"])
    if broker is None or not asked(stage, broker, lambda disk: disk.disk_full(left)):
        yield None
        return
    yield f"of broker {broker}: {left} bytes are left"
    _again(stage, broker, rng, KILL)


def fail_sync(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """EIO, for as long as the fault lasts. What such a sync did not write never will be: it is gone if power goes."""
    broker, pattern = one(stage, rng, how), str(how["pattern"])
    if broker is None or not asked(stage, broker, lambda disk: disk.fail_sync(pattern)):
        yield None
        return
    yield f"of {pattern} at broker {broker}, then {how['then']}"
    _again(stage, broker, rng, str(how["then"]))


def read_error(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """EIO from whatever is read of its logs. It is started again at once, so that it has to read."""
    broker = int(how["broker"])
    with stage.alone(broker):
        stage.kill(broker)
        stage.start(broker)
        until_s = time.monotonic() + 10 * PATIENCE_S
        while not (heard := asked(stage, broker, lambda disk: disk.fail_read("groups/*"))):
            if time.monotonic() > until_s or not stage.running(broker):
                break
            time.sleep(POLL_S)
    if not heard:
        yield None
        return
    yield f"at broker {broker}"
    _again(stage, broker, rng, KILL)


def _again(stage: Stage, broker: int, rng: random.Random, how: str) -> None:
    """It ends, if it has not ended by itself, and starts."""
    with stage.alone(broker):
        stage.kill(broker)
        if how == POWER:
            lose_power(stage, [broker], rng)
        stage.start(broker)


def power_cut(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    broker = one(stage, rng, how)
    return _without_power(stage, rng, [broker] if broker is not None else [])


def power_cut_all(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """Of all at one moment."""
    return _without_power(stage, rng, up(stage))


def _without_power(stage: Stage, rng: random.Random, brokers: list[int]) -> Iterator[str | None]:
    if not brokers:
        yield None
        return
    (when,) = rng.choices(WHEN, WEIGHTS)
    with stage.alone(*brokers):
        if not (when == WHEN[0] and die_at_write(stage, rng, brokers)) and not (
            when == WHEN[1] and syncing(stage, rng, brokers)
        ):
            when = "at once"
        stage.kill(*brokers)
        losses = lose_power(stage, brokers, rng)
    yield f"{named(brokers)}, {when}: {'; '.join(map(str, losses))}"
    stage.start(*brokers)


def die_at_write(stage: Stage, rng: random.Random, brokers: list[int], pattern: str = "write *") -> bool:
    """Whether one of them ended so; the others are to be killed at once."""
    first, operations = rng.choice(brokers), rng.randrange(OPERATIONS_MAX)
    written = rng.randrange(WRITTEN_BYTES_MAX)
    if not asked(stage, first, lambda disk: disk.die_at(pattern, operations=operations, bytes_written=written)):
        return False
    until_s = time.monotonic() + PATIENCE_S
    while stage.running(first):
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)
    stage.tell(f"broker {first} is killed")
    return True


def syncing(stage: Stage, rng: random.Random, brokers: list[int]) -> bool:
    """Whether one of them is in the middle of a sync now, of which nobody comes to the end; for a while already, so
    that others have had the time to begin theirs, and to say what they should not say before."""
    heard = [broker for broker in brokers if asked(stage, broker, lambda disk: disk.slow_sync(SYNC_S))]
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        for broker in heard:
            with suppress(ConnectionError):
                files = cast(Disked, stage).disk(broker).look().files
                if not all(path.endswith(INDEX) for path in files):  # which nobody waits for
                    time.sleep(rng.uniform(0.0, HANGING_S_MAX))
                    return True
        time.sleep(POLL_S)
    return False


def lose_power(stage: Stage, brokers: list[int], rng: random.Random) -> list[Loss]:
    """What was not synced, of brokers that are dead already."""
    losses = []
    for broker in brokers:
        losses.append(Remains(stage.data(broker)).lose(random.Random(rng.random())))
        stage.tell(f"broker {broker} loses power")
    return losses


DISKS = frozenset({"disks"})
KINDS: dict[str, Kind] = {
    "slow_sync": Kind(
        slow_sync, "disk", (3.0, 1.0, 6.0),
        {"broker": (ANYBODY,), "who": (LEADER, ANYONE), "seconds": (0.1, 0.02, 0.4, 60.0),
         "pattern": ("*", "groups/*")}, needs=DISKS,
    ),
    "disk_full": Kind(
        disk_full, "disk", (2.0, 1.0, 4.0),
        {"broker": (ANYBODY,), "who": (LEADER, ANYONE), "bytes_left": (0.0, 30_000.0)}, needs=DISKS,
    ),
    "fail_sync": Kind(
        fail_sync, "disk", (1.0, 0.2, 3.0),
        {"broker": (ANYBODY,), "who": (LEADER, ANYONE), "pattern": ("groups/*", "*", "ballots-*", "marks"),
         "then": (POWER, KILL)}, needs=DISKS, forgets=True,
    ),
    "read_error": Kind(read_error, "disk", (2.0, 1.0), {"broker": (ANYBODY,)}, needs=DISKS, damages=True, scars=True),
    "power_cut": Kind(power_cut, "disk", (1.0, 0.0, 3.0), {"broker": (ANYBODY,), "who": (LEADER, ANYONE)}, needs=DISKS),
    "power_cut_all": Kind(power_cut_all, "disk", (1.0, 0.0, 2.0), needs=DISKS),
}  # fmt: skip
