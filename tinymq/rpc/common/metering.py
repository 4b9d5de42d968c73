"""Times all unary calls for the meter, and keeps the set of unanswered calls.

The streams report to the meter themselves, batch by batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from tinymq.base.meter import Meter
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER
from tinymq.proto.methods import METHODS
from tinymq.rpc.common.rpc_method import ITEMS, has_error

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class Metering(grpc.aio.ServerInterceptor):
    """Times each unary call of our services, and counts the errors in its reply."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open: set[asyncio.Task[Any]] = set()

    async def answered(self, timeout_s: float) -> None:
        """Wait until the present calls are answered, or until the deadline."""
        if self._open:
            await asyncio.wait(self._open, timeout=timeout_s)

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        method = METHODS.get(handler_call_details.method)
        if handler is None or method is None or method.streams:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._metered(method.label, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _metered(self, call: str, answer: Any) -> Any:
        async def answer_metered(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            began_s = self._meter.now()
            self._keep(asyncio.current_task())
            try:
                reply = await answer(request, context)
            except Exception:  # a cancelled call does not count: its client has gone
                self._meter.refused(call, _status(context))
                raise
            self._meter.called(call, began_s)
            for code in _codes(reply):
                self._meter.refused(call, code)
            return reply

        return answer_metered

    def _keep(self, task: asyncio.Task[Any] | None) -> None:
        """gRPC ends a call's task once it has sent the answer or the error."""
        assert task is not None, "gRPC calls handlers in tasks"
        self._open.add(task)
        task.add_done_callback(self._open.discard)


def _status(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the error of a call that ended with a gRPC status, or the status if it carries no error."""
    trailer: Any = dict(context.trailing_metadata() or ()).get(TRAILER)
    if trailer is not None:
        return pb.Error.FromString(trailer).code
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN.name  # unset: a number


def _codes(reply: Any) -> list[str]:
    """Return the error of a reply, or else the errors of its items."""
    if has_error(reply):
        return [reply.error.code]
    fields = reply.DESCRIPTOR.fields_by_name
    parts = (part for name in ITEMS if name in fields for part in getattr(reply, name))
    return [part.error.code for part in parts if has_error(part)]
