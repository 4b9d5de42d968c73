"""Faults of wall clocks: they jump. By libfaketime, which the cluster's brokers are started under (`environment`).

A broker's clock is a file that says by how much it is off, read again each second. The monotonic clock is left alone:
it cannot jump on a real machine either. What waits in a broker (asyncio, gRPC, threads, conditions) waits by that one
and is not disturbed. `time.sleep` is: Python 3.11 and newer makes it of a call that libfaketime 0.9.10 turns into
EINVAL. No broker calls it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tinymq_chaos.real.faults.chosen import ANYONE, LEADER, one
from tinymq_chaos.real.faults.kind import ANYBODY, Kind, Parameters, Stage

HOUR_S = 3600
READ_AGAIN_S = 1  # a jump is seen after this much


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


def wall_jump(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    broker, hours = one(stage, rng, how), float(how["hours"])
    if broker is None:
        yield None
        return
    set_clock(stage.folder, broker, round(hours * HOUR_S))
    yield f"broker {broker} by {hours:+g} h"
    set_clock(stage.folder, broker, 0)


KINDS: dict[str, Kind] = {
    "wall_jump": Kind(
        wall_jump, "clock", (4.0, 2.0, 8.0),
        {"broker": (ANYBODY,), "who": (LEADER, ANYONE), "hours": (1.0, -1.0, 192.0, -192.0)},
        needs=frozenset({"faketime"}),
    ),
}  # fmt: skip
