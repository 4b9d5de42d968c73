"""What can be asked about channels and where a partition begins, one call each: all of them may be made again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from tinymq.base.errors import CorruptData, NotFound, TinymqError, UnknownChannel
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.start_positions import KnownOffset, OffsetQuestion
from tinymq.client.common.values import as_datetime
from tinymq.client.net.wire import read_error
from tinymq.proto import tinymq_pb2 as pb

AT_OFFSET = -4  # in the place of a time: the field beside it is meant
REQUEST_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class ChannelId:
    """Names a channel of a partition."""

    topic: Topic
    partition: int
    channel: str


@dataclass(frozen=True, slots=True)
class ChannelDescription:
    """A channel of one partition, as the partition's leader has it."""

    topic: str
    partition: int
    channel: str
    position: int  # the next record to be read
    lag: int  # records that it has still to read
    moved: datetime | None  # when its cursor last changed; None: never since it was made
    consumer: str  # who reads it, as far as the registry knows; "": nobody
    epoch: int
    generation: int


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """Who reads a channel, as the registry has it; it may have died since."""

    consumer: str  # its client_id
    epoch: int  # above that of whoever read it before


async def change(
    cluster: Cluster, channel: ChannelId, command: pb.ChannelCommand, timeout_s: float
) -> pb.ChannelOutcome:
    """What became of one command. Raises its error, or as `ask_leader`."""
    command.partition, command.channel = channel.partition, channel.channel
    request = pb.ChannelsRequest(topic_id=channel.topic.topic_id, commands=[command])

    def refusal(reply: pb.ChannelsReply) -> TinymqError | None:
        return _error_of(reply.outcomes)

    reply = await ask_leader(
        cluster,
        channel.topic,
        channel.partition,
        request,
        timeout_s=timeout_s,
        refusal=refusal,
    )
    outcome: pb.ChannelOutcome = reply.outcomes[0]
    return outcome


async def list_channels(cluster: Cluster, topic: Topic, partition: int, timeout_s: float) -> pb.PartitionChannels:
    """The channels of a partition, and where it begins and ends, as its leader has it."""
    request = pb.ListChannelsRequest(topic_id=topic.topic_id, partitions=[partition])

    def refusal(reply: pb.ListChannelsReply) -> TinymqError | None:
        return _error_of(reply.partitions)

    reply = await ask_leader(
        cluster,
        topic,
        partition,
        request,
        timeout_s=timeout_s,
        refusal=refusal,
        changes=False,
    )
    found: pb.PartitionChannels = reply.partitions[0]
    return found


async def set_consumer(cluster: Cluster, channel: ChannelId, consumer: str, command_id: bytes, timeout_s: float) -> int:
    """Who reads the channel from now on, in the registry; the epoch with which that consumer fences others. With the
    same `command_id` it is done once, and answered alike."""
    request = pb.SetConsumerRequest(
        topic=channel.topic.name,
        partition=channel.partition,
        channel=channel.channel,
        consumer=consumer,
        command_id=command_id,
    )
    reply = await cluster.ask(request, timeout_s=timeout_s, changes=True)
    return int(reply.epoch)


async def unset_consumer(cluster: Cluster, channel: ChannelId, epoch: int, timeout_s: float) -> None:
    """The registry names no consumer for the channel any more; with an epoch, only if it is still that one."""
    request = pb.UnsetConsumerRequest(
        topic=channel.topic.name,
        partition=channel.partition,
        channel=channel.channel,
        epoch=epoch,
        command_id=cluster.rng.randbytes(REQUEST_ID_BYTES),
    )
    await cluster.ask(request, timeout_s=timeout_s, changes=True)


async def get_consumer(cluster: Cluster, channel: ChannelId, timeout_s: float) -> ConsumerDescription | None:
    """Who is on record for the channel, as of a moment during this call. None: nobody."""
    request = pb.GetConsumerRequest(topic=channel.topic.name, partition=channel.partition, channel=channel.channel)
    reply = await cluster.ask(request, timeout_s=timeout_s)
    return ConsumerDescription(reply.consumer, reply.epoch) if reply.epoch else None


