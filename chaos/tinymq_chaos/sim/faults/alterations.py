"""Settings of topics that are altered at any time, under load and beside other faults. The history has each call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping

from tinymq_chaos.history import History
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.world.world import World
from tinymq_chaos.workloads.context import CALL_S, recorded

SYNCS = ("always", "200", "5000")
BOUNDS: Mapping[str, tuple[str, ...]] = {  # of a topic that has such a bound
    "retention_ms": ("1500", "4000", "none"),
    "retention_bytes": ("20000", "40000", "none"),
    "max_records": ("20", "60", "none"),
    "max_bytes": ("30000", "60000", "none"),
}
TIGHT: Mapping[str, tuple[str, ...]] = {  # the same, where a full partition refuses writers
    "max_records": ("6", "12", "none"),
    "max_bytes": ("12000", "24000", "none"),
}
WIDE: Mapping[str, tuple[str, ...]] = {  # of a topic without bounds: no run reaches these
    "retention_ms": ("600000", "none"),
    "retention_bytes": ("1000000000", "none"),
    "max_records": ("1000000", "none"),
    "max_bytes": ("1000000000", "none"),
}
ALWAYS_SYNCED = (  # workloads whose checkers excuse nothing that a power cut took: cursors, or a part of a transaction
    "cursors", "takers", "rush", "queues", "members", "workers", "keyed", "transfers", "lingering", "processors",
    "results", "halves",
)  # fmt: skip
SEGMENTS: Mapping[str, tuple[str, ...]] = {"segment_bytes": ("65536", "1000000"), "segment_ms": ("1000", "3000")}


@action
def alter(world: World, rng: random.Random) -> Iterator[str | None]:
    """Alter one setting of one topic, once. The fault lasts until another one may begin; the setting stays."""
    topics = world.seen.topics()
    if not topics:
        yield None
        return
    key, topic_id, replicas = rng.choice(topics)
    first = world.history.topics.get(key, {})
    choices = [*_choices(first).items()]
    weakened = not world.damages and first.get("storage") != "memory"  # a weak topic need not survive damaged disks
    if weakened and not key.startswith(ALWAYS_SYNCED):
        choices.append(("sync", SYNCS))
    name, values = rng.choice(choices)
    value = rng.choice(values)
    if name == "sync":
        world.history.topics[key] = {"sync": "always", "replicas": str(replicas)} | first
        world.seen.weaken(topic_id)
    asyncio.ensure_future(_alter(world, random.Random(rng.random()), key, {name: value}))  # noqa: RUF006
    yield f"{name}={value} of {key.partition('#')[0]}"


def _choices(first: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the settings that may be altered, with values whose effect the checkers know."""
    if first.get("storage") == "memory":  # its bound is large: a lower one would refuse writers
        return dict(SEGMENTS)
    own = [name for name in BOUNDS if first.get(name, "none") != "none"]
    tight = TIGHT if first.get("on_full") == "reject" else {}
    bounds = {name: tight.get(name, BOUNDS[name]) for name in own} if own else dict(WIDE)
    # Ages are checked once per second, and a head goes by whole segments, so such a topic keeps its segments short.
    return bounds if "retention_ms" in own else bounds | dict(SEGMENTS)


async def _alter(world: World, rng: random.Random, key: str, settings: dict[str, str]) -> None:
    history: History = world.history
    client = world.client(rng)
    call = history.invoke("alters", "alter_topic", history.now() + CALL_S, topic=key, settings=settings)
    with recorded(call):
        values = {name: _read(value) for name, value in settings.items()}
        await client.admin.alter_topic(key.partition("#")[0], values, timeout=CALL_S)
        call.ok()


def _read(text: str) -> int | str | None:
    return None if text == "none" else int(text) if text.isdigit() else text
