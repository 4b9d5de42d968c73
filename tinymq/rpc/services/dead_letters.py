"""service DeadLetters: the story of a record, and redrives of dead letters, at the leader of the partition."""

from __future__ import annotations

from tinymq.base.errors import InvalidRequest, OffsetOutOfRange
from tinymq.broker.dead_letters.story import GroupStory
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.messages import prove_leading
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import may_describe, require
from tinymq.rpc.common.presence import require as require_fields
from tinymq.rpc.common.rpc_method import unary

TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 600.0
RECORDS_MAX = 1000  # of one question


class DeadLettersService(pb_grpc.DeadLettersServicer):
    """service DeadLetters."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="describe", resource=TOPIC)
    async def ExplainRecord(self, request: pb.ExplainRecordRequest, context: Context) -> pb.ExplainRecordReply:
        require_fields(request, "partition", "offset")
        letters = self._serving.dead_letters()
        partition = self._serving.running().find(request.topic_id, request.partition)
        await prove_leading(partition, _timeout_s(request.timeout_ms))
        count = request.count or 1
        if count > RECORDS_MAX:
            raise InvalidRequest(f"the stories of {count} records", hint=f"ask for up to {RECORDS_MAX}")
        end = partition.high_watermark
        if request.offset >= end:
            raise _not_there(partition, request.offset)
        reply = pb.ExplainRecordReply(log_start=partition.log_start, high_watermark=end)
        for offset in range(request.offset, min(request.offset + count, end)):
            told = await letters.stories.tell(partition, offset, request.group)
            reply.stories.extend(_to_wire(offset, story) for story in told if _is_shown(story))
        return reply

    @unary(operation="write", resource=TOPIC)
    async def RedriveRecord(self, request: pb.RedriveRecordRequest, context: Context) -> pb.RedriveRecordReply:
        require_fields(request, "partition", "offset")
        letters = self._serving.dead_letters()
        partition = self._serving.running().find(request.topic_id, request.partition)
        done = await letters.redrives.redrive(
            partition, request.offset, request.run, permit=lambda source: require("write", "topic", source)
        )
        return pb.RedriveRecordReply(
            topic=done.topic, partition=done.partition, offset=done.offset, settled_before=done.settled_before
        )

    @unary(operation="delete", resource=TOPIC)
    async def PurgeRecords(self, request: pb.PurgeRecordsRequest, context: Context) -> pb.PurgeRecordsReply:
        require_fields(request, "partition", "before")
        letters = self._serving.dead_letters()
        partition = self._serving.running().find(request.topic_id, request.partition)
        return pb.PurgeRecordsReply(count=await letters.redrives.purge(partition, 0, request.before))


def _not_there(partition: Partition, offset: int) -> OffsetOutOfRange:
    """The error for an offset at or behind the end of a partition."""
    start, end = partition.log_start, partition.high_watermark
    if start < end:
        message = f"{partition} has no record at offset {offset} yet: its newest one is at {end - 1}"
        hint = f"ask for an offset from {start} to {end - 1}"
    else:
        message = f"{partition} has no record at offset {offset}: it is empty"
        hint = "send a record first" if not end else f"all its records, up to offset {end - 1}, are removed"
    return OffsetOutOfRange(message, hint=hint, log_start=start, high_watermark=end)


def _is_shown(story: GroupStory) -> bool:
    """May the caller see the group or the channel that the story is about?"""
    return may_describe("channel" if story.kind == "channel" else "group", story.group)


def _to_wire(offset: int, story: GroupStory) -> pb.GroupStory:
    memory, staged = story.memory, story.transaction
    return pb.GroupStory(
        offset=offset,
        group=story.group,
        kind=story.kind,
        state=story.state,
        position=story.position,
        deliveries=story.deliveries,
        returns=story.returns,
        wait_ms=story.wait_ms,
        worker=memory.worker,
        lease_left_ms=memory.lease_left_ms,
        started=memory.started,
        failure=memory.reason,
        failed_by=memory.failed_by,
        dead_topic=story.dead_topic if may_describe("topic", story.dead_topic) else "",
        dead_partition=story.dead_partition,
        dead_offset=story.dead_offset,
        reason=story.reason,
        blocked=story.blocked,
        transaction=None if staged is None else pb.TransactionRef(**staged._asdict()),
    )


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)
