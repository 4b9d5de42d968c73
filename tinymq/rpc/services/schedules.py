"""service Schedules: the delayed batches that are not published yet, at the leader of their partition."""

from __future__ import annotations

from itertools import islice

from tinymq.base.errors import InvalidRequest
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.messages import cancel_delayed, prove_leading
from tinymq.broker.state.delayed import DelayedBatch
from tinymq.format.feature_level import DELAYS_LEVEL, check
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.presence import require as require_fields
from tinymq.rpc.common.rpc_method import unary

TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 600.0
LISTED_MAX = 1000  # batches in one answer


class SchedulesService(pb_grpc.SchedulesServicer):
    """service Schedules."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="describe", resource=TOPIC)
    async def ListScheduled(self, request: pb.ListScheduledRequest, context: Context) -> pb.ListScheduledReply:
        require_fields(request, "partition")
        if request.limit > LISTED_MAX:
            raise InvalidRequest(f"a list of {request.limit} batches", hint=f"ask for up to {LISTED_MAX}")
        partition = await self._led(request.topic_id, request.partition, _timeout_s(request.timeout_ms))
        most = request.limit or LISTED_MAX
        found = list(islice(partition.state.delayed.after(request.after), most + 1))
        return pb.ListScheduledReply(batches=map(_to_wire, found[:most]), more=len(found) > most)

    @unary(operation="write", resource=TOPIC)
    async def CancelScheduled(self, request: pb.CancelScheduledRequest, context: Context) -> pb.CancelScheduledReply:
        require_fields(request, "partition", "schedule_id")
        timeout_s = _timeout_s(request.timeout_ms)
        partition = await self._led(request.topic_id, request.partition, timeout_s)
        return pb.CancelScheduledReply(canceled=await cancel_delayed(partition, request.schedule_id, timeout_s))

    async def _led(self, topic_id: bytes, number: int, timeout_s: float) -> Partition:
        """The partition, once this broker has proven that it leads it: another leader may know newer batches."""
        partition = self._serving.running().find(topic_id, number)
        check("a delayed batch", DELAYS_LEVEL, partition.group.feature_level)
        await prove_leading(partition, timeout_s)
        return partition


def _to_wire(batch: DelayedBatch) -> pb.ScheduledBatch:
    return pb.ScheduledBatch(
        schedule_id=batch.schedule_id,
        deliver_at_us=batch.deliver_at_us,
        records=batch.records,
        bytes=batch.bytes,
        staged_at_us=batch.staged_at_us,
    )


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)
