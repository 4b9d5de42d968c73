"""service Workers: the streams of queue groups' workers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tinymq.base.errors import UnsupportedVersion
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.access import GROUP
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.reply_stream import GrpcReplies
from tinymq.rpc.common.rpc_method import streaming


class WorkersService(pb_grpc.WorkersServicer):
    """service Workers."""

    @streaming(operation="read", resource=GROUP)
    async def Work(self, request_iterator: AsyncIterator[pb.WorkRequest], context: Context) -> None:  # type: ignore[override]
        replies = GrpcReplies[pb.WorkReply](context)
        refused = to_wire(UnsupportedVersion("this broker has no workers yet", hint="install a newer tinymq there"))
        async for request in request_iterator:
            ended = [pb.WorkEnded(attachment=attach.attachment, error=refused) for attach in request.attach]
            if ended or request.ping:
                await replies.write(pb.WorkReply(ended=ended, pong=request.ping))
