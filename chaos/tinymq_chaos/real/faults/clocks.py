"""Faults of wall clocks: they jump. By libfaketime, which the cluster's brokers are started under (`environment`).

A broker's clock is a file that says by how much it is off, read again each second. The monotonic clock is left alone:
it cannot jump on a real machine either. What waits in a broker (asyncio, gRPC, threads, conditions) waits by that one
and is not disturbed. `time.sleep` is: Python 3.11 and newer makes it of a call that libfaketime 0.9.10 turns into
EINVAL. No broker calls it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from tinymq_chaos.real.faults.kind import Doing, Parameters, Stage, action
from tinymq_chaos.real.faults.victims import one

HOUR_S = 3600
READ_AGAIN_S = 1  # a jump is seen after this much
LOOK_S = 0.1
SEEN_S_MAX = 3.0  # the fault lasts so much longer, if nothing is seen of it yet
OFF_S_MAX = 30.0  # that a clock is off from what it was to be off by: it was read a while ago


def environment(library: Path, folder: Path, brokers: Sequence[int]) -> dict[int, dict[str, str]]:
    """More environment, by broker, of a cluster in `folder` whose clocks obey. Writes clocks that are right."""
    for broker in brokers:
        set_clock(folder, broker, 0)
    common = {
        "LD_PRELOAD": str(library),
        "FAKETIME_CACHE_DURATION": str(READ_AGAIN_S),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else it wakes who waits for a condition too late: a write took a second instead of 20 ms.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "NO_FAKE_STAT": "1",
    }
    return {broker: {**common, "FAKETIME_TIMESTAMP_FILE": str(_file(folder, broker))} for broker in brokers}


def set_clock(folder: Path, broker: int, off_s: int) -> None:
    """Off by so many seconds from now on, in one step: nobody reads half a line."""
    file = _file(folder, broker)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(f"{off_s:+d}\n")
    new.replace(file)


def _file(folder: Path, broker: int) -> Path:
    return folder.absolute() / "clocks" / f"broker-{broker}"


class ClockStage(Protocol):
    """The stage of a cluster whose brokers say what time it is."""

    def status(self, broker: int) -> Mapping[str, Any] | None: ...


@action
def wall_jump(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker, hours = one(stage, rng, how), float(how["hours"])
    if broker is None:
        yield None
        return None
    off_s, seen_s, over = round(hours * HOUR_S), list[float](), threading.Event()
    before_s = _off_s(stage, broker)
    watching = threading.Thread(target=_watch, args=(stage, broker, off_s, seen_s, over), daemon=True)
    set_clock(stage.folder, broker, off_s)
    if before_s is not None:  # without a first look there is nothing to compare with
        watching.start()
    yield f"broker {broker} by {hours:+g} h"
    if before_s is not None:
        watching.join(SEEN_S_MAX)
        over.set()
        watching.join()
    set_clock(stage.folder, broker, 0)
    if before_s is None:
        return None
    return f"its time was off by {seen_s[0]:+.0f} s, and by {before_s:+.0f} s before" if seen_s else ""


def _watch(stage: Stage, broker: int, off_s: float, seen_s: list[float], over: threading.Event) -> None:
    """Until its clock is off by so much, once."""
    while not seen_s:
        now_s = _off_s(stage, broker)
        if now_s is not None and abs(now_s - off_s) < OFF_S_MAX:
            seen_s.append(now_s)
        if over.wait(LOOK_S):
            return


def _off_s(stage: Stage, broker: int) -> float | None:
    """By how much the broker's own time is off from here. None: it does not say."""
    if getattr(stage, "status", None) is None:
        return None
    page = cast(ClockStage, stage).status(broker)
    return None if page is None or "wall_time_s" not in page else float(page["wall_time_s"]) - time.time()
