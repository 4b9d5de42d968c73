"""A workload for real processes alone: some clients write, and many count the records.

A replaced leader's wrong count shows only if several clients ask each broker at the same time and another client has
written meanwhile: a single caller most likely waits for a broker that stands still. A simulator needs no crowd for
that.
"""

from __future__ import annotations

import asyncio

from tinymq_chaos.workloads.context import CALL_S, Context, key_of
from tinymq_chaos.workloads.producers import NumberedProducer, lone
from tinymq_chaos.workloads.queues import QUEUES, QueueCaller
from tinymq_chaos.workloads.readers import drain

LOOKERS = 4


async def counted(context: Context) -> None:
    """One topic that clients write to, directly (they soon find another leader) and through QueueService; others count
    it at any broker.
    """
    service = QueueCaller(context, await context.topic(QUEUES))
    client = context.client(request_timeout_ms=CALL_S * 1000)
    service.key = await key_of(context, client, service.topic)
    running = [service.produce(f"{context.name}.a"), *(service.look() for _ in range(LOOKERS))]
    for letter in "bc":
        sender = NumberedProducer(context, f"{context.name}.{letter}", service.topic, service.key, QUEUES)
        running.append(lone(context, sender, context.client(request_timeout_ms=CALL_S * 1000)))
    await asyncio.gather(*running)
    await drain(context, client, service.topic, service.key, "leader", range(QUEUES))
