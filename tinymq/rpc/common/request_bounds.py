"""Refuses requests over their bounds before they are parsed, in all calls of our services on the gRPC port.

The refusal is an error in the reply, in the form that the service itself uses. On a stream, the refusal ends the stream
with a status, once all earlier requests are answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from tinymq.base.errors import InvalidRequest
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import bounds_of, parse
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.metering import PARTS
from tinymq.rpc.common.statuses import status_of, text_of, trailers_of

Context = grpc.aio.ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class RequestBounds(grpc.aio.ServerInterceptor):
    """Holds each request to `tinymq.proto.bounds`."""

    def __init__(self) -> None:
        self._methods = {
            f"/{service.full_name}/{method.name}": method
            for service in pb.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        for method in self._methods.values():
            bounds_of(method.input_type)  # so that a field without a bound fails here, not in a call
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path: str = handler_call_details.method
        known = self._handlers.get(path)
        if known is not None:
            return known
        found = await continuation(handler_call_details)
        method = self._methods.get(path)
        if found is None or method is None:
            return found
        self._handlers[path] = bounded = _bounded(method, found)
        return bounded


def _bounded(method: MethodDescriptor, found: Any) -> Any:
    """The handler `found`, behind the bounds of its requests."""
    kinds = {
        "request_deserializer": partial(_parsed, GetMessageClass(method.input_type)),
        "response_serializer": found.response_serializer,
    }
    if found.stream_stream is not None:

        async def answer_stream(requests: AsyncIterator[Any], context: Context) -> None:
            await found.stream_stream(_believed(requests), context)

        return grpc.stream_stream_rpc_method_handler(answer_stream, **kinds)
    assert found.unary_unary is not None, "our services have no other kinds of calls"

    async def answer(request: Any, context: Context) -> Any:
        if isinstance(request, InvalidRequest):
            return await _refused(method, request, context)
        return await found.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(answer, **kinds)


def _parsed(kind: Any, data: bytes) -> Any:
    """Return the request, or the error that refuses it: gRPC would log a traceback if a deserializer raised the
    error."""
    try:
        return parse(kind, data)
    except InvalidRequest as error:  # without its traceback, which would keep `data` alive until a collection
        return InvalidRequest(error.message, hint=error.hint)


async def _believed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Raises the InvalidRequest of the first request that is refused."""
    async for request in requests:
        if isinstance(request, InvalidRequest):
            raise request
        yield request


async def _refused(method: MethodDescriptor, error: InvalidRequest, context: Context) -> Any:
    """Return a reply with the error, in the form of this service. If its replies have no place for one, end the call
    with the error's status."""
    kind = GetMessageClass(method.output_type)
    fields = method.output_type.fields_by_name
    if "error" in fields:
        return kind(error=to_wire(error))
    for name in PARTS:
        part = fields[name].message_type if name in fields else None
        if part is not None and "error" in part.fields_by_name:
            return kind(**{name: [GetMessageClass(part)(error=to_wire(error))]})
    return await end_with(error, context)


async def end_with(error: InvalidRequest, context: Context) -> NoReturn:
    """End the call with the status of `error`."""
    await context.abort(status_of(error), text_of(error), trailers_of(error))
    raise AssertionError("abort returned")
