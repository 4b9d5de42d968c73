"""A workload of real processes alone: some who write, and many who count what there is.

What a leader tells of its queue after another one has taken over shows where several ask each broker at the same time,
and where somebody has written meanwhile: whoever calls one broker alone is most likely waiting for one that stands
still. A simulator needs no crowd for that.
"""

from __future__ import annotations

import asyncio

from tinymq_chaos.workloads.context import CALL_S, Context, key_of
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.queues import QUEUES, QueueCaller
from tinymq_chaos.workloads.readers import drain

LOOKERS = 4


async def counted(context: Context) -> None:
    """One topic: written to through QueueService, and by clients, which find another leader soon; counted at whatever
    broker."""
    service = QueueCaller(context, await context.topic(QUEUES))
    client = context.client(request_timeout_ms=CALL_S * 1000)
    service.key = await key_of(context, client, service.topic)
    running = [service.produce(f"{context.name}.a"), *(service.look() for _ in range(LOOKERS))]
    for letter in "bc":
        sender = NumberedProducer(context, f"{context.name}.{letter}", service.topic, service.key, QUEUES)
        running.append(lone(context, sender, context.client(request_timeout_ms=CALL_S * 1000)))
    await asyncio.gather(*running)
    await drain(context, client, service.topic, service.key, "leader", range(QUEUES))
