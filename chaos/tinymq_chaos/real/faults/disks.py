"""Faults of disks: full, slow, failing, without power. The harness requests them from the brokers' own disks
(real/disks).

A broker that may have refused a write or failed a sync restarts when the fault ends: a replica stays failed until then,
and a broker that can do nothing without its disk has ended by itself.
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
from tinymq_chaos.real.faults.processes import broker_names, describe_gone
from tinymq_chaos.real.faults.victims import choose_broker, live_brokers

WHEN = ("in the middle of a write", "in the middle of a sync", "at once")  # the moments of a power cut
WEIGHTS = (0.45, 0.45, 0.1)  # a write is synced within a millisecond, so at a random moment hardly anything is unsynced
OPERATIONS_MAX = 6  # of the disk, from a write to the power cut
WRITTEN_BYTES_MAX = 2048
PATIENCE_S = 2.0  # for an idle broker to do something to its disk
SYNC_S = 60.0  # the duration of a sync in which the power is cut: longer than any timeout
HANGING_S_MAX = 0.3
POLL_S = 0.001
SERVES_POLL_S = 0.05
SERVES_S_MAX = 15.0  # for brokers that have just started


class DiskStage(Protocol):
    """The stage of a cluster whose disks the harness controls."""

    def disk(self, broker: int) -> DiskControl: ...


def send_request(stage: Stage, broker: int, ask: Callable[[DiskControl], DiskState]) -> bool:
    """Send a request to a broker's disk; return whether the disk got it: a broker that has just started, or is gone,
    does not.
    """
    try:
        ask(cast(DiskStage, stage).disk(broker))
    except ConnectionError:
        return False
    return True


def effect_counts(stage: Stage, broker: int) -> Counter[str]:
    """Return what the faults of a broker's disk did since its process began, even if the process has ended."""
    return cast(DiskStage, stage).disk(broker).counts()


def effects_since(stage: Stage, broker: int, before: Counter[str], what: str) -> str:
    """Return as an effect how much more the faults did since `before`. Give an idle broker the time to use its disk."""
    until_s = time.monotonic() + 5 * PATIENCE_S
    while True:
        after = effect_counts(stage, broker)
        # it may have restarted in between
        more = after[what] - before[what] if after[what] >= before[what] else after[what]
        if more or time.monotonic() > until_s or not stage.running(broker):
            return f"{more} {what}" if more else ""
        time.sleep(SERVES_POLL_S)


def request_fault(stage: Stage, broker: int | None, ask: Callable[[DiskControl], DiskState]) -> Counter[str] | None:
    """Request a fault; return the counts from before it. None: there is no broker, or it did not get the request."""
    if broker is None:
        return None
    before = effect_counts(stage, broker)
    return before if send_request(stage, broker, ask) else None


