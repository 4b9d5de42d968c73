"""service Channels: cursors, the log start and holds, of partitions that this broker leads; consumers, at any broker.

Requests become commands of the partition. Answers are linearizable: commands are in the log, and before a read a
majority confirms that this broker still leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.protobuf.message import Message

from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, QuotaExceeded, TinymqError
from tinymq.base.types import TopicId, check_channel_name, check_consumer_name
from tinymq.broker.group_watch import GroupWatch
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.messages import command, prove_leading, size_of
from tinymq.broker.serve.offsets import find_offset
from tinymq.broker.state.cursor import KINDS, CursorKind
from tinymq.broker.state.holds import Hold, wait_ms
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.proto import partition_pb2 as part
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.access import CHANNEL, CURSORS, TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import may_describe
from tinymq.rpc.common.presence import leaves_zeros_out, require
from tinymq.rpc.common.rpc_method import item, unary
from tinymq.rpc.services.staged_progress import Requested, carry_out, parse_acks, parse_offset

BY_OFFSET = -4  # instead of a time: use the offset in the request
ASKED_MAX = 64  # partitions proven to be led here side by side
ID_BYTES = 16
OFFSET_MAX = (1 << 63) - 1
TIMEOUT_S_MAX = 600.0


class ChannelsService(pb_grpc.ChannelsServicer):
    """service Channels."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="read", resource=CHANNEL, also=(("read", TOPIC),))
    async def SetConsumer(self, request: pb.SetConsumerRequest, context: Context) -> pb.SetConsumerReply:
        require(request, "partition", lenient=leaves_zeros_out(context))
        check_channel_name(request.channel)
        check_consumer_name(request.consumer)
        consumer = await self._serving.running().registry.set_queue_consumer(
            request.topic, request.partition, request.channel, request.consumer, command_id=request.command_id
        )
        return pb.SetConsumerReply(epoch=consumer.epoch)

    @unary(operation="read", resource=CHANNEL, also=(("read", TOPIC),))
    async def UnsetConsumer(self, request: pb.UnsetConsumerRequest, context: Context) -> pb.UnsetConsumerReply:
        require(request, "partition", lenient=leaves_zeros_out(context))
        check_channel_name(request.channel)
        await self._serving.running().registry.unset_queue_consumer(
            request.topic, request.partition, request.channel, request.epoch, command_id=request.command_id
        )
        return pb.UnsetConsumerReply()

    @unary(operation="describe", resource=CHANNEL, also=(("describe", TOPIC),))
    async def GetConsumer(self, request: pb.GetConsumerRequest, context: Context) -> pb.GetConsumerReply:
        check_channel_name(request.channel)
        broker = self._serving.running()
        await broker.refresh()  # another broker may have set the consumer a moment ago
        consumer = broker.registry.get_queue_consumer(request.topic, request.partition, request.channel)
        if consumer is None:
            return pb.GetConsumerReply()
        return pb.GetConsumerReply(consumer=consumer.consumer, epoch=consumer.epoch)

    @unary(operation="read", resource=CURSORS, also=(("read", TOPIC),))
    async def Change(self, request: pb.ChannelsRequest, context: Context) -> pb.ChannelsReply:
        broker = self._serving.running()
        lenient = leaves_zeros_out(context)
        timeout_s = _timeout_s(request.timeout_ms, broker)
        outcomes = [CommandOutcome() for _ in request.commands]
        by_partition: dict[int, tuple[Partition, list[tuple[int, Requested]]]] = {}
        for place, requested in enumerate(request.commands):
            try:
                require(requested, "partition", lenient=lenient)
                partition = broker.find(request.topic_id, requested.partition)
                resolved = await _resolve(broker, partition, requested, lenient)
            except TinymqError as error:
                outcomes[place] = CommandOutcome(error)
            else:
                by_partition.setdefault(requested.partition, (partition, []))[1].append((place, resolved))

        async def change(partition: Partition, commands: Sequence[tuple[int, Requested]]) -> None:
            workers = self._serving.working()
            results = await carry_out(partition, workers, [each for _, each in commands], timeout_s)
            for (place, _), outcome in zip(commands, results, strict=True):
                outcomes[place] = outcome

        await asyncio.gather(*(change(*each) for each in by_partition.values()))
        return pb.ChannelsReply(outcomes=map(_outcome_to_wire, outcomes))

    @unary(operation="describe", resource=TOPIC)
    async def List(self, request: pb.ListChannelsRequest, context: Context) -> pb.ListChannelsReply:
        try:
            broker, watch = self._serving.running(), self._serving.watching_groups()
        except TinymqError as error:
            failed = pb.PartitionChannels(error=to_wire(error))
            return pb.ListChannelsReply(partitions=[failed for _ in request.partitions])
        room = asyncio.Semaphore(ASKED_MAX)

        async def one(number: int) -> pb.PartitionChannels:
            async with room:
                listing = _list(broker, watch, request.topic_id, number, groups=request.groups)
                return await item(pb.PartitionChannels, listing, partition=number)

        reply = pb.ListChannelsReply(partitions=await asyncio.gather(*map(one, request.partitions)))
        _cut_to(reply, broker.limits.grpc_message_bytes_max // 2)
        return reply

    @unary(operation="delete", resource=TOPIC)
    async def Trim(self, request: pb.TrimRequest, context: Context) -> pb.TrimReply:
        broker = self._serving.running()
        lenient = leaves_zeros_out(context)
        require(request, "partition", lenient=lenient)
        _require_place(request, "before_us", "before_offset", lenient)
        partition = broker.find(request.topic_id, request.partition)
        offset = await _offset(broker, partition, request.before_us, request.before_offset)
        _check_before(partition, offset)
        move = part.Command(move_start=part.MoveStart(offset=offset, reason=part.MoveStart.TRIM))
        outcome = await _one(partition, move, _timeout_s(request.timeout_ms, broker))
        return pb.TrimReply(log_start=outcome.log_start)

    @unary(operation="read", resource=TOPIC)
    async def Hold(self, request: pb.HoldRequest, context: Context) -> pb.HoldReply:
        broker = self._serving.running()
        lenient = leaves_zeros_out(context)
        require(request, "lease_ms", lenient=lenient)
        _check_id("hold_id", request.hold_id)
        _check_ranges(request.ranges, lenient)
        timeout_s = _timeout_s(request.timeout_ms, broker)

        async def one(asked: pb.HoldRange) -> pb.HoldOutcome:
            partition = broker.find(request.topic_id, asked.partition)
            present = _held_already(partition, request, asked.offset)
            if present is not None:
                return pb.HoldOutcome(log_start=partition.log_start, until_us=present.until_us)
            hold_command = _holding(request, asked.offset)
            lease = _soft_lease(partition, request, hold_command)
            if lease is not None:
                return pb.HoldOutcome(log_start=partition.log_start, until_us=lease.until_us)
            outcome = await _one(partition, hold_command, timeout_s)
            partition.soft_leases.release(request.hold_id)
            return pb.HoldOutcome(log_start=outcome.log_start, until_us=outcome.until_us)

        outcomes = await asyncio.gather(*(item(pb.HoldOutcome, one(asked)) for asked in request.ranges))
        return pb.HoldReply(outcomes=outcomes)


# ---- requests ---------------------------------------------------------------------------------------------------


async def _resolve(broker: Broker, partition: Partition, requested: pb.ChannelCommand, lenient: bool) -> Requested:
    """Return the partition's command for a request, with times resolved to offsets, or what it stages.

    Raises InvalidRequest, NotLeader, NotReady.
    """
    channel = check_channel_name(requested.channel)
    kind = requested.WhichOneof("command")
    if requested.kind not in KINDS or bool(requested.group_id) != (requested.kind != CursorKind.CHANNEL):
        raise InvalidRequest(f"kind {requested.kind} and group id {requested.group_id} name no cursor")
    of = part.CursorKind.ValueType(requested.kind)
    if kind == "open":
        _require_place(requested.open, "start_us", "start_offset", lenient)
        start = await _offset(broker, partition, requested.open.start_us, requested.open.start_offset)
        return part.Command(
            open=part.OpenChannel(
                channel=channel, epoch=requested.open.epoch, start=start, kind=of, group_id=requested.group_id,
                session=requested.open.session,
            )
        )  # fmt: skip
    if kind in ("commit", "stage"):
        commit = requested.commit if kind == "commit" else requested.stage.commit
        require(commit, "offset", lenient=lenient)
        _check_offset(commit.offset)
        committed = part.Commit(
            channel=channel, epoch=commit.epoch, generation=commit.generation, offset=commit.offset, kind=of,
            group_id=requested.group_id,
        )  # fmt: skip
        if kind == "stage":
            return parse_offset(requested.stage.transaction, committed)
        return part.Command(commit=committed)
    if kind == "stage_acks":
        return parse_acks(channel, requested)
    if kind == "seek":
        _require_place(requested.seek, "to_us", "offset", lenient)
        _check_id("request_id", requested.seek.request_id)
        offset = await _offset(broker, partition, requested.seek.to_us, requested.seek.offset)
        seek = part.Seek(
            channel=channel, epoch=requested.seek.epoch, request_id=requested.seek.request_id, offset=offset, kind=of,
            group_id=requested.group_id,
        )  # fmt: skip
        return part.Command(seek=seek)
    if kind == "delete":
        return part.Command(delete=part.DeleteChannel(channel=channel))
    if kind == "consume":
        _check_id("request_id", requested.consume.request_id)
        return part.Command(consume=part.Consume(channel=channel, request_id=requested.consume.request_id))
    raise InvalidRequest("empty or unknown command", hint="it is empty, or comes from a newer client")


def _held_already(partition: Partition, request: pb.HoldRequest, offset: int) -> Hold | None:
    """Return a present hold that already covers the request, so that none has to be written. The hold is committed, so
    every leader keeps it, and no majority has to confirm that this broker still leads.
    """
    if not request.enough_ms or not partition.leading:
        return None
    present = partition.state.holds.find(request.hold_id)
    if present is None and request.light:
        present = partition.soft_leases.find(request.hold_id)
    if present is None or not present.offset <= offset <= partition.high_watermark:
        return None
    left_us = present.until_us - partition.group.append_time_now_us()
    return present if request.lease_ms and left_us >= request.enough_ms * 1000 else None


def _soft_lease(partition: Partition, request: pb.HoldRequest, hold_command: part.Command) -> Hold | None:
    """Make or release a soft lease, without an entry in the log, and return it. None: the request needs an entry."""
    if hold_command.HasField("hold"):
        return partition.grant_soft_lease(hold_command.hold) if request.light else None
    lease = partition.soft_leases.find(request.hold_id)
    partition.soft_leases.release(request.hold_id)
    if lease is None or partition.state.holds.find(request.hold_id) is not None:
        return None
    return lease._replace(until_us=0)


def _holding(request: pb.HoldRequest, offset: int) -> part.Command:
    """Return the command of one partition. Raises InvalidRequest."""
    _check_offset(offset)
    if request.lease_ms:
        return part.Command(hold=part.Hold(hold_id=request.hold_id, offset=offset, lease_ms=request.lease_ms))
    return part.Command(release=part.Release(hold_id=request.hold_id))


async def _offset(broker: Broker, partition: Partition, time_us: int, offset: int) -> int:
    """Return the offset of a time on the leader, or the offset itself. Raises NotLeader, NotReady, InvalidRequest."""
    if time_us == BY_OFFSET:
        _check_offset(offset)
        return offset
    return (await find_offset(partition, time_us, True, broker.unpack_queue)).offset


def _check_before(partition: Partition, offset: int) -> None:
    """Raises OffsetOutOfRange beyond the records that this leader has applied, so that a mistyped offset does not empty
    a partition.
    """
    if offset > partition.high_watermark and partition.leading:  # a replica that does not lead raises NotLeader itself
        raise OffsetOutOfRange(
            f"offset {offset} lies beyond the end",
            hint=f"there are {partition.log_start} to {partition.high_watermark}; to remove all, say 'latest'",
            log_start=partition.log_start,
            high_watermark=partition.high_watermark,
        )


def _check_offset(offset: int) -> None:
    if offset > OFFSET_MAX:
        raise InvalidRequest(f"{offset} is no offset")


def _require_place(request: Message, time: str, offset: str, lenient: bool) -> None:
    """Raises InvalidRequest unless the request has a time and, with BY_OFFSET, an offset."""
    require(request, time, lenient=lenient)
    if getattr(request, time) == BY_OFFSET:
        require(request, offset, lenient=lenient)


def _check_ranges(ranges: Sequence[pb.HoldRange], lenient: bool) -> None:
    for asked in ranges:
        require(asked, "partition", "offset", lenient=lenient)
    if not ranges or len({asked.partition for asked in ranges}) != len(ranges):
        raise InvalidRequest(
            "a hold without a range, or with two ranges in one partition", hint="one range per partition"
        )


def _check_id(name: str, value: bytes) -> None:
    if len(value) != ID_BYTES:
        raise InvalidRequest(f"a {name} of {len(value)} bytes", hint=f"{name} is {ID_BYTES} random bytes")


def _timeout_s(timeout_ms: int, broker: Broker) -> float:
    return min(timeout_ms / 1000, TIMEOUT_S_MAX) if timeout_ms else broker.timing.produce_timeout_s


# ---- running commands ------------------------------------------------------------------------------------------------


async def _one(partition: Partition, single: part.Command, timeout_s: float) -> CommandOutcome:
    (outcome,) = await command(partition, [single], timeout_s)
    if outcome.error is not None:
        raise outcome.error
    return outcome


async def _list(
    broker: Broker, watch: GroupWatch, topic_id: bytes, number: int, *, groups: bool
) -> pb.PartitionChannels:
    partition = broker.find(topic_id, number)
    await prove_leading(partition, broker.timing.produce_timeout_s)
    topic = broker.registry.get_topic_by_id(TopicId(topic_id))
    answer = pb.PartitionChannels(
        partition=number,
        log_start=partition.log_start,
        high_watermark=partition.high_watermark,
        record_bytes=partition.state.kept_bytes,
    )
    for name, cursor in sorted(partition.state.cursors.items()):
        if cursor.kind != CursorKind.CHANNEL and not groups:
            continue
        if not may_describe("channel" if cursor.kind == CursorKind.CHANNEL else "group", name):
            continue
        reads = broker.registry.get_queue_consumer(topic.name, number, name) if topic is not None else None
        info = answer.channels.add(
            channel=name,
            position=max(cursor.position, partition.log_start),
            epoch=cursor.epoch,
            generation=cursor.generation,
            lag=size_of(partition, name),
            moved_us=cursor.moved_us,
            consumer=reads.consumer if reads is not None else "",
            kind=cursor.kind,
            group_id=cursor.group_id,
        )
        if cursor.kind != CursorKind.CHANNEL:
            await _add_progress(info, watch, partition)
    now_us = partition.group.append_time_now_us()
    held = [*partition.state.holds.live(now_us), *partition.soft_leases.live(now_us)]
    for hold_id, hold in sorted(held, key=_by_offset):
        left_ms = wait_ms(hold.until_us, now_us)
        answer.holds.add(hold_id=hold_id, offset=hold.offset, until_us=hold.until_us, left_ms=left_ms)
    return answer


async def _add_progress(info: pb.ChannelInfo, watch: GroupWatch, partition: Partition) -> None:
    """Add what only the leader of a group knows."""
    if info.channel not in partition.state.cursors:
        return  # it was deleted while another key was read
    progress = watch.progress(partition, info.channel)
    info.oldest_ms, info.leased, info.waiting = progress.oldest_ms, progress.leased, progress.waiting
    info.burying, info.workers, info.staged = progress.burying, progress.workers, progress.staged
    for blocked in progress.blocked:
        key = await watch.key_at(partition, blocked.offset) if blocked.offset is not None else None
        info.blocked.add(by=blocked.by.value, reason=blocked.reason, offset=blocked.offset, key=key)


def _by_offset(held: tuple[bytes, Hold]) -> Hold:
    return held[1]


def _cut_to(reply: pb.ListChannelsReply, bytes_max: int) -> None:
    """Partitions beyond the bound get an error that asks for another request. The first always fits."""
    size = 0
    for each in reply.partitions:
        size += each.ByteSize()
        if size > bytes_max and each is not reply.partitions[0]:
            over = QuotaExceeded("more channels than fit into one answer", hint="ask for fewer partitions at once")
            each.CopyFrom(pb.PartitionChannels(partition=each.partition, error=to_wire(over)))


def _outcome_to_wire(outcome: CommandOutcome) -> pb.ChannelOutcome:
    return pb.ChannelOutcome(
        error=None if outcome.error is None else to_wire(outcome.error),
        position=outcome.position,
        epoch=outcome.epoch,
        generation=outcome.generation,
        taken=outcome.taken,
        offset=outcome.offset,
        log_start=outcome.log_start,
        high_watermark=outcome.high_watermark,
    )
