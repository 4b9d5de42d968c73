"""Refuses requests over their bounds before they are parsed, in all calls of our services on the gRPC port.

The refusal is an error in the reply, in the form that the service itself uses. On a stream, the refusal ends the stream
with a status, once all earlier requests are answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from tinymq.base.errors import InvalidRequest
from tinymq.proto.bounds import bounds_of, parse
from tinymq.proto.methods import METHODS, Method
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.rpc_method import refuse

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class RequestBounds(grpc.aio.ServerInterceptor):
    """Checks each request against `tinymq.proto.bounds`."""

    def __init__(self) -> None:
        for method in METHODS.values():
            bounds_of(method.request.DESCRIPTOR)  # so that a field without a bound fails here, not in a call
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path: str = handler_call_details.method
        known = self._handlers.get(path)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        method = METHODS.get(path)
        if handler is None or method is None:
            return handler
        self._handlers[path] = bounded = _bounded(method, handler)
        return bounded


def _bounded(method: Method, handler: Any) -> Any:
    """Wrap a handler so that it checks the bounds of its requests."""
    kinds = {
        "request_deserializer": partial(_parsed, method.request),
        "response_serializer": handler.response_serializer,
    }
    if handler.stream_stream is not None:

        async def answer_stream(requests: AsyncIterator[Any], context: Context) -> None:
            await handler.stream_stream(_believed(requests), context)

        return grpc.stream_stream_rpc_method_handler(answer_stream, **kinds)
    assert handler.unary_unary is not None, "our services have no other kinds of calls"

    async def answer(request: Any, context: Context) -> Any:
        if isinstance(request, InvalidRequest):
            return await refuse(method, request, context)
        return await handler.unary_unary(request, context)

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
