"""Leaderships that are transferred from broker to broker while producers have many records in flight."""

from __future__ import annotations

import asyncio

from tinymq.base.errors import TinymqError
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, key_of, pause, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone, stream

PARTITIONS = 2
ANY = 0.3  # how often any able broker may become leader
MOVE_S = 3.0


async def moved(context: Context) -> None:
    """Transfers lose nothing, duplicate nothing, and are fast."""
    name = await context.topic(PARTITIONS)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    senders = [NumberedProducer(context, f"{context.name}.{letter}", name, key, PARTITIONS) for letter in "ab"]
    await asyncio.gather(
        stream(context, senders[0], context.client(request_timeout_ms=CALL_S * 1000)),
        lone(context, senders[1], client),
        readers.follow(context, client, name, key, "leader"),
        *(_move(context, name, key, partition) for partition in range(PARTITIONS)),
    )
    for replica in ("leader", "follower"):
        await readers.drain(context, client, name, key, replica)


async def _move(context: Context, topic: str, key: str, partition: int) -> None:
    """Transfer the leadership of one partition again and again."""
    client = context.client(request_timeout_ms=CALL_S * 1000)
    process = f"{context.name} moves {partition}"
    while not context.stop.is_set():
        await pause(context, 0.2, 2.0)
        try:
            found = next(p for p in (await client.admin.describe_topic(topic)).partitions if p.partition == partition)
        except TinymqError:
            continue
        to = None if context.rng.random() < ANY else context.rng.choice(found.replicas)
        with recording(context, process, "transfer", MOVE_S, topic=key, partition=partition, to=to) as call:
            call.ok(await client.admin.transfer_leader(topic, partition, to, timeout=MOVE_S))
