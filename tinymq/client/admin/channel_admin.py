"""Channels, their consumers, and the heads of partitions, looked after from outside: AsyncAdmin's other half."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tinymq.base.errors import Fenced, TinymqError, UnknownChannel
from tinymq.client.admin.holds import (
    ENOUGH,
    HOLD_ID_BYTES,
    AsyncHold,
    HoldDescription,
    check_hold_id,
    check_lease,
    hold_many,
    hold_once,
    read_ranges,
)
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import topic_with
from tinymq.client.cluster.lookups import topic_with as topics_with
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import (
    WAIT_S_MIN,
    check_channel,
    check_count,
    check_partition,
    check_topic,
    check_wait,
)
from tinymq.client.common.start_positions import OffsetLike, Place, read_offset, read_place
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import REQUEST_ID_BYTES, ChannelDescription, ChannelId, ConsumerDescription
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

ASKED_AT_ONCE_MAX = 16
LEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """What a partition keeps."""

    records: int
    bytes: int  # as they are stored: no less than there are, and by less than 1/128 more


class AsyncChannelAdmin:
    """What `client.admin` can do with channels. `timeout` is in seconds; request_timeout_ms if not given."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_channels(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[ChannelDescription]:
        """The channels of a topic, or of one of its partitions, by partition and name, as the leaders have them."""
        found = await self._partitions_of(topic, partition, timeout)
        return [
            cursors.describe(topic, number, info)
            for number, there in found
            for info in sorted(there.channels, key=lambda info: info.channel)
        ]

    async def seek_channel(
        self,
        topic: str,
        partition: int,
        channel: str,
        to: Place,
        *,
        unless_read: bool = False,
        make: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Move a channel to an Offset, "earliest", "latest" or a datetime; the position then.

        Whoever reads it is Fenced at its next commit; with `unless_read`, nobody is, and Fenced is raised here while
        somebody is on record for reading it. With `make` a channel that is not there begins at `to`. Raises
        UnknownChannel, OffsetOutOfRange, OutcomeUnknown.
        """
        place = read_place(to)
        left = self._cluster.countdown(self._timeout_s(timeout))
        named = await self._named(topic, partition, channel, left())
        request_id = self._cluster.rng.randbytes(REQUEST_ID_BYTES)
        fenced: Fenced | None = None
        async for attempt in self._cluster.attempts(left()):
            (found,) = await self._channels_of(named.topic, [partition], left())
            epoch = next((info.epoch for info in found.channels if info.channel == channel), None)
            if epoch is None and not make:
                raise UnknownChannel(f"{topic}/{partition} has no channel {channel!r}")
            if unless_read:  # who takes it over after this has a higher epoch, and what follows is refused
                await self._check_unread(named, left())
            try:
                # Made with epoch 0: whoever makes it meanwhile is not fenced, and has its own place.
                command = cursors.opening(0, place) if epoch is None else cursors.seeking(epoch, place, request_id)
                return int((await cursors.change(self._cluster, named, command, left())).position)
            except Fenced as error:  # a consumer took it over since it was listed
                fenced = error
                attempt.at_once()
        assert fenced is not None, "the first attempt is made even without any time"
        raise fenced

    async def _check_unread(self, named: ChannelId, timeout_s: float) -> None:
        reader = await cursors.get_consumer(self._cluster, named, timeout_s)
        if reader is not None:
            where = f"{named.topic.name}/{named.partition}"
            raise Fenced(
                f"{reader.consumer} reads {where} through channel {named.channel!r}",
                hint=f"if it died: tinymq queue consumer unset {where} --channel {named.channel}",
            )

    async def delete_channel(self, topic: str, partition: int, channel: str, *, timeout: float | None = None) -> None:
        """Delete a channel of one partition, with its cursor; its consumer is told. Raises UnknownChannel."""
        left = self._cluster.countdown(self._timeout_s(timeout))
        named = await self._named(topic, partition, channel, left())
        await cursors.delete_channel(self._cluster, named, left())

    async def trim(self, topic: str, partition: int, before: Place, *, timeout: float | None = None) -> int:
        """Remove for good what lies before an Offset, or before the first record at or after a datetime.

        Returns the log start then. Raises OffsetOutOfRange beyond the end; Held when somebody holds what was to go.
        """
        check_topic(topic)
        check_partition(partition)
        place = read_place(before)
        left = self._cluster.countdown(self._timeout_s(timeout))
        known = await topic_with(self._cluster, topic, partition, left())
        return await cursors.trim(self._cluster, known, partition, place, left())

    def hold(self, topic: str, partition: int, offset: OffsetLike, *, lease: float = LEASE_S) -> AsyncHold:
        """Keep what lies from `offset` on while an `async with` block runs, whatever retention says. See AsyncHold."""
        check_topic(topic)
        return AsyncHold(self._cluster, topic, check_partition(partition), offset, lease)

    async def list_holds(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[HoldDescription]:
        """What keeps records of a topic, or of one of its partitions, from being removed: by partition and offset, as
        the leaders have it. Holds that ran out are not in it."""
        found = await self._partitions_of(topic, partition, timeout)
        return [
            HoldDescription(topic, number, hold.hold_id, hold.offset, hold.left_ms / 1000)
            for number, there in found
            for hold in there.holds
        ]

    async def make_hold(
        self,
        topic: str,
        partition: int,
        offset: OffsetLike,
        *,
        lease: float = LEASE_S,
        hold_id: bytes | None = None,
        timeout: float | None = None,
    ) -> HoldDescription:
        """Keep what lies from `offset` on for `lease` seconds, 1 to 3600; with the `hold_id` of a hold there is, renew
        that one. Nobody renews it here: `hold` does. Raises OffsetOutOfRange, QuotaExceeded."""
        check_topic(topic)
        hold_id = self._cluster.rng.randbytes(HOLD_ID_BYTES) if hold_id is None else check_hold_id(hold_id)
        first, lease_s, number = read_offset(offset), check_lease(lease), check_partition(partition)
        await hold_once(self._cluster, topic, number, hold_id, first, lease_s, self._timeout_s(timeout))
        return HoldDescription(topic, number, hold_id, first, lease_s)

    async def hold_many(
        self,
        topic: str,
        ranges: Mapping[int, int],
        *,
        hold_id: bytes,
        lease: float = LEASE_S,
        enough: float = ENOUGH,
        partial: bool = False,
        light: bool = False,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """Keep, in each partition of `ranges`, what lies from its offset on for `lease` seconds, 1 to 3600, all under
        one `hold_id` of 16 bytes; where each partition begins then. Called again with the same id it renews, and moves,
        them, but for those that keep as much and have `enough` of the lease left, two thirds unless told: these stay
        as they are; with 0 none does. A lease of 0 releases them. One request for each leader, all at once.

        Raises, after all others were held: OffsetOutOfRange, QuotaExceeded (detail: partition); DeadlineExceeded,
        OutcomeUnknown. What was held meanwhile ends with its lease, or by a release. With `partial`, only
        OffsetOutOfRange is raised for partitions: others that could not be held are said in the log, and left out.

        `light`: the leader keeps the hold in memory and writes nothing. A light hold delays retention, but refuses no
        trim and no producer. A new leader does not know the hold until it is renewed there. A reader of records that
        were removed in spite of the hold gets OffsetOutOfRange.
        """
        check_topic(topic)
        wanted = read_ranges(ranges)
        lease_s = 0.0 if lease == 0 else check_lease(lease)
        check_hold_id(hold_id)
        return await hold_many(
            self._cluster,
            topic,
            wanted,
            hold_id,
            lease_s,
            self._timeout_s(timeout),
            enough=enough,
            partial=partial,
            light=light,
        )

    async def kept_sizes(
        self, topic: str, partitions: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, PartitionSize]:
        """How much each of these partitions keeps, as its leader counts it; those whose leader does not say so in time
        are left out. Raises UnknownTopic, UnknownPartition."""
        check_topic(topic)
        left = self._cluster.countdown(self._timeout_s(timeout))
        numbers = [check_partition(number) for number in partitions]
        known = await topics_with(self._cluster, topic, numbers, left())
        asking = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask(number: int) -> pb.PartitionChannels | None:
            async with asking:
                try:
                    return await cursors.list_channels(self._cluster, known, number, left())
                except TinymqError as error:
                    LOG.info("%s/%d: its size is not known: %s", topic, number, error)
                    return None

        found = await asyncio.gather(*map(ask, numbers))
        return {
            number: PartitionSize(said.high_watermark - said.log_start, said.record_bytes)
            for number, said in zip(numbers, found, strict=True)
            if said is not None
        }

    async def release_hold(self, topic: str, partition: int, hold_id: bytes, *, timeout: float | None = None) -> None:
        """End a hold, whoever made it: its records may go from now on. One that is not there is no error."""
        check_topic(topic)
        number, timeout_s = check_partition(partition), self._timeout_s(timeout)
        await hold_once(self._cluster, topic, number, check_hold_id(hold_id), 0, 0.0, timeout_s)

    async def get_consumer(
        self, topic: str, partition: int, channel: str, *, timeout: float | None = None
    ) -> ConsumerDescription | None:
        """Who is on record for reading a partition through a channel; None: nobody. It may have died since."""
        left = self._cluster.countdown(self._timeout_s(timeout))
        return await cursors.get_consumer(self._cluster, await self._named(topic, partition, channel, left()), left())

    async def unset_consumer(
        self, topic: str, partition: int, channel: str, epoch: int = 0, *, timeout: float | None = None
    ) -> None:
        """Nobody is on record for it any more; with an `epoch`, only if it is still that assignment. Who reads it is
        not stopped by this. Nothing happens when nobody is."""
        left = self._cluster.countdown(self._timeout_s(timeout))
        check_count("epoch", epoch, 0)
        named = await self._named(topic, partition, channel, left())
        await cursors.unset_consumer(self._cluster, named, epoch, left())

    async def _named(self, topic: str, partition: int, channel: str, timeout_s: float) -> ChannelId:
        check_topic(topic)
        check_partition(partition)
        check_channel(channel)
        return ChannelId(await topic_with(self._cluster, topic, partition, timeout_s), partition, channel)

    async def _partitions_of(
        self, topic: str, partition: int | None, timeout: float | None
    ) -> list[tuple[int, pb.PartitionChannels]]:
        """What the leaders say of a topic's partitions, or of one of them, by number."""
        check_topic(topic)
        left = self._cluster.countdown(self._timeout_s(timeout))
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
        asking = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
        left = self._cluster.countdown(timeout_s)

        async def ask(partition: int) -> pb.PartitionChannels:
            async with asking:
                return await cursors.list_channels(self._cluster, topic, partition, left())

        return await asyncio.gather(*map(ask, partitions))

    def _timeout_s(self, timeout: float | None) -> float:
        check_wait(timeout, least_s=WAIT_S_MIN)
        return self._cluster.config.request_timeout_ms / 1000 if timeout is None else timeout
