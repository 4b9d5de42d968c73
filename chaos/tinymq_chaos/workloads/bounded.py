"""Topics that keep what is young, or as much as there is room for; and readers who hold what they are about to read."""

from __future__ import annotations

import asyncio
from typing import Any

from tinymq.client import AsyncClient
from tinymq.errors import TinymqError
from tinymq.types import Offset
from tinymq_chaos.history import Outcome
from tinymq_chaos.workloads import read
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, told
from tinymq_chaos.workloads.produce import Numbered, batches, lone

RETENTION_MS = 4_000
ROOM = 60  # records
LEASE_S = 3.0


async def retained(context: Context) -> None:
    """Records go by their age, and no sooner."""
    await _load(context, {"retention_ms": str(RETENTION_MS), "segment_ms": "1000"}, lone)


async def room(context: Context) -> None:
    """The oldest make room for the newest, and no more of them than need to; but not what is held."""
    await _load(context, {"retention_ms": "none", "max_records": str(ROOM), "on_full": "drop_oldest"}, batches)


async def _load(context: Context, settings: dict[str, str], send: Any) -> None:
    name = await context.topic(1, settings)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    context.history.topics[key] = settings
    sender = Numbered(context, f"{context.name}.a", name, key, 1)
    await asyncio.gather(
        send(context, sender, client),
        read.follow(context, client, name, key, "leader"),
        read.look_at_ends(context, client, name, key),
        _hold(context, client, name, key),
    )
    await read.drain(context, client, name, key, "leader")


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
