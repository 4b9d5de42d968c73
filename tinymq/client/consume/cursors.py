"""The requests about channels and their cursors. Each of them may be sent twice."""

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

AT_OFFSET = -4  # stands in the field of the time if the place is an offset, which has a field of its own
REQUEST_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The kind and the id of a group. They tell its cursors from those of channels and of other groups."""

    kind: int  # 1: stream group, 2: queue group, 0: channel
    group_id: int


NO_GROUP = GroupRef(0, 0)


@dataclass(frozen=True, slots=True)
class ChannelId:
    """Names a cursor of a partition: that of a channel, or of a group."""

    topic: Topic
    partition: int
    channel: str  # name of the channel or of the group
    group: GroupRef = NO_GROUP


@dataclass(frozen=True, slots=True)
class ChannelDescription:
    """A channel of one partition, as the partition's leader has it.

    for channel in mq.admin.list_channels("orders"):
        print(channel.channel, channel.partition, channel.position, channel.lag)
    """

    topic: str
    partition: int
    channel: str
    position: int  # the offset of the next record to be read
    lag: int  # the number of records from there to the end
    moved: datetime | None  # when its cursor last changed; None: never since it was made
    consumer: str  # the registered consumer; "": none
    epoch: int
    generation: int


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """The registered consumer of a channel. It may have died since it registered.

    with mq.queue("orders", channel="audit") as queue:
        queue.open()
        print(mq.admin.get_consumer("orders", 0, "audit"))
    """

    consumer: str  # its client_id
    epoch: int  # higher than that of every earlier consumer


async def change(
    cluster: Cluster, channel: ChannelId, command: pb.ChannelCommand, timeout_s: float
) -> pb.ChannelOutcome:
    """Carry out one command, and return its outcome. Raises its error, or as `ask_leader`."""
    command.partition, command.channel = channel.partition, channel.channel
    command.kind, command.group_id = channel.group.kind, channel.group.group_id
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


async def list_channels(
    cluster: Cluster, topic: Topic, partition: int, timeout_s: float, *, groups: bool = False
) -> pb.PartitionChannels:
    """Return the channels of a partition, its start and its end, as its leader has them. `groups`: groups, too."""
    request = pb.ListChannelsRequest(topic_id=topic.topic_id, partitions=[partition], groups=groups)

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
    listing: pb.PartitionChannels = reply.partitions[0]
    return listing


async def set_consumer(cluster: Cluster, channel: ChannelId, consumer: str, command_id: bytes, timeout_s: float) -> int:
    """Register the consumer of a channel, and return its epoch, which fences all earlier consumers.

    A repeat with the same `command_id` has no further effect, and gets the same answer.
    """
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
    """Remove the registered consumer of a channel; with an epoch, only if it is still the consumer of that epoch."""
    request = pb.UnsetConsumerRequest(
        topic=channel.topic.name,
        partition=channel.partition,
        channel=channel.channel,
        epoch=epoch,
        command_id=cluster.rng.randbytes(REQUEST_ID_BYTES),
    )
    await cluster.ask(request, timeout_s=timeout_s, changes=True)


async def get_consumer(cluster: Cluster, channel: ChannelId, timeout_s: float) -> ConsumerDescription | None:
    """Return the registered consumer of a channel, as of a moment during this call; None if there is none."""
    request = pb.GetConsumerRequest(topic=channel.topic.name, partition=channel.partition, channel=channel.channel)
    reply = await cluster.ask(request, timeout_s=timeout_s)
    return ConsumerDescription(reply.consumer, reply.epoch) if reply.epoch else None


def opening(epoch: int, start: KnownOffset | OffsetQuestion) -> pb.ChannelCommand:
    """Return the command that creates the channel at `start` if it does not exist, and fences every lower epoch."""
    if isinstance(start, KnownOffset):
        return pb.ChannelCommand(open=pb.ChannelOpen(epoch=epoch, start_us=AT_OFFSET, start_offset=start.offset))
    return pb.ChannelCommand(open=pb.ChannelOpen(epoch=epoch, start_us=start.timestamp_us))


def seeking(epoch: int, to: KnownOffset | OffsetQuestion, request_id: bytes) -> pb.ChannelCommand:
    """Return the command that moves the cursor, once for each request id."""
    seek = pb.ChannelSeek(epoch=epoch, request_id=request_id)
    if isinstance(to, KnownOffset):
        seek.to_us, seek.offset = AT_OFFSET, to.offset
    else:
        seek.to_us = to.timestamp_us
    return pb.ChannelCommand(seek=seek)


async def delete_channel(cluster: Cluster, channel: ChannelId, timeout_s: float) -> None:
    """Delete a channel. Raises UnknownChannel, unless an earlier attempt of this call may have deleted it."""
    left = cluster.countdown(timeout_s)
    try:
        await change(cluster, channel, pb.ChannelCommand(delete=pb.ChannelDelete()), left())
    except UnknownChannel as error:
        if "unclear" not in error.detail:
            with suppress(TinymqError):  # a consumer may be registered for a channel that does not exist
                await unset_consumer(cluster, channel, 0, max(0.001, left()))
            raise
    except NotFound as error:
        if "unclear" not in error.detail:
            raise
    await unset_consumer(cluster, channel, 0, max(0.001, left()))


async def trim(
    cluster: Cluster, topic: Topic, partition: int, before: KnownOffset | OffsetQuestion, timeout_s: float
) -> int:
    """Remove the records before a place, and return the new log start. Raises Held when the time is up."""
    request = pb.TrimRequest(topic_id=topic.topic_id, partition=partition)
    if isinstance(before, KnownOffset):
        request.before_us, request.before_offset = AT_OFFSET, before.offset
    else:
        request.before_us = before.timestamp_us
    reply = await ask_leader(cluster, topic, partition, request, timeout_s=timeout_s)
    return int(reply.log_start)


def describe(topic: str, partition: int, info: pb.ChannelInfo) -> ChannelDescription:
    """Convert a channel's description from the wire."""
    moved = as_datetime(info.moved_us) if info.moved_us else None
    return ChannelDescription(
        topic=topic,
        partition=partition,
        channel=info.channel,
        position=info.position,
        lag=info.lag,
        moved=moved,
        consumer=info.consumer,
        epoch=info.epoch,
        generation=info.generation,
    )


async def stored_position(
    cluster: Cluster, channel: ChannelId, start: KnownOffset | OffsetQuestion, timeout_s: float
) -> int:
    """Return the offset of a channel's next record, or of its first one if the channel does not exist yet."""
    left = cluster.countdown(timeout_s)
    listing = await list_channels(cluster, channel.topic, channel.partition, left())
    for info in listing.channels:
        if info.channel == channel.channel:
            return max(int(info.position), int(listing.log_start))
    if isinstance(start, KnownOffset):
        return min(max(start.offset, int(listing.log_start)), int(listing.high_watermark))
    asked = {channel.partition: start.timestamp_us}
    answers = await list_offsets(cluster, channel.topic, asked, timeout_s=left(), leader_only=True)
    return int(answers[channel.partition].offset)


def _error_of(items: Sequence[pb.ChannelOutcome] | Sequence[pb.PartitionChannels]) -> TinymqError | None:
    """Return the error of the only item in a reply."""
    if len(items) != 1:
        return CorruptData(f"an answer has {len(items)} outcomes for one question", hint="")
    return read_error(items[0].error) if items[0].HasField("error") else None
