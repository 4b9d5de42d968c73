"""Topics with retention by age or bytes, or with bounds; readers that hold what they are about to read; and trims that
make room where writers are refused without it.
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
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, batches, lone
from tinymq_chaos.workloads.trims import trim

RETENTION_MS = 4_000
RETENTION_BYTES = 40_000
ROOM = 60  # records
ROOM_BYTES = 60_000
FULL, FULL_BYTES = 12, 12_000  # bounds of a topic that refuses writers
LEASE_S = 3.0
Company = Callable[[Context, AsyncClient, str, str], Awaitable[None]]
KEPT = {"retention_ms": "none"}  # without a bound on age, jumping clocks remove no record


async def retained(context: Context) -> None:
    """Records go when their age is reached, and no sooner."""
    await load(context, {"retention_ms": str(RETENTION_MS), "segment_ms": "1000"}, lone, _hold)


async def unreplicated(context: Context) -> None:
    """Records with a single replica go when their age is reached and no sooner, whatever the clock of the replica's
    broker shows.
    """
    settings = {"retention_ms": str(RETENTION_MS), "segment_ms": "1000"}
    await load(context, settings, lone, _hold, replicas=1)


async def sized(context: Context) -> None:
    """A partition keeps so many bytes of records, and little more."""
    await load(context, KEPT | {"retention_bytes": str(RETENTION_BYTES)}, batches, _hold)


async def room(context: Context) -> None:
    """A full partition drops its oldest records for new ones: no more of them than necessary, and no held ones."""
    await load(context, KEPT | {"max_records": str(ROOM), "on_full": "drop_oldest"}, batches, _hold)


async def heavy(context: Context) -> None:
    """The same with a bound on bytes."""
    await load(context, KEPT | {"max_bytes": str(ROOM_BYTES), "on_full": "drop_oldest"}, batches)


async def full(context: Context) -> None:
    """Writers are refused while the partition is full; now and then a trim makes room."""
    await asyncio.gather(
        load(context, KEPT | {"max_records": str(FULL), "on_full": "reject"}, lone, make_room),
        load(context, KEPT | {"max_bytes": str(FULL_BYTES), "on_full": "reject"}, lone, make_room),
    )


async def load(
    context: Context, settings: dict[str, str], send: Any, *beside: Company, replicas: int | None = None
) -> None:
    """Run a topic with these settings: its writers, its readers, and `beside`."""
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
        readers.look_up_times(context, client, name, key),
        *(other(context, client, name, key) for other in beside),
    )
    await readers.drain(context, client, name, key, "leader")


async def make_room(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Trim seldom, and mostly more than one record."""
    while not context.stop.is_set():
        for _ in range(4):  # in short steps, so that it stops soon
            await pause(context, 1.0, 3.0)
        await trim(context, client, f"{context.name} trims", topic, key)


async def _hold(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Hold the present records for as long as a read may take; mostly release them earlier."""
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
        with recorded(call):
            await hold.acquire()
            call.ok()
        if call.outcome is Outcome.OK:
            await pause(context, 0.2, LEASE_S / 2)
        with recording(context, process, "release", **place) as release:
            await hold.release()
            release.ok()
        await pause(context, 0.5, 2.0)