@action
def slow_sync(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Each sync takes longer. With many seconds, the disk hangs until the fault ends."""
    broker, seconds, pattern = choose_broker(stage, rng, how), float(how["seconds"]), str(how["pattern"])
    before = request_fault(stage, broker, lambda disk: disk.slow_sync(seconds, pattern))
    if broker is None or before is None:
        yield None
        return None
    yield f"of broker {broker}: {seconds:g} s more for {pattern}"
    effect = effects_since(stage, broker, before, SYNCS_DELAYED)
    send_request(stage, broker, lambda disk: disk.mend("slow_sync"))
    return effect


@action
def disk_full(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker, left = choose_broker(stage, rng, how), int(how["bytes_left"])
    before = request_fault(stage, broker, lambda disk: disk.disk_full(left))
    if broker is None or before is None:
        yield None
        return None
    yield f"of broker {broker}: {left} bytes are left"
    effect = effects_since(stage, broker, before, WRITES_REFUSED)
    _again(stage, broker, rng, KILL)
    return effect


@action
def fail_sync(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Syncs fail with EIO as long as the fault lasts. Their bytes are never written, so a power cut takes them."""
    broker, pattern = choose_broker(stage, rng, how), str(how["pattern"])
    before = request_fault(stage, broker, lambda disk: disk.fail_sync(pattern))
    if broker is None or before is None:
        yield None
        return None
    yield f"of {pattern} at broker {broker}, then {how['then']}"
    effect = effects_since(stage, broker, before, SYNCS_FAILED)
    losses = _again(stage, broker, rng, str(how["then"]))
    return "; ".join([effect, *map(str, losses)]) if effect else ""


@action
def read_error(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Reads of the logs fail with EIO. The broker restarts at once, so that it has to read."""
    broker = int(how["broker"])
    with stage.alone(broker):
        stage.kill(broker)
        stage.start(broker)
        until_s = time.monotonic() + 10 * PATIENCE_S
        while not (heard := send_request(stage, broker, lambda disk: disk.fail_read("groups/*"))):
            if time.monotonic() > until_s or not stage.running(broker):
                break
            time.sleep(POLL_S)
    if not heard:
        yield None
        return None
    yield f"at broker {broker}"
    effect = effects_since(stage, broker, Counter(), READS_FAILED)
    _again(stage, broker, rng, KILL)
    return effect


def _again(stage: Stage, broker: int, rng: random.Random, how: str) -> list[PowerCutLoss]:
    """End the broker, if it has not ended by itself, and start it."""
    with stage.alone(broker):
        stage.kill(broker)
        losses = lose_power(stage, [broker], rng) if how == POWER else []
        stage.start(broker)
    return losses


@action
def power_cut(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker = choose_broker(stage, rng, how)
    return _without_power(stage, rng, [broker] if broker is not None else [])


@action
def power_cut_all(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Cut the power of all brokers at one moment."""
    return _without_power(stage, rng, live_brokers(stage))


def _without_power(stage: Stage, rng: random.Random, brokers: list[int]) -> Doing:
    if not brokers:
        yield None
        return None
    until_serving(stage, brokers)
    (when,) = rng.choices(WHEN, WEIGHTS)
    with stage.alone(*brokers):
        if not (when == WHEN[0] and die_at_write(stage, rng, brokers)) and not (
            when == WHEN[1] and is_stuck_in_sync(stage, rng, brokers)
        ):
            when = "at once"
        stage.kill(*brokers)
        effect = describe_gone(stage, brokers)
        losses = lose_power(stage, brokers, rng)
    yield f"{broker_names(brokers)}, {when}: {'; '.join(map(str, losses))}"
    stage.start(*brokers)
    return f"{effect}; {' and '.join(loss.text for loss in losses)}" if any(loss.at_stake for loss in losses) else ""


def until_serving(stage: Stage, brokers: list[int]) -> None:
    """Wait for a limited time until the brokers serve: a broker that does not serve writes nothing that could be
    lost."""
    status = getattr(stage, "status", None)
    until_s = time.monotonic() + SERVES_S_MAX
    while status is not None and any((status(n) or {}).get("state") != "running" for n in brokers):
        if time.monotonic() > until_s or not all(map(stage.running, brokers)):
            return
        time.sleep(SERVES_POLL_S)


def die_at_write(stage: Stage, rng: random.Random, brokers: list[int], pattern: str = "write *") -> bool:
    """Return whether one of the brokers ended in the middle of a write; the caller kills the others at once."""
    first, operations = rng.choice(brokers), rng.randrange(OPERATIONS_MAX)
    written = rng.randrange(WRITTEN_BYTES_MAX)
    if not send_request(stage, first, lambda disk: disk.die_at(pattern, operations=operations, bytes_written=written)):
        return False
    until_s = time.monotonic() + PATIENCE_S
    while stage.running(first):
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)
    stage.tell(f"broker {first} is killed")
    return True


def is_stuck_in_sync(stage: Stage, rng: random.Random, brokers: list[int]) -> bool:
    """Return whether one of the brokers is in the middle of a sync that does not end. It has lasted long enough for the
    other brokers to begin theirs, and to send what they may send only after a sync.
    """
    heard = [broker for broker in brokers if send_request(stage, broker, lambda disk: disk.slow_sync(SYNC_S))]
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        for broker in heard:
            with suppress(ConnectionError):
                files = cast(DiskStage, stage).disk(broker).look().files
                if not all(path.endswith(INDEX) for path in files):  # nothing waits for the sync of an index
                    time.sleep(rng.uniform(0.0, HANGING_S_MAX))
                    return True
        time.sleep(POLL_S)
    return False


def lose_power(stage: Stage, brokers: list[int], rng: random.Random) -> list[PowerCutLoss]:
    """Take the unsynced changes of brokers that are already dead."""
    losses = []
    for broker in brokers:
        losses.append(DeadDirectory(stage.data(broker)).lose(random.Random(rng.random())))
        stage.tell(f"broker {broker} loses power")
    return losses