def opening(epoch: int, start: KnownOffset | OffsetQuestion) -> pb.ChannelCommand:
    """Makes the channel at `start` if there is none, and fences every lower epoch."""
    if isinstance(start, KnownOffset):
        return pb.ChannelCommand(open=pb.ChannelOpen(epoch=epoch, start_us=AT_OFFSET, start_offset=start.offset))
    return pb.ChannelCommand(open=pb.ChannelOpen(epoch=epoch, start_us=start.timestamp_us))


def seeking(epoch: int, to: KnownOffset | OffsetQuestion, request_id: bytes) -> pb.ChannelCommand:
    """Moves the cursor, once for a request id."""
    seek = pb.ChannelSeek(epoch=epoch, request_id=request_id)
    if isinstance(to, KnownOffset):
        seek.to_us, seek.offset = AT_OFFSET, to.offset
    else:
        seek.to_us = to.timestamp_us
    return pb.ChannelCommand(seek=seek)


async def delete_channel(cluster: Cluster, channel: ChannelId, timeout_s: float) -> None:
    """Raises UnknownChannel, unless an attempt without an answer may have deleted it."""
    left = cluster.countdown(timeout_s)
    try:
        await change(cluster, channel, pb.ChannelCommand(delete=pb.ChannelDelete()), left())
    except UnknownChannel as error:
        if "unclear" not in error.detail:
            with suppress(TinymqError):  # of a channel that was never made, or is gone, somebody may be on record
                await unset_consumer(cluster, channel, 0, max(0.001, left()))
            raise
    except NotFound as error:
        if "unclear" not in error.detail:
            raise
    await unset_consumer(cluster, channel, 0, max(0.001, left()))


async def trim(
    cluster: Cluster, topic: Topic, partition: int, before: KnownOffset | OffsetQuestion, timeout_s: float
) -> int:
    """Remove what lies before a place; the log start then. Raises Held once the time is up."""
    request = pb.TrimRequest(topic_id=topic.topic_id, partition=partition)
    if isinstance(before, KnownOffset):
        request.before_us, request.before_offset = AT_OFFSET, before.offset
    else:
        request.before_us = before.timestamp_us
    reply = await ask_leader(cluster, topic, partition, request, timeout_s=timeout_s)
    return int(reply.log_start)


def describe(topic: str, partition: int, info: pb.ChannelInfo) -> ChannelDescription:
    """A channel off the wire."""
    moved = as_datetime(info.moved_us) if info.moved_us else None
    return ChannelDescription(
        topic, partition, info.channel, info.position, info.lag, moved, info.consumer, info.epoch, info.generation
    )


async def stored_position(
    cluster: Cluster, channel: ChannelId, start: KnownOffset | OffsetQuestion, timeout_s: float
) -> int:
    """The next record of a channel; where it would begin, if there is none."""
    left = cluster.countdown(timeout_s)
    found = await list_channels(cluster, channel.topic, channel.partition, left())
    for info in found.channels:
        if info.channel == channel.channel:
            return max(int(info.position), int(found.log_start))
    if isinstance(start, KnownOffset):
        return min(max(start.offset, int(found.log_start)), int(found.high_watermark))
    asked = {channel.partition: start.timestamp_us}
    answers = await list_offsets(cluster, channel.topic, asked, timeout_s=left(), leader_only=True)
    return int(answers[channel.partition].offset)


def _error_of(items: Sequence[pb.ChannelOutcome] | Sequence[pb.PartitionChannels]) -> TinymqError | None:
    """Of the one thing that was asked for."""
    if len(items) != 1:
        return CorruptData(f"an answer has {len(items)} outcomes for one question", hint="")
    return read_error(items[0].error) if items[0].HasField("error") else None
