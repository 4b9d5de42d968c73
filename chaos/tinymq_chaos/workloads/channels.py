"""Readers of channels: consumers that commit, seek and replace each other, and callers that take one record after
another from a shared channel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import count
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.base.types import Offset
from tinymq.client import AsyncClient
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.routing import Topic
from tinymq.client.consume.cursors import ChannelId, change
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.records import name_of
from tinymq_chaos.workloads.clients.threaded_client import cluster_of, leave
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, key_of, pause, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import drain

PARTITIONS = 2
CHANNELS = ("red", "blue")
CONSUMERS = 2  # of each channel; they fence each other now and then
TAKERS = 3
TRIES = 4  # of one request
POLL_S = 0.5
QUEUE: dict[str, Any] = {"auto_commit": False, "fetch_wait_ms": 200, "on_trimmed": "skip"}


async def cursors(context: Context) -> None:
    """Two channels of each partition.

    Their consumers commit what they read, go back, and fence each other, while another client reads all cursors.
    """
    name = await context.topic(PARTITIONS)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    sender = NumberedProducer(context, f"{context.name}.a", name, key, PARTITIONS)
    consumers = [
        _consume(context, f"{context.name} {channel} {n}", name, key, channel)
        for channel in CHANNELS
        for n in range(CONSUMERS)
    ]
    await asyncio.gather(lone(context, sender, client), _observe(context, client, name, key), *consumers)
    await _look_once(context, client, f"{context.name} end", name, key)
    await drain(context, client, name, key, "leader")


async def _consume(context: Context, process: str, topic: str, key: str, channel: str) -> None:
    client = context.client(request_timeout_ms=CALL_S * 1000)
    while not context.stop.is_set():
        partition = context.rng.randrange(PARTITIONS)
        place: dict[str, Any] = {"topic": key, "partition": partition, "channel": channel}
        queue = client.queue(topic, partition, channel, consumer=process.replace(" ", "-"), **QUEUE)
        try:
            with recording(context, process, "open_channel", **place) as call:
                await queue.open()
                call.ok(await queue.position())
            while call.outcome is Outcome.OK and not context.stop.is_set() and context.rng.random() > 0.08:
                call = await _turn(context, process, queue, place)
                await pause(context, 0.0, 0.4)
        finally:
            await _leave(queue)
        await pause(context, 0.0, 0.5)


async def _turn(context: Context, process: str, queue: Any, place: dict[str, Any]) -> Call:
    """Read some records and commit them; or, now and then, go back."""
    if context.rng.random() < 0.1:
        target = context.rng.randrange(await queue.position() + 1)
        with recording(context, process, "seek", **place, offset=target) as call:
            call.ok(await queue.seek(Offset(target)))
        return call
    try:
        found = await queue.poll(context.rng.randint(1, 10), POLL_S)
    except TinymqError as error:
        call = begin(context, process, "read", **place)
        fail(call, error)
        return call
    upto = found[-1].offset + 1 if found else await queue.position()
    with recording(context, process, "commit", **place, offset=upto) as call:
        await queue.commit()
        call.ok(upto)
    return call


async def _leave(queue: Any) -> None:
    with contextlib.suppress(TinymqError):  # it is fenced, or no broker answers: the consumer is gone in any case
        await leave(queue)


async def _observe(context: Context, client: AsyncClient, topic: str, key: str) -> None:
    process = f"{context.name} looks"
    while not context.stop.is_set():
        await _look_once(context, client, process, topic, key)
        await pause(context, 0.2, 2.0)


async def _look_once(context: Context, client: AsyncClient, process: str, topic: str, key: str) -> None:
    with recording(context, process, "channels", topic=key) as call:
        found = await client.admin.list_channels(topic)
        call.ok([[c.partition, c.channel, c.position] for c in found])


# ---- one record at a time -----------------------------------------------------------------------------------------


async def takers(context: Context) -> None:
    """Several callers share one channel. Each asks for its next record until it gets an answer, under one request
    id."""
    name = await context.topic(1)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    sender = NumberedProducer(context, f"{context.name}.a", name, key, 1)
    await _make(context, client, name)
    taking = [_take(context, f"{context.name} {n}", name, key) for n in range(TAKERS)]
    await asyncio.gather(lone(context, sender, client), *taking)
    await drain(context, client, name, key, "leader")


async def _make(context: Context, client: AsyncClient, topic: str) -> None:
    while True:
        queue = client.queue(topic, 0, CHANNELS[0], consumer="maker", **QUEUE)
        try:
            await queue.open()
            return
        except TinymqError:
            await context.clock.sleep(0.1)
        finally:
            await _leave(queue)


async def _take(context: Context, process: str, topic: str, key: str) -> None:
    client = context.client(request_timeout_ms=CALL_S * 1000)
    cluster = cluster_of(client)
    place: dict[str, Any] = {"topic": key, "partition": 0, "channel": CHANNELS[0]}
    for request in _requests(context):
        for _ in range(TRIES):
            with recording(context, process, "consume", **place, request=request.hex()) as call:
                known = await cluster.topic(topic, CALL_S)
                taken = await _ask(cluster, known, request)
                call.ok(None if taken is None else [taken, await _read(client, topic, taken)])
            if call.outcome in (Outcome.OK, Outcome.FAILED) and context.rng.random() < 0.8:
                break  # otherwise it asks again, like a caller that lost the answer
            await pause(context, 0.0, 0.2)
        await pause(context, 0.0, 0.4)


def _requests(context: Context) -> Iterator[bytes]:
    for _ in count():
        if context.stop.is_set():
            return
        yield context.rng.randbytes(16)


async def _ask(cluster: Cluster, topic: Topic, request: bytes) -> int | None:
    command = pb.ChannelCommand(consume=pb.ChannelConsume(request_id=request))
    outcome = await change(cluster, ChannelId(topic, 0, CHANNELS[0]), command, CALL_S / 2)
    return int(outcome.offset) if outcome.taken else None


async def _read(client: AsyncClient, topic: str, offset: int) -> str:
    reader = client.reader(topic, start={0: Offset(offset)}, end={0: Offset(offset + 1)})
    try:
        await reader.open()
        found = await reader.poll(timeout=CALL_S / 4)
        return name_of(found[0]) if found else ""
    finally:
        await reader.close()
