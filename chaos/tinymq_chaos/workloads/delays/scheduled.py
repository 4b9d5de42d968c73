"""Delayed records, of which some are canceled, beside records that are not delayed."""

from __future__ import annotations

import asyncio

from tinymq.client import AsyncClient
from tinymq_chaos.history import Call
from tinymq_chaos.workloads import readers
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone, place_of

PARTITIONS = 2
LINES = 5  # of records that are delayed at the same time, each by one client after another
DELAY_S = (1.0, 5.0)
CANCELED = 0.4  # the share of delayed records that the workload tries to cancel
NEAR = 0.6  # the share of those that are canceled at about the time at which they are due
LATE_S = 3.0  # from the last due time to the last writes, so that all delayed records lie before these in the log


async def scheduled(context: Context) -> None:
    """Records that are due within seconds, and canceled at any moment up to then and shortly after."""
    name = await context.topic(PARTITIONS)
    reading = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, reading, name)
    clients = [context.client(request_timeout_ms=CALL_S * 1000) for _ in range(2)]
    senders = [NumberedProducer(context, f"{context.name}.{n}", name, key, PARTITIONS) for n in range(LINES)]
    beside = NumberedProducer(context, f"{context.name}.lone", name, key, PARTITIONS)
    await asyncio.gather(
        readers.follow(context, reading, name, key, "leader"),
        readers.look_at_ends(context, reading, name, key),
        lone(context, beside, clients[0]),
        *[_delay(context, sender, clients[n % 2]) for n, sender in enumerate(senders)],
    )
    await context.clock.sleep(DELAY_S[1] + LATE_S)
    await asyncio.gather(*[_mark(context, beside, clients[0], partition) for partition in range(PARTITIONS)])
    for replica in ("leader", "follower"):
        await readers.drain(context, reading, name, key, replica)


async def _delay(context: Context, sender: NumberedProducer, client: AsyncClient) -> None:
    """Delay records one after another, and cancel some of them."""
    while not context.stop.is_set():
        (record,) = sender.records(1)
        partition, delay_s = context.rng.randrange(PARTITIONS), round(context.rng.uniform(*DELAY_S), 3)
        # Its own producer: records come in the order of their due times.
        call = begin(
            context, sender.process, "schedule",
            topic=sender.key, partition=partition, records=[record], producer=record, idempotent=True,
        )  # fmt: skip
        with recorded(call):
            content = sender.content(record).arguments()
            stored = await client.send(sender.topic, partition=partition, delay=delay_s, **content)
            call.ok([stored.partition, stored.schedule_id, round(stored.deliver_at.timestamp() * 1e6)])
        if call.result is not None and context.rng.random() < CANCELED:
            near = context.rng.random() < NEAR
            wait_s = delay_s + context.rng.uniform(-0.2, 0.1) if near else context.rng.uniform(0.0, 1.2) * delay_s
            await context.clock.sleep(wait_s)
            await _cancel(context, sender, client, call)
        await pause(context, 0.0, 1.0)


async def _cancel(context: Context, sender: NumberedProducer, client: AsyncClient, stored: Call) -> None:
    partition, schedule_id, _ = stored.result
    with recording(
        context, sender.process, "cancel",
        topic=sender.key, partition=partition, records=stored.args["records"], schedule_id=schedule_id,
    ) as call:  # fmt: skip
        call.ok(await client.cancel(sender.topic, partition, schedule_id))


async def _mark(context: Context, sender: NumberedProducer, client: AsyncClient, partition: int) -> None:
    """Write a record that is not delayed, until one is acknowledged."""
    while True:
        (record,) = sender.records(1)
        call = sender.begin([record], partition, sender.process, idempotent=True)
        with recorded(call):
            content = sender.content(record).arguments()
            call.ok(place_of(await client.send(sender.topic, partition=partition, **content)))
        sender.ended(call)
        if call.result is not None:
            return
        await context.clock.sleep(0.5)
