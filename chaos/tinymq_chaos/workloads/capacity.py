"""Topics that keep what is young, or so many bytes, or as much as there is room for; readers who hold what they are
about to read; and who makes room by hand, where writers are refused without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.base.types import Offset
from tinymq.client import AsyncClient
from tinymq_chaos.history import Outcome
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, told
from tinymq_chaos.workloads.producers import NumberedProducer, batches, lone
from tinymq_chaos.workloads.trims import trim

RETENTION_MS = 4_000
RETENTION_BYTES = 40_000
ROOM = 60  # records
ROOM_BYTES = 60_000
FULL, FULL_BYTES = 12, 12_000  # of a topic that refuses
LEASE_S = 3.0
Company = Callable[[Context, AsyncClient, str, str], Awaitable[None]]
KEPT = {"retention_ms": "none"}  # whatever a clock that jumps by days makes of its age


async def retained(context: Context) -> None:
    """Records go by their age, and no sooner."""
    await load(context, {"retention_ms": str(RETENTION_MS), "segment_ms": "1000"}, lone, _hold)


async def unreplicated(context: Context) -> None:
    """Records of which one broker holds the only replica are removed at their age and no sooner, whatever that broker's
    clock says."""
    settings = {"retention_ms": str(RETENTION_MS), "segment_ms": "1000"}
    await load(context, settings, lone, _hold, replicas=1)


async def sized(context: Context) -> None:
    """So many bytes of records stay, and little more."""
    await load(context, KEPT | {"retention_bytes": str(RETENTION_BYTES)}, batches, _hold)


async def room(context: Context) -> None:
    """The oldest make room for the newest, and no more of them than need to; but not what is held."""
    await load(context, KEPT | {"max_records": str(ROOM), "on_full": "drop_oldest"}, batches, _hold)


async def heavy(context: Context) -> None:
    """The same by bytes."""
    await load(context, KEPT | {"max_bytes": str(ROOM_BYTES), "on_full": "drop_oldest"}, batches)


async def full(context: Context) -> None:
    """Who writes is refused as long as there is no room; now and then somebody makes some."""
    await asyncio.gather(
        load(context, KEPT | {"max_records": str(FULL), "on_full": "reject"}, lone, make_room),
        load(context, KEPT | {"max_bytes": str(FULL_BYTES), "on_full": "reject"}, lone, make_room),
    )


async def load(
    context: Context, settings: dict[str, str], send: Any, *beside: Company, replicas: int | None = None
) -> None:
    """A topic with these settings, who writes and who reads it; and who does what else with it."""
    name = await context.topic(1, settings, replicas)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    context.history.topics[key] = settings
    letter = name.rsplit(".", 1)[-1]
    sender = NumberedProducer(context, f"{context.name}.{letter}", name, key, 1)
    await asyncio.gather(
        send(context, sender, client),
        readers.follow(context, client, name, key, "leader"),
        readers.look_at_ends(context, client, name, key),
        *(other(context, client, name, key) for other in beside),
    )
    await readers.drain(context, client, name, key, "leader")


async def make_room(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Seldom, and mostly for more than one."""
    while not context.stop.is_set():
        for _ in range(4):  # who is told to stop does not wait for long
            await pause(context, 1.0, 3.0)
        await trim(context, client, f"{context.name} trims", topic, key)


async def _hold(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Hold what there is, for as long as a read may take; mostly it is released before that."""
    process, number = f"{context.name} holds", 0
    while not context.stop.is_set():
        number += 1
        place: dict[str, Any] = {"topic": key, "partition": 0, "hold": f"h{number}"}
        try:
            ends = await client.admin.offsets(topic, timeout=CALL_S)
        except TinymqError:
            await pause(context, 0.2, 0.5)
            continue
        start = ends[0].log_start + context.rng.randrange(ends[0].high_watermark - ends[0].log_start + 1)
        call = begin(context, process, "hold", **place, offset=start, lease_s=LEASE_S)
        hold = client.admin.hold(topic, 0, Offset(start), lease=LEASE_S)
        with told(call):
            await hold.acquire()
            call.ok()
        if call.outcome is Outcome.OK:
            await pause(context, 0.2, LEASE_S / 2)
        release = begin(context, process, "release", **place)
        with told(release):
            await hold.release()
            release.ok()
        await pause(context, 0.5, 2.0)
