"""Channels, their consumers, and what partitions keep, asked of the partitions' leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinymq.base.errors import Fenced, TinymqError, UnknownChannel
from tinymq.client.admin.holds import HoldDescription
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import topic_with
from tinymq.client.cluster.lookups import topic_with as topics_with
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import check_channel, check_partition, check_topic
from tinymq.client.common.start_positions import Place, read_place
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import REQUEST_ID_BYTES, ChannelDescription, ChannelId, ConsumerDescription
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

LEADERS_AT_ONCE_MAX = 16  # requests at the same time, when all partitions of a topic are asked


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """What a partition keeps."""

    records: int
    bytes: int  # as stored, or up to 1/128 more


class Channels:
    """The part of the admin whose calls go to the leaders of partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, topic: str, partition: int | None, timeout_s: float) -> list[ChannelDescription]:
        """The channels of a topic, or of one of its partitions, by partition and name."""
        return [
            cursors.describe(topic, number, info)
            for number, found in await self._partitions_of(topic, partition, timeout_s)
            for info in sorted(found.channels, key=lambda info: info.channel)
        ]

    async def holds(self, topic: str, partition: int | None, timeout_s: float) -> list[HoldDescription]:
        """The holds on a topic, or on one of its partitions, by partition and offset."""
        return [
            HoldDescription(topic, number, hold.hold_id, hold.offset, hold.left_ms / 1000)
            for number, found in await self._partitions_of(topic, partition, timeout_s)
            for hold in found.holds
        ]

    async def sizes(self, topic: str, partitions: Sequence[int], timeout_s: float) -> dict[int, PartitionSize]:
        """The size of each of these partitions. Partitions whose leader does not answer are left out."""
        left = self._cluster.countdown(timeout_s)
        known = await topics_with(self._cluster, topic, partitions, left())
        asking = asyncio.Semaphore(LEADERS_AT_ONCE_MAX)

        async def ask(number: int) -> pb.PartitionChannels | None:
            async with asking:
                try:
                    return await cursors.list_channels(self._cluster, known, number, left())
                except TinymqError as error:
                    LOG.info("%s/%d: its size is not known: %s", topic, number, error)
                    return None

        replies = await asyncio.gather(*map(ask, partitions))
        return {
            number: PartitionSize(reply.high_watermark - reply.log_start, reply.record_bytes)
            for number, reply in zip(partitions, replies, strict=True)
            if reply is not None
        }

    async def trim(self, topic: str, partition: int, before: Place, timeout_s: float) -> int:
        """Remove the records before a place, and return the log start after that."""
        check_topic(topic)
        check_partition(partition)
        place = read_place(before)
        left = self._cluster.countdown(timeout_s)
        known = await topic_with(self._cluster, topic, partition, left())
        return await cursors.trim(self._cluster, known, partition, place, left())

    async def seek(
        self, topic: str, partition: int, channel: str, to: Place, timeout_s: float, *, unless_read: bool, make: bool
    ) -> int:
        """Move a channel's cursor, and return its position after that. See AsyncAdmin.seek_channel."""
        place = read_place(to)
        left = self._cluster.countdown(timeout_s)
        named = await self._named(topic, partition, channel, left())
        request_id = self._cluster.rng.randbytes(REQUEST_ID_BYTES)
        fenced: Fenced | None = None
        async for attempt in self._cluster.attempts(left()):
            (found,) = await self._channels_of(named.topic, [partition], left())
            epoch = next((info.epoch for info in found.channels if info.channel == channel), None)
            if epoch is None and not make:
                raise UnknownChannel(f"{topic}/{partition} has no channel {channel!r}")
            if unless_read:
                # A consumer that takes the channel over after this check has a higher epoch. The leader then refuses
                # the command below, which carries the epoch that was listed.
                await self._check_unread(named, left())
            try:
                # Made with epoch 0, the lowest. A consumer that makes the channel at the same time is not fenced, and
                # keeps its own place.
                command = cursors.opening(0, place) if epoch is None else cursors.seeking(epoch, place, request_id)
                return int((await cursors.change(self._cluster, named, command, left())).position)
            except Fenced as error:  # a consumer took it over since it was listed
                fenced = error
                attempt.at_once()
        assert fenced is not None, "the first attempt is made even without any time"
        raise fenced

    async def delete(self, topic: str, partition: int, channel: str, timeout_s: float) -> None:
        """Delete a channel. Raises UnknownChannel."""
        left = self._cluster.countdown(timeout_s)
        named = await self._named(topic, partition, channel, left())
        await cursors.delete_channel(self._cluster, named, left())

    async def get_consumer(
        self, topic: str, partition: int, channel: str, timeout_s: float
    ) -> ConsumerDescription | None:
        """The consumer on record for a channel, or None."""
        left = self._cluster.countdown(timeout_s)
        named = await self._named(topic, partition, channel, left())
        return await cursors.get_consumer(self._cluster, named, left())

    async def unset_consumer(self, topic: str, partition: int, channel: str, epoch: int, timeout_s: float) -> None:
        """Remove the consumer on record; with an epoch above 0, only if it is the one with that epoch."""
        left = self._cluster.countdown(timeout_s)
        named = await self._named(topic, partition, channel, left())
        await cursors.unset_consumer(self._cluster, named, epoch, left())

    async def _check_unread(self, named: ChannelId, timeout_s: float) -> None:
        """Raises Fenced when a consumer is on record for the channel."""
        reader = await cursors.get_consumer(self._cluster, named, timeout_s)
        if reader is not None:
            where = f"{named.topic.name}/{named.partition}"
            raise Fenced(
                f"{reader.consumer} reads {where} through channel {named.channel!r}",
                hint=f"if it died: tinymq queue consumer unset {where} --channel {named.channel}",
            )

    async def _named(self, topic: str, partition: int, channel: str, timeout_s: float) -> ChannelId:
        """The channel's identity, with the id of its topic. Raises UnknownTopic, UnknownPartition."""
        check_topic(topic)
        check_partition(partition)
        check_channel(channel)
        return ChannelId(await topic_with(self._cluster, topic, partition, timeout_s), partition, channel)

    async def _partitions_of(
        self, topic: str, partition: int | None, timeout_s: float
    ) -> list[tuple[int, pb.PartitionChannels]]:
        """The leaders' replies for a topic's partitions, or for one of them, by number."""
        check_topic(topic)
        left = self._cluster.countdown(timeout_s)
        if partition is None:
            known = await self._cluster.topic(topic, left())
            numbers = known.numbers
        else:
            known = await topic_with(self._cluster, topic, check_partition(partition), left())
            numbers = (partition,)
        return list(zip(numbers, await self._channels_of(known, numbers, left()), strict=True))

    async def _channels_of(
        self, topic: Topic, partitions: Iterable[int], timeout_s: float
    ) -> list[pb.PartitionChannels]:
        asking = asyncio.Semaphore(LEADERS_AT_ONCE_MAX)
        left = self._cluster.countdown(timeout_s)

        async def ask(partition: int) -> pb.PartitionChannels:
            async with asking:
                return await cursors.list_channels(self._cluster, topic, partition, left())

        return await asyncio.gather(*map(ask, partitions))
