"""A gRPC client without tinymq's code: it fetches the descriptors from the server, and builds messages from them."""

from __future__ import annotations

import json
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToJson, Parse
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

WAIT_S = 30.0


class Reflecting:
    """One server, through its reflection service."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._reflection: Any = reflection_pb2_grpc.ServerReflectionStub(self._channel)
        self._pool = DescriptorPool()

    def close(self) -> None:
        self._channel.close()

    def services(self) -> list[str]:
        reply = self._ask(reflection_pb2.ServerReflectionRequest(list_services=""))
        return sorted(service.name for service in reply.list_services_response.service)

    def call(self, path: str, request: str) -> dict[str, Any]:
        """The answer to "package.Service/Method" with a request in JSON, as JSON. Raises grpc.RpcError."""
        service, name = path.split("/")
        method = self._service(service).methods_by_name[name]
        asked = Parse(request, GetMessageClass(method.input_type)(), descriptor_pool=self._pool)
        call = self._channel.unary_unary(
            f"/{path}",
            request_serializer=type(asked).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        reply = call(asked, timeout=WAIT_S)
        answered: dict[str, Any] = json.loads(MessageToJson(reply, preserving_proto_field_name=True))
        return answered

    def _service(self, name: str) -> Any:
        try:
            return self._pool.FindServiceByName(name)
        except KeyError:
            reply = self._ask(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            for packed in reply.file_descriptor_response.file_descriptor_proto:
                self._pool.Add(descriptor_pb2.FileDescriptorProto.FromString(packed))
            return self._pool.FindServiceByName(name)

    def _ask(self, request: Any) -> Any:
        return next(self._reflection.ServerReflectionInfo(iter([request]), timeout=WAIT_S))
