"""Faults of processes: they pause, end, and start again."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol, cast

from tinymq_chaos.faults import LEADER
from tinymq_chaos.real.faults.kind import Doing, Parameters, Stage, action
from tinymq_chaos.real.faults.victims import choose_broker, live_brokers, majority, strike

HEALTHY_S = 30.0  # before each step of a rolling restart; otherwise the fault skips its other steps
ALL_S = 180.0  # for a complete rolling restart
ANSWERS_S_MAX = 30.0  # for the status page of a second process; afterwards the fault has had no effect
POLL_S = 0.1


@action
def kill(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker = choose_broker(stage, rng, how)
    return _down(stage, [broker] if broker is not None else [])


@action
def kill_leader(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    return strike(stage, rng, {"who": LEADER}, lambda broker: _down(stage, [broker]))


@action
def kill_majority(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Kill a majority: the rest finds no quorum."""
    most, standing = majority(stage), live_brokers(stage)
    return _down(stage, rng.sample(standing, most) if len(standing) >= most else [])


@action
def kill_all(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    return _down(stage, live_brokers(stage))


def _down(stage: Stage, brokers: list[int]) -> Doing:
    """kill -9; start the brokers when the fault ends."""
    if not brokers:
        yield None
        return None
    stage.kill(*brokers)
    effect = describe_gone(stage, brokers)
    yield broker_names(brokers)
    stage.start(*brokers)
    return effect


def describe_gone(stage: Stage, brokers: list[int]) -> str:
    """Return as an effect the brokers whose processes are gone."""
    found = [n for n in brokers if not stage.running(n)]
    return f"{len(found)} of {len(brokers)} processes were gone" if found else ""


def broker_names(brokers: list[int]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, sorted(brokers)))}"


@action
def pause(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """SIGSTOP."""
    return strike(stage, rng, how, lambda broker: _standstill(stage, broker))


def _standstill(stage: Stage, broker: int) -> Doing:
    stage.pause(broker)
    yield broker_names([broker])
    still = stands_still(stage, broker)
    stage.resume(broker)
    if still is None:
        return None
    return "its process stood still until then" if still else ""


def stands_still(stage: Stage, broker: int) -> bool | None:
    """Return whether the broker's process stands still, according to the system. None: there is no process."""
    pid = getattr(stage, "pid", None)
    if pid is None:
        return None
    if sys.platform == "linux":
        try:
            state = Path(f"/proc/{pid(broker)}/stat").read_text().rpartition(") ")[2]
        except OSError:  # the process is gone
            return False
    else:
        state = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid(broker))], capture_output=True, text=True, check=False
        ).stdout
    return state.startswith("T")


@action
def rolling_restart(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """SIGTERM to one broker after another.

    Each starts when it has ended, and the next one follows when all is well. It runs beside other faults, and the end
    of the fault waits for it.
    """
    order = rng.sample(stage.brokers, len(stage.brokers))
    stopped: list[int] = []
    rolling = threading.Thread(target=_roll, args=(stage, order, stopped), name="rolling restart", daemon=True)
    rolling.start()
    yield f"in the order {', '.join(map(str, order))}"
    rolling.join(ALL_S)
    assert not rolling.is_alive(), f"a rolling restart is not over after {ALL_S:g} s"
    return f"{len(stopped)} of {len(order)} ended after SIGTERM" if stopped else ""


def _roll(stage: Stage, order: list[int], stopped: list[int]) -> None:
    for broker in order:
        until_s = time.monotonic() + HEALTHY_S
        while stage.unhealthy():
            if time.monotonic() > until_s:
                return
            time.sleep(POLL_S)
        stage.stop(broker)
        stopped += [broker] if not stage.running(broker) else []
        stage.start(broker)


class HasSeconds(Protocol):
    """A cluster of tinymq's brokers, which can start one of them twice."""

    def start_second(self, broker: int, *, copied: bool = False) -> None: ...
    def second_status(self, broker: int) -> dict[str, Any] | None: ...
    def end_second(self, broker: int) -> None: ...


@action
def twin(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    """Start a broker once more, with an empty data directory and ports of its own."""
    broker, cluster = int(how["broker"]), cast(HasSeconds, stage)
    with stage.alone(broker):
        if not stage.running(broker):
            yield None
            return None
        cluster.start_second(broker)
        stage.tell(f"a second broker {broker} is started")
    yield f"broker {broker} once more, on an empty disk"
    until_s = time.monotonic() + ANSWERS_S_MAX
    while (seen := cluster.second_status(broker)) is None and time.monotonic() < until_s:
        time.sleep(POLL_S)
    cluster.end_second(broker)
    stage.tell(f"the second broker {broker} is killed")
    return f"the second process was {seen['state']}: {seen['reason']}" if seen else ""
