"""service Workers: the streams of queue groups' workers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from tinymq.access.stream_age import GRPC_SHARE, serve_for
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.access import GROUP, TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context, client_of
from tinymq.rpc.common.caller import credential_of
from tinymq.rpc.common.reply_stream import GrpcReplies
from tinymq.rpc.common.rpc_method import streaming
from tinymq.rpc.services.work import WorkStream

CALL = "Workers.Work"  # to the audit log


class WorkersService(pb_grpc.WorkersServicer):
    """service Workers."""

    def __init__(self, serving: Serving, age_s_max: float = math.inf) -> None:
        """`age_s_max`: of a connection."""
        self._serving = serving
        self._age_s_max = age_s_max * GRPC_SHARE

    @streaming(operation="read", resource=GROUP, also=(("read", TOPIC),))
    async def Work(self, request_iterator: AsyncIterator[pb.WorkRequest], context: Context) -> None:  # type: ignore[override]
        guard = self._serving.gate.guard(credential_of(context), CALL)
        try:
            stream = WorkStream(self._serving, GrpcReplies(context), client_of(context), guard)
            guard.refused = stream.refuse
            await serve_for(self._age_s_max, guard, stream.run(request_iterator), stream.announce_end)
        finally:
            guard.close()
