"""The faults that differ between NATS and tinymq: damage to files of its layout, and power cuts below a file system."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from tinymq_chaos.real.faults import FAULTS, Family, Parameters, Real, RealFault, Stage
from tinymq_chaos.real.peers import nats_files as files
from tinymq_chaos.real.peers.nats_names import stream_of

TORN_BYTES_MAX = 400
LOOP_DISKS = "loop disks"


class LoopDiskStage(Protocol):
    """The stage of a cluster on disks whose power can be cut."""

    def cut_power(self, *brokers: int) -> None: ...
    def tell(self, what: str) -> None: ...


def power_cut_all(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """Cut the power of all servers at once; start them when the fault ends."""
    yield from _without_power(stage, list(stage.brokers), "all brokers")


def power_cut(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    broker = rng.choice(stage.brokers)
    yield from _without_power(stage, [broker], f"broker {broker}")


def _without_power(stage: Stage, brokers: list[int], words: str) -> Iterator[str | None]:
    powered = cast(LoopDiskStage, stage)
    powered.cut_power(*brokers)
    for broker in brokers:
        powered.tell(f"broker {broker} loses power")
    yield words
    stage.start(*brokers)


def flip_bits(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """Kill one server, and flip some bits of its streams while it is down."""
    broker = int(how["broker"])
    stage.kill(broker)
    found = _blocks(stage, broker)
    if not found:
        stage.start(broker)
        yield None
        return
    path, count = rng.choice(found), int(how["bits"])
    content = bytearray(path.read_bytes())
    places = sorted(rng.randrange(len(content)) for _ in range(count))
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    yield f"broker {broker}, {path.relative_to(stage.data(broker))} at {', '.join(map(str, places))}"
    stage.start(broker)


def torn_tail(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """Kill one server. The end of a stream's newest block is missing when it starts again."""
    broker = int(how["broker"])
    stage.kill(broker)
    found = _blocks(stage, broker, newest=True)
    if not found:
        stage.start(broker)
        yield None
        return
    path = rng.choice(found)
    size = path.stat().st_size
    kept = size - rng.randint(1, min(size, TORN_BYTES_MAX))
    with path.open("r+b") as file:
        file.truncate(kept)
    yield f"broker {broker}, {path.relative_to(stage.data(broker))} has {kept} of {size} bytes"
    stage.start(broker)


def _blocks(stage: Stage, broker: int, newest: bool = False) -> list[Path]:
    """Return the blocks of all streams that hold something."""
    found: list[Path] = []
    for topic, partition in stage.topics:
        there = [path for path in files.blocks(stage.data(broker), stream_of(topic, partition)) if path.stat().st_size]
        found += there[-1:] if newest else there
    return found


_LOOP = frozenset({LOOP_DISKS})
KINDS: dict[str, RealFault] = {
    **FAULTS,
    "power_cut": RealFault(power_cut, Family.DISK, Real((1.0, 0.0), needs=_LOOP)),
    "power_cut_all": RealFault(power_cut_all, Family.DISK, Real((1.0, 0.0), needs=_LOOP)),
    "flip_bits": RealFault(
        flip_bits, Family.FILES, Real((1.0,), {"broker": (0.0,), "bits": (3.0, 1.0)}, damages=True, scars=True)
    ),
    "torn_tail": RealFault(torn_tail, Family.FILES, Real((1.0,), {"broker": (0.0,)}, damages=True)),
}  # fmt: skip
"""The faults for NATS. Rows for tinymq's own files and disks are replaced, or need what this cluster lacks."""
