"""Topics that come and go: the client that creates one writes to it, while others list the topics."""

from __future__ import annotations

import asyncio

from tinymq.client import AsyncClient
from tinymq_chaos.history import Outcome, topic_key
from tinymq_chaos.workloads.context import CALL_S, Context, key_of, pause, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.readers import drain

NAMES = 3
OWNERS = 3


async def metadata(context: Context) -> None:
    """Several clients create, delete and look at a few topics: all answers have to fit one order."""
    await asyncio.gather(*(_change_and_look(context, f"{context.name} {n}") for n in range(OWNERS)))


async def _change_and_look(context: Context, process: str) -> None:
    client = context.client(request_timeout_ms=CALL_S * 1000)
    rng = context.rng
    while not context.stop.is_set():
        name = f"{context.name}-{rng.randrange(NAMES)}"
        kind = rng.choice(("create", "delete", "get", "get", "list"))
        if kind == "create":
            await create(context, client, process, name, partitions=rng.randint(1, 2))
        elif kind == "delete":
            await delete(context, client, process, name)
        elif kind == "get":
            await get(context, client, process, name)
        else:
            await list_all(context, client, process)
        await pause(context, 0.05, 1.0)


async def partitions(context: Context) -> None:
    """Partitions of one topic are added, written to and deleted again: the registry gives no number twice."""
    name = await context.topic(1)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key, process = await key_of(context, client, name), f"{context.name}.owner"
    added: list[int] = []
    while not context.stop.is_set():
        if added and context.rng.random() < 0.6:
            number = added.pop()
            with recording(context, process, "delete_partition", topic=key, partition=number) as call:
                await client.admin.delete_partition(name, number, timeout=CALL_S)
                call.ok()
        else:
            with recording(context, process, "add_partition", topic=key) as call:
                number = (await client.admin.add_partition(name, timeout=CALL_S)).partition
                call.ok(number)
            if call.outcome is Outcome.OK:
                added.append(call.result)
        await pause(context, 0.1, 1.0)


async def churn(context: Context) -> None:
    """One client creates a topic, writes to it, reads it, deletes it, and creates it again under its name: the new one
    never has a record of the old one.
    """
    client = context.client(request_timeout_ms=CALL_S * 1000)
    process, lives = f"{context.name}.owner", 0
    while not context.stop.is_set():
        lives += 1
        name = f"{context.name}-{lives % 2}"
        topic_id = await create(context, client, process, name, partitions=1)
        if topic_id is None:
            await delete(context, client, process, name)
            await pause(context, 0.1, 0.5)
            continue
        key = topic_key(name, bytes.fromhex(topic_id))
        await _use(context, client, f"{process}/{lives}", name, key)
        await delete(context, client, process, name)
        await pause(context, 0.0, 0.3)


async def _use(context: Context, client: AsyncClient, process: str, name: str, key: str) -> None:
    sender = NumberedProducer(context, process, name, key, 1)
    stop = asyncio.Event()
    writing = asyncio.ensure_future(lone(_Until(context, stop), sender, client))
    await pause(context, 0.3, 4.0)
    stop.set()
    await writing
    if context.stop.is_set():
        await drain(context, client, name, key, "leader")


class _Until:
    """A context that ends earlier."""

    def __init__(self, context: Context, stop: asyncio.Event) -> None:
        self.name, self.rng, self.clock, self.history = context.name, context.rng, context.clock, context.history
        self.stop = stop
        self.pace = context.pace
        self.topic, self.client, self.caller = context.topic, context.client, context.caller
        self.watch_leader = context.watch_leader


async def create(context: Context, client: AsyncClient, process: str, name: str, partitions: int) -> str | None:
    """Return the new topic's id, in hex; None: refused, or unknown."""
    with recording(context, process, "create_topic", name=name, partitions=partitions) as call:
        call.ok((await client.admin.create_topic(name, partitions, 3, timeout=CALL_S)).topic_id.hex())
    return call.result if call.outcome is Outcome.OK else None


async def delete(context: Context, client: AsyncClient, process: str, name: str) -> None:
    with recording(context, process, "delete_topic", name=name) as call:
        await client.admin.delete_topic(name, timeout=CALL_S)
        call.ok()


async def get(context: Context, client: AsyncClient, process: str, name: str) -> None:
    with recording(context, process, "get_topic", name=name) as call:
        call.ok((await client.admin.describe_topic(name, timeout=CALL_S)).topic_id.hex())


async def list_all(context: Context, client: AsyncClient, process: str) -> None:
    """List the topics of this workload: other workloads create topics, too."""
    with recording(context, process, "list_topics", prefix=f"{context.name}-") as call:
        found = await client.admin.list_topics(timeout=CALL_S)
        call.ok({t.name: t.topic_id.hex() for t in found if t.name.startswith(f"{context.name}-")})
