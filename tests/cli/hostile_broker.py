"""A broker that answers every call of tinymq.v1 with hostile text in every string: in data, in errors, in statuses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from tinymq.proto import tinymq_pb2 as pb

FORGED = "error: forged [Forged]"
HOSTILE = (
    "x\x1b[2J\x1b]52;c;cm0gLXJm\x07\x00\x7f\x9b31m\x85\r\b\t"  # ESC, OSC 52 (the clipboard), C1
    "\u202egnp.exe\u2066\u200b\u200f\u2028\u2029\ufeff\U000e0041"  # bidirectional, zero-width, line separators, tags
    f"[bold]:smile:\n{FORGED}\n"
)
TOPIC = "t"


class Answers(Enum):
    DATA = "data"
    ERRORS = "errors"
    STATUSES = "statuses"  # of gRPC


class HostileBroker(grpc.GenericRpcHandler):
    """The only broker of a cluster on loopback. A test may change `answers` at any time."""

    def __init__(self) -> None:
        self.answers = Answers.DATA
        self._methods: dict[str, MethodDescriptor] = {
            f"/{service.full_name}/{method.name}": method
            for service in pb.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = self._methods.get(details.method)
        if method is None:
            return None
        request = message_factory.GetMessageClass(method.input_type)
        if method.name in ("Produce", "Fetch"):
            return grpc.stream_stream_rpc_method_handler(
                self._stream,
                request_deserializer=request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )

        def answer(asked: Any, context: grpc.ServicerContext) -> Message:
            if self.answers is Answers.STATUSES and method.name != "Metadata":
                context.abort(grpc.StatusCode.PERMISSION_DENIED, HOSTILE)
            return self._answer(method, asked)

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=lambda reply: reply.SerializeToString()
        )

    def _answer(self, method: MethodDescriptor, asked: Any) -> Message:
        reply = message_factory.GetMessageClass(method.output_type)()
        if isinstance(reply, pb.MetadataReply):
            return self._metadata(asked)
        self._fill(reply)
        for name in ("brokers", "replicas"):
            if isinstance(reply, pb.ClusterStatusReply):
                getattr(reply, name).extend([getattr(reply, name)[0]])
        return reply

    def _metadata(self, asked: pb.MetadataRequest) -> pb.MetadataReply:
        broker = pb.BrokerInfo(id=1, address=self.address, alive=True, rack=HOSTILE)
        reply = pb.MetadataReply(cluster_id=b"c" * 16, broker_id=1, version=1, brokers=[broker])
        for name in [HOSTILE, TOPIC] if asked.all else asked.topics:
            place = pb.PartitionInfo(partition=0, leader=1, leader_epoch=1, replicas=[1])
            reply.topics.add(name=name, topic_id=b"i" * 16, partitions=[place], replication_factor=1)
        return reply

    def _stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Message]:
        error = pb.Error(code="NotFound", message=HOSTILE, hint=HOSTILE)
        for request in requests:
            if isinstance(request, pb.ProduceRequest):
                yield pb.ProduceReply(results=[{"request_id": b.request_id, "error": error} for b in request.batches])
            elif not request.cancel:
                yield pb.FetchReply(request_id=request.request_id, error=error)

    def _fill(self, message: Message) -> None:
        """Set every field: each text is hostile, each number is 1. With errors, set only the error fields."""
        for field in message.DESCRIPTOR.fields:
            if field.name == "error" and self.answers is not Answers.ERRORS:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                target = getattr(message, field.name)
                each = target.add() if field.is_repeated else target
                each.SetInParent()
                self._fill(each)
                continue
            value = _value(field)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        if isinstance(message, pb.Error):
            message.code = "NotFound"
            message.retriable = False


def _value(field: FieldDescriptor) -> object:
    if field.type == FieldDescriptor.TYPE_STRING:
        return HOSTILE
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"i" * 16
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return 0 if field.name == "partition" else 1
