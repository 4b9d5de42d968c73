"""Producers that number their records and write down the outcome of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tinymq.base.errors import NotDelivered, TinymqError
from tinymq.client import AsyncClient
from tinymq.format.batch import SCHEMA
from tinymq_chaos.history import Call
from tinymq_chaos.records import DRAWN, VALUE_BYTES_MIN, Content, columns, make_content
from tinymq_chaos.workloads.context import CALL_S, Context, begin, fail, pause, recorded

OUTSTANDING_MAX = 60  # calls of one producer without an answer; above it, the producer waits
LIFE_S = 8.0  # of one producer object, about; the next one has another producer id


@dataclass(slots=True)
class NumberedProducer:
    """A process that names its records one after another."""

    context: Context
    process: str
    topic: str  # name
    key: str
    partitions: int
    looks: Sequence[int] = DRAWN  # of records.LOOKS
    _count: int = 0
    outstanding: set[int] = field(default_factory=set)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def records(self, count: int) -> list[str]:
        names = [f"{self.process}-{n}" for n in range(self._count, self._count + count)]
        self._count += count
        return names

    def content(self, record: str, *, own_clock: bool = True) -> Content:
        """Return the fields of a record, mostly a small one, now and then one that fills segments.

        `own_clock`: see make_content.
        """
        rng = self.context.rng
        size = rng.choice((VALUE_BYTES_MIN, VALUE_BYTES_MIN, 200, rng.randrange(2_000)))
        now_us = self.context.clock.wall_us()
        return make_content(record, size, now_us, own_clock=own_clock, looks=self.looks)

    def begin(self, records: list[str], partition: int | None, producer: str, **args: Any) -> Call:
        call = begin(
            self.context, self.process, "send",
            topic=self.key, partition=partition, records=records, producer=producer, **args,
        )  # fmt: skip
        self.outstanding.add(call.number)
        return call

    def ended(self, call: Call) -> None:
        self.outstanding.discard(call.number)
        self.answered.set()

    async def room(self) -> None:
        while len(self.outstanding) >= OUTSTANDING_MAX:
            self.answered.clear()
            await self.answered.wait()


async def stream(context: Context, sender: NumberedProducer, client: AsyncClient, **settings: Any) -> None:
    """Send records one after another in bursts, many in flight at once; now and then with a new producer object."""
    lives, idempotent = 0, bool(settings.get("idempotent", True))
    while not context.stop.is_set():
        lives += 1
        name = f"{sender.process}/{lives}"
        until_s = context.clock.monotonic() + context.rng.uniform(0.5, 2) * LIFE_S
        async with producing(client, settings) as producer:
            while context.clock.monotonic() < until_s and not context.stop.is_set():
                partition = context.rng.randrange(sender.partitions)
                for record in sender.records(context.rng.randint(1, 8)):
                    call = sender.begin([record], partition, name, idempotent=idempotent)
                    try:
                        fields = sender.content(record).arguments()
                        delivery = await producer.send(sender.topic, partition=partition, **fields)
                    except TinymqError as error:
                        fail(call, error)
                        sender.ended(call)
                    else:
                        delivery.add_done_callback(_answer(sender, call))
                await sender.room()
                await pause(context, 0.0, 0.6)


def _answer(sender: NumberedProducer, call: Call) -> Callable[[Any], None]:
    def answer(delivery: Any) -> None:
        error = delivery.exception(0)
        if error is None:
            metadata = delivery.result(0)
            call.ok(place_of(metadata))
        else:
            fail(call, error)
        sender.ended(call)

    return answer


def place_of(metadata: Any) -> list[Any]:
    """Return the result of a send, as histories have it."""
    return [metadata.partition, metadata.offset, metadata.append_time_us]


async def batches(context: Context, sender: NumberedProducer, client: AsyncClient) -> None:
    """Send complete tables, one at a time."""
    async with producing(client, {}) as producer:
        while not context.stop.is_set():
            names = sender.records(context.rng.randint(2, 12))
            partition = context.rng.randrange(sender.partitions)
            table = _table([sender.content(name) for name in names])
            call = sender.begin(names, partition, sender.process, idempotent=True)
            with recorded(call):
                parts = await (await producer.send_batch(sender.topic, table, partition=partition))
                assert len(parts) == 1, "small tables travel in one piece: else a failure says nothing of each record"
                call.ok([parts[0].partition, parts[0].base_offset, parts[0].append_time_us])
            sender.ended(call)
            await pause(context, 0.1, 1.0)


def _table(contents: list[Content]) -> pa.Table:
    """Return a table of all columns. A timestamp that was not given is null there."""
    keys, values, headers, _ = columns(contents, 0)
    times = [content.timestamp_us for content in contents]
    arrays = [pa.array(each, field.type) for each, field in zip((keys, values, headers, times), SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


async def crowd(context: Context, sender: NumberedProducer, client: AsyncClient) -> None:
    """Let several callers share one client, each with one record at a time."""
    names = [f"{sender.process}{letter}" for letter in "stuv"]
    await asyncio.gather(*(lone(context, replace(sender, process=name), client, 0.0, 0.15) for name in names))


async def lone(
    context: Context, sender: NumberedProducer, client: AsyncClient, least_s: float = 0.05, most_s: float = 0.7
) -> None:
    """Send single records one after another, so that each shows the latency of one write."""
    while not context.stop.is_set():
        (name,) = sender.records(1)
        partition = context.rng.randrange(sender.partitions)
        call = sender.begin([name], partition, sender.process, idempotent=True)
        with recorded(call):
            metadata = await client.send(sender.topic, partition=partition, **sender.content(name).arguments())
            call.ok(place_of(metadata))
        sender.ended(call)
        await pause(context, least_s, most_s)


@asynccontextmanager
async def producing(client: AsyncClient, settings: dict[str, Any]) -> AsyncIterator[Any]:
    """Return a producer whose calls end within CALL_S.

    The history has the outcome of everything that it could not deliver.
    """
    producer = client.producer(delivery_timeout_ms=CALL_S * 1000, block_ms_max=CALL_S * 1000, **settings)
    try:
        yield producer
    finally:
        with contextlib.suppress(NotDelivered):
            await producer.close()
