"""service Schedules: the delayed batches that are not published yet, at the leader of their partition."""

from __future__ import annotations

from tinymq.broker.serve.messages import prove_leading
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


class SchedulesService(pb_grpc.SchedulesServicer):
    """service Schedules."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @unary(operation="describe", resource=TOPIC)
    async def ListScheduled(self, request: pb.ListScheduledRequest, context: Context) -> pb.ListScheduledReply:
        require_fields(request, "partition")
        partition = self._serving.running().find(request.topic_id, request.partition)
        await prove_leading(partition, _timeout_s(request.timeout_ms))
        check("a delayed batch", DELAYS_LEVEL, partition.group.feature_level)
        return pb.ListScheduledReply()

    @unary(operation="write", resource=TOPIC)
    async def CancelScheduled(self, request: pb.CancelScheduledRequest, context: Context) -> pb.CancelScheduledReply:
        require_fields(request, "partition", "schedule_id")
        partition = self._serving.running().find(request.topic_id, request.partition)
        await prove_leading(partition, _timeout_s(request.timeout_ms))
        check("a delayed batch", DELAYS_LEVEL, partition.group.feature_level)
        return pb.CancelScheduledReply()


def _timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000 or TIMEOUT_S, TIMEOUT_S_MAX)
