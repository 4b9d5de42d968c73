"""Topics with weaker durability: in memory, or synced some time after the acknowledgement. One topic's `sync` is
altered again and again.

Writes and reads are the usual ones. A checker knows by the topic's settings how many records may be lost.
"""

from __future__ import annotations

import asyncio

from tinymq_chaos.workloads import producers, readers
from tinymq_chaos.workloads.alterations import altering
from tinymq_chaos.workloads.capacity import Company
from tinymq_chaos.workloads.context import CALL_S, Context, described, key_of
from tinymq_chaos.workloads.producers import NumberedProducer

SYNC_MS = 200
SYNCS = ("always", "200", "5000")  # the values of a toggled topic's `sync`
MEMORY_BYTES = 8 << 20


async def volatile(context: Context) -> None:
    """In memory: records are lost when a majority of the brokers end before they have caught up."""
    await _load(context, {"storage": "memory", "max_bytes": str(MEMORY_BYTES)})


async def delayed(context: Context) -> None:
    """Synced at intervals: the last moments are lost when a majority of the machines lose power at once."""
    await _load(context, {"sync": str(SYNC_MS)})


async def toggled(context: Context) -> None:
    """Alternate between syncing at intervals and always, sometimes with two changes at once.

    The setting under which a record was acknowledged decides whether it was at risk, not the setting when the power
    fails.
    """
    await _load(context, {"sync": SYNCS[-1]}, altering("sync", SYNCS, twice=True))


async def _load(context: Context, settings: dict[str, str], *beside: Company) -> None:
    name = await context.topic(1, settings)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    replicas = (await described(context, client, name)).replication_factor
    context.history.topics[key] = settings | {"replicas": str(replicas)}
    senders = [NumberedProducer(context, f"{context.name}.{letter}", name, key, 1) for letter in "ab"]
    await asyncio.gather(
        producers.lone(context, senders[0], client),
        producers.stream(context, senders[1], context.client(request_timeout_ms=CALL_S * 1000)),
        readers.follow(context, client, name, key, "leader"),
        readers.follow(context, client, name, key, "follower"),
        readers.look_up_times(context, client, name, key),
        *(other(context, client, name, key) for other in beside),
    )
    for replica in ("leader", "follower"):
        await readers.drain(context, client, name, key, replica)
