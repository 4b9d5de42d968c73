"""The services on the gRPC port that are not tinymq's: their rows in the gate's table. A call without a row is refused.

Health is open to everyone, because load balancers have no tokens: it says SERVING or not, and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tinymq.access.gate import Gate
from tinymq.base.errors import Denied, TinymqError
from tinymq.proto.methods import METHODS
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import credential_of
from tinymq.rpc.common.statuses import end_with

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


def _paths(module: Any) -> list[str]:
    return [f"/{s.full_name}/{m.name}" for s in module.DESCRIPTOR.services_by_name.values() for m in s.methods]


RULES: Mapping[str, Literal["open", "known"]] = {
    **dict.fromkeys(_paths(health_pb2), "open"),
    **dict.fromkeys(_paths(reflection_pb2), "known"),
}
"""`open`: to everyone. `known`: to every caller who proves who it is."""


class ForeignServices(grpc.aio.ServerInterceptor):
    """Checks each call of a service that is not tinymq's own; those check by themselves."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        path: str = handler_call_details.method
        if handler is None or path in METHODS or RULES.get(path) == "open":
            return handler

        async def answer_stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            await self._check(path, context)
            async for reply in handler.stream_stream(requests, context):
                yield reply

        async def refuse(request: Any, context: Context) -> Any:
            await end_with(Denied(f"{path} is in no table of access"), context)

        kinds = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if RULES.get(path) == "known" and handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(answer_stream, **kinds)
        return grpc.unary_unary_rpc_method_handler(refuse, **kinds)

    async def _check(self, path: str, context: Context) -> None:
        try:
            if self._gate.on:
                self._gate.check_known(self._gate.identify(credential_of(context)), path)
        except TinymqError as error:
            await end_with(error, context)
