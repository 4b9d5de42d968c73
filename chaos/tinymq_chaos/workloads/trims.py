"""Heads of partitions that clients trim while others read, hold and count records."""

from __future__ import annotations

import asyncio
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.base.types import Offset
from tinymq.client import AsyncClient
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, batches, lone

BEYOND = 0.1  # how often a trim asks for more than there is
LEASE_S = 2.0


async def trimmed(context: Context) -> None:
    """Two clients trim, readers read leaders and followers, one client holds, and one counts."""
    name = await context.topic(1, {"retention_ms": "none"})
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    senders = [NumberedProducer(context, f"{context.name}.{letter}", name, key, 1) for letter in "ab"]
    await asyncio.gather(
        lone(context, senders[0], client),
        batches(context, senders[1], client),
        readers.follow(context, client, name, key, "leader"),
        readers.follow(context, client, name, key, "follower"),
        readers.look_at_ends(context, client, name, key),
        readers.look_up_times(context, client, name, key),
        _trim(context, f"{context.name} 0", name, key),
        _trim(context, f"{context.name} 1", name, key),
        _hold(context, client, name, key),
        _count(context, name, key),
    )
    for replica in ("leader", "follower"):
        await readers.drain(context, client, name, key, replica)


async def _trim(context: Context, process: str, topic: str, key: str) -> None:
    client = context.client(request_timeout_ms=CALL_S * 1000)
    while not context.stop.is_set():
        await pause(context, 0.5, 2.0)
        await trim(context, client, process, topic, key)


async def trim(context: Context, client: AsyncClient, process: str, topic: str, key: str) -> None:
    """Trim anywhere in the log; now and then behind its end, which is refused."""
    try:
        ends = (await client.admin.offsets(topic, timeout=CALL_S))[0]
    except TinymqError:
        return
    beyond = context.rng.random() < BEYOND
    before = ends.high_watermark + 1000 if beyond else context.rng.randint(ends.log_start, ends.high_watermark)
    with recording(context, process, "trim", topic=key, partition=0, before=before) as call:
        timeout_s = context.rng.choice((CALL_S / 10, CALL_S))  # how long a trim waits for a hold
        call.ok(await client.admin.trim(topic, 0, Offset(before), timeout=timeout_s))


async def _hold(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    """Hold records, which no trim removes."""
    number = 0
    while not context.stop.is_set():
        await pause(context, 1.0, 3.0)
        number += 1
        place: dict[str, Any] = {"topic": key, "partition": 0, "hold": f"t{number}"}
        try:
            ends = (await client.admin.offsets(topic, timeout=CALL_S))[0]
        except TinymqError:
            continue
        start = context.rng.randint((ends.log_start + ends.high_watermark) // 2, ends.high_watermark)
        call = begin(context, f"{context.name} holds", "hold", **place, offset=start, lease_s=LEASE_S)
        hold = client.admin.hold(topic, 0, Offset(start), lease=LEASE_S)
        with recorded(call):
            await hold.acquire()
            call.ok()
        await pause(context, 0.5, 3.0)
        with recording(context, f"{context.name} holds", "release", **place) as release:
            await hold.release()
            release.ok()


async def _count(context: Context, topic: str, key: str) -> None:
    """Ask a majority for the size: it knows of every trim that was answered."""
    caller = context.caller()
    while not context.stop.is_set():
        with recording(context, f"{context.name} counts", "size", topic=key, partition=0, channel="") as call:
            request = pb.GetQueueSizeRequest(topic=topic, queue=0)
            call.ok(int((await caller.ask("tinymq.v1.QueueService/GetQueueSize", request, CALL_S)).messages))
        await pause(context, 0.2, 1.0)
