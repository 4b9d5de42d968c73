"""Consumers that speak the protocol themselves: several commits in flight in any order, seeks that are sent again much
later, and consumers that go on after another one replaced them.

The protocol allows all of it. A cursor goes forward, goes back by a new seek, and moves for the newest consumer only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tinymq.client import AsyncClient
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.start_positions import KnownOffset
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import ChannelId
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.history import Outcome
from tinymq_chaos.workloads.clients.threaded_client import cluster_of
from tinymq_chaos.workloads.context import CALL_S, Context, begin, key_of, pause, recorded, recording
from tinymq_chaos.workloads.producers import NumberedProducer, lone

CHANNEL = "rush"
CONSUMERS = 2
COMMITS = 4  # at once


@dataclass(slots=True)
class ConsumerCursor:
    """A cursor as a consumer knows it."""

    epoch: int
    generation: int
    position: int


@dataclass(frozen=True, slots=True)
class SentSeek:
    """A seek that may be sent again."""

    epoch: int
    request: bytes
    offset: int


async def rush(context: Context) -> None:
    """One channel of one partition, with consumers that do not wait for each other."""
    name = await context.topic(1)
    client = context.client(request_timeout_ms=CALL_S * 1000)
    key = await key_of(context, client, name)
    sender = NumberedProducer(context, f"{context.name}.a", name, key, 1)
    rushing = [Consumer(context, name, key, n).run() for n in range(CONSUMERS)]
    await asyncio.gather(lone(context, sender, client), *rushing)


class Consumer:
    """Opens the channel, and moves its cursor until it is fenced, and for a while after that."""

    def __init__(self, context: Context, topic: str, key: str, number: int) -> None:
        self._context = context
        self._client: AsyncClient = context.client(request_timeout_ms=CALL_S * 1000)
        self._cluster: Cluster = cluster_of(self._client)
        self._topic = topic
        self._process = f"{context.name} {number}"
        self._place: dict[str, Any] = {"topic": key, "partition": 0, "channel": CHANNEL}
        self._sought: SentSeek | None = None

    async def run(self) -> None:
        context, held = self._context, None
        while not context.stop.is_set():
            if held is None or context.rng.random() < 0.1:
                held = await self._open() or held
            elif context.rng.random() < 0.15:
                await self._seek(held)
            elif context.rng.random() < 0.1:
                await self._seek_again()
            else:
                await self._commit_some(held)
            await pause(context, 0.05, 0.6)

    async def _channel(self) -> ChannelId:
        return ChannelId(await self._cluster.topic(self._topic, CALL_S / 4), 0, CHANNEL)

    async def _open(self) -> ConsumerCursor | None:
        held: ConsumerCursor | None = None
        with recording(self._context, self._process, "open_channel", **self._place) as call:
            channel = await self._channel()
            command_id = self._context.rng.randbytes(16)
            epoch = await cursors.set_consumer(self._cluster, channel, "rush", command_id, CALL_S / 4)
            call.args["epoch"] = epoch
            outcome = await cursors.change(self._cluster, channel, cursors.opening(epoch, KnownOffset(0)), CALL_S / 4)
            held = ConsumerCursor(epoch, outcome.generation, outcome.position)
            call.ok(int(outcome.position))
        return held

    async def _seek(self, held: ConsumerCursor) -> None:
        """Seek, mostly back; then send a commit from before the seek, like one that was delayed."""
        rng = self._context.rng
        before = ConsumerCursor(held.epoch, held.generation, held.position)
        sought = SentSeek(held.epoch, rng.randbytes(16), rng.randrange(held.position + 1))
        with recording(
            self._context, self._process, "seek", **self._place, offset=sought.offset, epoch=held.epoch
        ) as call:
            outcome = await self._send_seek(sought)
            call.args["generation"] = outcome.generation
            held.generation, held.position = outcome.generation, int(outcome.position)
            call.ok(int(outcome.position))
        if call.outcome is Outcome.OK:
            self._sought = sought
            await self._commit(before.epoch, before.generation, before.position)

    async def _seek_again(self) -> None:
        """Send an answered seek again: it changes nothing, unless another seek came between."""
        sought, self._sought = self._sought, None
        if sought is not None:
            with recording(self._context, self._process, "seek_again", **self._place, offset=sought.offset) as call:
                outcome = await self._send_seek(sought)
                call.ok([int(outcome.position), outcome.generation])

    async def _send_seek(self, sought: SentSeek) -> pb.ChannelOutcome:
        command = cursors.seeking(sought.epoch, KnownOffset(sought.offset), sought.request)
        return await cursors.change(self._cluster, await self._channel(), command, CALL_S / 2)

    async def _commit_some(self, held: ConsumerCursor) -> None:
        """Send several commits at once, in any order. The partition refuses commits behind its end."""
        rng = self._context.rng
        offsets = [held.position + rng.randrange(-2, 4) for _ in range(rng.randint(1, COMMITS))]
        made = [self._commit(held.epoch, held.generation, max(0, offset)) for offset in offsets]
        positions = await asyncio.gather(*made)
        held.position = max([held.position, *positions])

    async def _commit(self, epoch: int, generation: int, offset: int) -> int:
        call = begin(
            self._context, self._process, "commit",
            **self._place, offset=offset, epoch=epoch, generation=generation,
        )  # fmt: skip
        position = 0
        with recorded(call):
            commit = pb.ChannelCommit(epoch=epoch, generation=generation, offset=offset)
            channel, command = await self._channel(), pb.ChannelCommand(commit=commit)
            outcome = await cursors.change(self._cluster, channel, command, CALL_S / 2)
            position = int(outcome.position)
            call.ok(position)
        return position
