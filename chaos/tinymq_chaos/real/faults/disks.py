"""Faults of disks: full, slow, failing, without power. They are asked for by the brokers' own disks (real/disks.py).

Whoever may have refused a write, or failed a sync, is started again when the fault is over: a replica that its disk let
down stays so until then, and a broker that can do nothing without its disk has ended by itself.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from tinymq.log.files.layout import INDEX
from tinymq_chaos.faults import KILL, POWER
from tinymq_chaos.real.disks.disk_control import DiskControl, DiskState
from tinymq_chaos.real.disks.disk_faults import READS_FAILED, SYNCS_DELAYED, SYNCS_FAILED, WRITES_REFUSED
from tinymq_chaos.real.disks.power_cut import DeadDirectory, PowerCutLoss
from tinymq_chaos.real.faults.kind import Doing, Parameters, Stage, action
from tinymq_chaos.real.faults.processes import gone, named
from tinymq_chaos.real.faults.victims import one, up

WHEN = ("in the middle of a write", "in the middle of a sync", "at once")  # power is cut
WEIGHTS = (0.45, 0.45, 0.1)  # what is written is synced within a millisecond: at any moment hardly anything is at stake
OPERATIONS_MAX = 6  # of its disk, from a write to that moment
WRITTEN_BYTES_MAX = 2048
PATIENCE_S = 2.0  # for an idle one to do something to its disk
SYNC_S = 60.0  # a sync that power is cut in: longer than anybody waits
HANGING_S_MAX = 0.3
POLL_S = 0.001
SERVES_POLL_S = 0.05
SERVES_S_MAX = 15.0  # for brokers that were started just now


class DiskStage(Protocol):
    """The stage of a cluster whose disks obey."""

    def disk(self, broker: int) -> DiskControl: ...


def asked(stage: Stage, broker: int, ask: Callable[[DiskControl], DiskState]) -> bool:
    """Whether its disk heard it: one that has just been started, or is gone, does not."""
    try:
        ask(cast(DiskStage, stage).disk(broker))
    except ConnectionError:
        return False
    return True


def counts(stage: Stage, broker: int) -> Counter[str]:
    """What faults of its disk did since its process began; which may have ended."""
    return cast(DiskStage, stage).disk(broker).counts()


def since(stage: Stage, broker: int, before: Counter[str], what: str) -> str:
    """How much more of it there is now, as an effect. An idle broker is given the time to do something to its disk."""
    until_s = time.monotonic() + 5 * PATIENCE_S
    while True:
        after = counts(stage, broker)
        more = after[what] - before[what] if after[what] >= before[what] else after[what]  # it was started in between
        if more or time.monotonic() > until_s or not stage.running(broker):
            return f"{more} {what}" if more else ""
        time.sleep(SERVES_POLL_S)


def told(stage: Stage, broker: int | None, ask: Callable[[DiskControl], DiskState]) -> Counter[str] | None:
    """What faults of this broker's disk had done until it was told of another one. None: there is nobody, or it did
    not hear."""
    if broker is None:
        return None
    before = counts(stage, broker)
    return before if asked(stage, broker, ask) else None


@action
def slow_sync(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Each sync takes so much longer; many seconds are a disk that hangs until the fault is over."""
    broker, seconds, pattern = one(stage, rng, how), float(how["seconds"]), str(how["pattern"])
    before = told(stage, broker, lambda disk: disk.slow_sync(seconds, pattern))
    if broker is None or before is None:
        yield None
        return None
    yield f"of broker {broker}: {seconds:g} s more for {pattern}"
    effect = since(stage, broker, before, SYNCS_DELAYED)
    asked(stage, broker, lambda disk: disk.mend("slow_sync"))
    return effect


@action
def disk_full(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker, left = one(stage, rng, how), int(how["bytes_left"])
    before = told(stage, broker, lambda disk: disk.disk_full(left))
    if broker is None or before is None:
        yield None
        return None
    yield f"of broker {broker}: {left} bytes are left"
    effect = since(stage, broker, before, WRITES_REFUSED)
    _again(stage, broker, rng, KILL)
    return effect


@action
def fail_sync(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """EIO, for as long as the fault lasts. What such a sync did not write never will be: it is gone if power goes."""
    broker, pattern = one(stage, rng, how), str(how["pattern"])
    before = told(stage, broker, lambda disk: disk.fail_sync(pattern))
    if broker is None or before is None:
        yield None
        return None
    yield f"of {pattern} at broker {broker}, then {how['then']}"
    effect = since(stage, broker, before, SYNCS_FAILED)
    losses = _again(stage, broker, rng, str(how["then"]))
    return "; ".join([effect, *map(str, losses)]) if effect else ""


@action
def read_error(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
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
        return None
    yield f"at broker {broker}"
    effect = since(stage, broker, Counter(), READS_FAILED)
    _again(stage, broker, rng, KILL)
    return effect


def _again(stage: Stage, broker: int, rng: random.Random, how: str) -> list[PowerCutLoss]:
    """It ends, if it has not ended by itself, and starts."""
    with stage.alone(broker):
        stage.kill(broker)
        losses = lose_power(stage, [broker], rng) if how == POWER else []
        stage.start(broker)
    return losses


@action
def power_cut(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker = one(stage, rng, how)
    return _without_power(stage, rng, [broker] if broker is not None else [])


@action
def power_cut_all(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Of all at one moment."""
    return _without_power(stage, rng, up(stage))


def _without_power(stage: Stage, rng: random.Random, brokers: list[int]) -> Doing:
    if not brokers:
        yield None
        return None
    until_serving(stage, brokers)
    (when,) = rng.choices(WHEN, WEIGHTS)
    with stage.alone(*brokers):
        if not (when == WHEN[0] and die_at_write(stage, rng, brokers)) and not (
            when == WHEN[1] and syncing(stage, rng, brokers)
        ):
            when = "at once"
        stage.kill(*brokers)
        effect = gone(stage, brokers)
        losses = lose_power(stage, brokers, rng)
    yield f"{named(brokers)}, {when}: {'; '.join(map(str, losses))}"
    stage.start(*brokers)
    return f"{effect}; {' and '.join(loss.told for loss in losses)}" if any(loss.at_stake for loss in losses) else ""


def until_serving(stage: Stage, brokers: list[int]) -> None:
    """Wait, but not for ever: who is not there yet writes nothing that could be lost."""
    status = getattr(stage, "status", None)
    until_s = time.monotonic() + SERVES_S_MAX
    while status is not None and any((status(n) or {}).get("state") != "running" for n in brokers):
        if time.monotonic() > until_s or not all(map(stage.running, brokers)):
            return
        time.sleep(SERVES_POLL_S)


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
                files = cast(DiskStage, stage).disk(broker).look().files
                if not all(path.endswith(INDEX) for path in files):  # which nobody waits for
                    time.sleep(rng.uniform(0.0, HANGING_S_MAX))
                    return True
        time.sleep(POLL_S)
    return False


def lose_power(stage: Stage, brokers: list[int], rng: random.Random) -> list[PowerCutLoss]:
    """What was not synced, of brokers that are dead already."""
    losses = []
    for broker in brokers:
        losses.append(DeadDirectory(stage.data(broker)).lose(random.Random(rng.random())))
        stage.tell(f"broker {broker} loses power")
    return losses
