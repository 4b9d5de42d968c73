"""The workloads: what clients do during faults. Each writes every call into a history.

A workload is a coroutine function of a Context, with an entry in WORKLOADS. On `context.stop` it ends its calls and
reads everything to the end; all faults are over then. It uses nothing but tinymq's client, so it runs against a
simulated cluster and a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from tinymq_chaos.workloads import (
    alterations,
    capacity,
    channels,
    cursor_races,
    moves,
    observers,
    producers,
    queues,
    readers,
    recreated,
    topics,
    trims,
    weak_topics,
)
from tinymq_chaos.workloads.capacity import Company
from tinymq_chaos.workloads.context import CALL_S, Context, Workload, key_of
from tinymq_chaos.workloads.delays import scheduled
from tinymq_chaos.workloads.groups import members, workers
from tinymq_chaos.workloads.pipelining import push
from tinymq_chaos.workloads.producers import NumberedProducer
from tinymq_chaos.workloads.transactions import halves, lingering_transactions, processors, results, transfers

PARTITIONS = 2
LOOK_UPS: tuple[Company, ...] = (readers.look_up_times,)
"""Calls beside a load that another system than tinymq may not have."""


async def idempotent(context: Context, beside: Sequence[Company] = LOOK_UPS) -> None:
    """Two producers with many records in flight; readers on leaders and on followers."""
    await _load(
        context,
        [("a", producers.stream, {}), ("b", producers.stream, {"linger_ms": 0})],
        ["leader", "follower"],
        beside,
    )


async def plain(context: Context, beside: Sequence[Company] = LOOK_UPS) -> None:
    """A producer without sequences: no record is sent twice, and unknown outcomes stay unknown."""
    await _load(context, [("a", producers.stream, {"idempotent": False})], ["nearest"], beside)


async def lone(context: Context, beside: Sequence[Company] = LOOK_UPS) -> None:
    """Single sends, one after another."""
    await _load(context, [("a", producers.lone, {}), ("b", producers.lone, {})], ["any"], beside)


async def crowd(context: Context) -> None:
    """Callers that share one client. Of a synchronous client, each is a thread."""
    await _load(context, [("a", producers.crowd, {})], ["any"])


async def batches(context: Context) -> None:
    """Complete tables."""
    await _load(context, [("a", producers.batches, {})], ["follower"])


async def hasty(context: Context) -> None:
    """Producers that speak the protocol themselves: many batches in flight, early retries, out of order."""
    await _load(context, [("a", push, {})], ["leader"])


async def _load(
    context: Context,
    senders: list[tuple[str, Any, dict[str, Any]]],
    replicas: list[str],
    beside: Sequence[Company] = LOOK_UPS,
) -> None:
    name = await context.topic(PARTITIONS)
    reading = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, reading, name)
    running: list[Awaitable[None]] = [readers.follow(context, reading, name, key, replica) for replica in replicas]
    running.append(readers.look_at_ends(context, reading, name, key))
    running += [other(context, reading, name, key) for other in beside]
    for letter, send, settings in senders:
        sender = NumberedProducer(context, f"{context.name}.{letter}", name, key, PARTITIONS)
        running.append(send(context, sender, context.client(request_timeout_ms=CALL_S * 1000), **settings))
    await asyncio.gather(*running)
    for replica in ("leader", "follower"):
        await readers.drain(context, reading, name, key, replica)


WEAK = frozenset({"volatile", "delayed", "toggled", "unreplicated"})
"""The topics of these workloads do not recover by themselves, or not at all, after disks were wiped or damaged."""

NAMED = frozenset({"lingering"})
"""They run in plans that name them: about one special state of the log, which each of their runs reaches."""

OF_THREE = frozenset({"metadata", "churn", "moved", "recreated"})
"""They need three brokers."""

WORKLOADS: dict[str, Workload] = {
    "idempotent": idempotent,
    "plain": plain,
    "lone": lone,
    "crowd": crowd,
    "batches": batches,
    "hasty": hasty,
    "cursors": channels.cursors,
    "takers": channels.takers,
    "rush": cursor_races.rush,
    "members": members.members,
    "workers": workers.workers,
    "keyed": workers.keyed,
    "queues": queues.queues,
    "retained": capacity.retained,
    "unreplicated": capacity.unreplicated,
    "sized": capacity.sized,
    "room": capacity.room,
    "heavy": capacity.heavy,
    "full": capacity.full,
    "trimmed": trims.trimmed,
    "altered": alterations.altered,
    "scheduled": scheduled.scheduled,
    "transfers": transfers.transfers,
    "lingering": lingering_transactions.lingering,
    "processors": processors.processors,
    "results": results.results,
    "halves": halves.halves,
    "moved": moves.moved,
    "observed": observers.observed,
    "volatile": weak_topics.volatile,
    "delayed": weak_topics.delayed,
    "toggled": weak_topics.toggled,
    "churn": topics.churn,
    "recreated": recreated.recreated,
    "partitions": topics.partitions,
    "metadata": topics.metadata,
}
