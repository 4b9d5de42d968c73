"""Faults of wall clocks, which jump, by libfaketime. The cluster's brokers start under it (`environment`).

A broker's clock is a file with the clock's offset, which libfaketime reads again each second. The monotonic clock stays
right: it cannot jump on a real machine either. Everything that waits in a broker (asyncio, gRPC, threads, conditions)
waits by the monotonic clock and is not disturbed. `time.sleep` is: Python 3.11 and newer uses a call that libfaketime
0.9.10 turns into EINVAL. No broker calls it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from tinymq_chaos.real.faults.kind import Doing, Parameters, Stage, action
from tinymq_chaos.real.faults.victims import choose_broker

HOUR_S = 3600
READ_AGAIN_S = 1  # after so long the broker sees a jump
LOOK_S = 0.1
SEEN_S_MAX = 3.0  # the fault lasts so much longer if its effect is not visible yet
OFF_S_MAX = 30.0  # by which the observed offset may differ from the set one: the broker read its clock a while ago


def environment(library: Path, folder: Path, brokers: Sequence[int]) -> dict[int, dict[str, str]]:
    """Return more environment, by broker, for a cluster in `folder` with controlled clocks.

    Writes clocks that are right.
    """
    for broker in brokers:
        set_clock(folder, broker, 0)
    common = {
        "LD_PRELOAD": str(library),
        "FAKETIME_CACHE_DURATION": str(READ_AGAIN_S),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # otherwise waiters of a condition wake too late: a write took a second instead of 20 ms
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "NO_FAKE_STAT": "1",
    }
    return {broker: {**common, "FAKETIME_TIMESTAMP_FILE": str(_file(folder, broker))} for broker in brokers}


def set_clock(folder: Path, broker: int, off_s: int) -> None:
    """Set the offset of a clock in one step, so that no reader gets half a line."""
    file = _file(folder, broker)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(f"{off_s:+d}\n")
    new.replace(file)


def _file(folder: Path, broker: int) -> Path:
    return folder.absolute() / "clocks" / f"broker-{broker}"


class ClockStage(Protocol):
    """The stage of a cluster whose brokers report the time."""

    def status(self, broker: int) -> Mapping[str, Any] | None: ...


@action
def wall_jump(stage: Stage, rng: random.Random, how: Parameters) -> Doing:
    broker, hours = choose_broker(stage, rng, how), float(how["hours"])
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
    """Watch until the clock has this offset once."""
    while not seen_s:
        now_s = _off_s(stage, broker)
        if now_s is not None and abs(now_s - off_s) < OFF_S_MAX:
            seen_s.append(now_s)
        if over.wait(LOOK_S):
            return


def _off_s(stage: Stage, broker: int) -> float | None:
    """Return the offset of the broker's own time from the harness's. None: the broker does not report it."""
    if getattr(stage, "status", None) is None:
        return None
    page = cast(ClockStage, stage).status(broker)
    return None if page is None or "wall_time_s" not in page else float(page["wall_time_s"]) - time.time()
