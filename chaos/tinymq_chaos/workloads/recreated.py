"""A topic that is deleted and made again, many times, under writers and a reader that know its name alone.

No writer learns into which of the topics of that name its record went. So these sends and polls have kinds of their own
in the history, and a checker of their own (checkers/records/recreated.py).
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from tinymq.client import AsyncClient
from tinymq_chaos.history import Outcome
from tinymq_chaos.workloads.context import CALL_S, Context, begin, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, place_of, producing
from tinymq_chaos.workloads.readers import POLL_S, SETTINGS, runs
from tinymq_chaos.workloads.topics import create, delete, get

PARTITIONS = 2
LIFE_S = (1.0, 4.0)  # of one topic
GONE_S = (0.0, 0.8)  # between a topic and the next one


async def recreated(context: Context) -> None:
    """One owner deletes the topic and makes it again; a producer with many records in flight and a client with single
    sends write to its name; a reader reads it from its beginning, again and again.
    """
    name = f"{context.name}-0"
    owner = context.client(request_timeout_ms=CALL_S * 1000)
    await _exists(context, owner, name)
    await asyncio.gather(
        _own(context, owner, name),
        _lone(context, f"{context.name}.a", name),
        _stream(context, f"{context.name}.b", name),
        _read(context, name),
    )


async def _own(context: Context, client: AsyncClient, name: str) -> None:
    """Delete and create until all faults are over. The last topic stays."""
    process = f"{context.name}.owner"
    while not context.stop.is_set():
        await pause(context, *LIFE_S)
        if context.history.calm_s is not None:
            return
        await delete(context, client, process, name)
        await pause(context, *GONE_S)
        await _exists(context, client, name)


async def _exists(context: Context, client: AsyncClient, name: str) -> None:
    """Create the topic until it is there. A creation without an answer may have been done."""
    process = f"{context.name}.owner"
    while await create(context, client, process, name, PARTITIONS) is None and not context.stop.is_set():
        await get(context, client, process, name)
        if context.history.calls[-1].outcome is Outcome.OK:
            return
        await context.clock.sleep(0.1)


async def _lone(context: Context, process: str, name: str) -> None:
    """Send single records one after another."""
    client = context.client(request_timeout_ms=CALL_S * 1000)
    sender = NumberedProducer(context, process, name, name, PARTITIONS)
    while not context.stop.is_set():
        (record,) = sender.records(1)
        partition = context.rng.randrange(PARTITIONS)
        with recording(context, process, "send_by_name", name=name, partition=partition, records=[record]) as call:
            call.ok(place_of(await client.send(name, partition=partition, **sender.content(record).arguments())))
        await pause(context, 0.05, 0.5)


async def _stream(context: Context, process: str, name: str) -> None:
    """Send bursts of records with one producer, which lives longer than the topics."""
    sender = NumberedProducer(context, process, name, name, PARTITIONS)
    async with producing(context.client(request_timeout_ms=CALL_S * 1000), {}) as producer:
        while not context.stop.is_set():
            partition = context.rng.randrange(PARTITIONS)
            burst = sender.records(context.rng.randint(1, 5))
            await asyncio.gather(*(_put(context, sender, producer, partition, record) for record in burst))
            await pause(context, 0.0, 0.5)


async def _put(context: Context, sender: NumberedProducer, producer: Any, partition: int, record: str) -> None:
    place: dict[str, Any] = {"name": sender.topic, "partition": partition, "records": [record]}
    # A send may wait for room or for the topic (block_ms_max), and then for its delivery.
    with recording(context, sender.process, "send_by_name", 2 * CALL_S, **place) as call:
        delivery = await producer.send(sender.topic, partition=partition, **sender.content(record).arguments())
        call.ok(place_of(await delivery))


async def _read(context: Context, name: str) -> None:
    """Read from the beginning, with one reader after another."""
    client = context.client(request_timeout_ms=CALL_S * 1000)
    for number in count():
        if context.stop.is_set():
            return
        process = f"{context.name} reader {number}"
        reader = client.reader(name, start="earliest", replica="leader", **SETTINGS)
        try:
            with recording(context, process, "open_by_name", name=name) as call:
                await reader.open()
                call.ok()
            while call.outcome is Outcome.OK and not context.stop.is_set() and context.rng.random() > 0.15:
                call = begin(context, process, "poll_by_name", POLL_S, name=name)
                with recorded(call):
                    call.ok(runs(await reader.poll(timeout=POLL_S)))
        finally:
            await reader.close()
        await pause(context, 0.0, 0.5)
