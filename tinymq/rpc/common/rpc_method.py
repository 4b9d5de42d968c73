"""The one way to serve an RPC: a decorated method of a service, which returns its reply or raises its error.

    @unary(operation="delete", resource=TOPIC)
    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicReply:
        await self._serving.running().delete_topic(request.name, ...)
        return pb.DeleteTopicReply()

An error travels in the reply, in its field `error`, if the reply has one. Otherwise it is a gRPC status with the packed
Error as a trailer (tinymq/rpc/common/statuses.py). A reply with one outcome for each item of the request has an `error`
in each item; `item` fills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

from google.protobuf.message import Message

from tinymq.base.errors import BrokenInvariant, Denied, InvalidRequest, NotReady, QuotaExceeded, TinymqError
from tinymq.base.identity.grants import Operation
from tinymq.proto.errors import to_wire
from tinymq.proto.methods import Method, method_of
from tinymq.rpc.common.access import Access, Resource, Rule
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import admitted
from tinymq.rpc.common.statuses import end_with

S = TypeVar("S")  # a service
Q = TypeVar("Q", bound=Message)  # its request
R = TypeVar("R", bound=Message)  # its reply, or an item of one

ITEMS = ("topics", "answers", "results", "outcomes", "partitions")
"""The fields of replies whose items each may have an error."""

Unary = Callable[[S, Q, Context], Coroutine[Any, Any, R]]
Streaming = Callable[[S, AsyncIterator[Q], Context], Coroutine[Any, Any, None]]


def unary(
    *,
    operation: Rule,
    resource: Resource,
    also: tuple[tuple[Operation, Resource], ...] = (),
    filters: bool = False,
) -> Callable[[Unary[S, Q, R]], Unary[S, Q, R]]:
    """Serve a unary RPC by the decorated method, which may raise TinymqErrors.

    The arguments are the method's row in the gate's table (tinymq/rpc/common/access.py): the method runs for callers
    who may do what the request wants. The service has the gate in `_serving`. The client gets any other exception as a
    BrokenInvariant, and the event loop's exception handler gets it whole.
    """

    access = Access(operation, resource, also, filters)

    def decorate(method: Unary[S, Q, R]) -> Unary[S, Q, R]:
        @wraps(method)
        async def answer(service: S, request: Q, context: Context) -> R:
            try:
                with admitted(service._serving, method.__name__, access, request, context):  # type: ignore[attr-defined]
                    return await method(service, request, context)
            except TinymqError as error:
                failed = error
            except Exception as error:
                label = method_of(request).label
                bug = {"message": f"{label} raised an error that is none of ours", "exception": error}
                asyncio.get_running_loop().call_exception_handler(bug)
                failed = BrokenInvariant(
                    "the broker failed in the middle of this call", hint="this is a bug: report it"
                )
            reply: R = await refuse(method_of(request), failed, context)
            return reply

        answer.access = access  # type: ignore[attr-defined]
        return answer

    return decorate


def streaming(
    *, operation: Rule, resource: Resource, also: tuple[tuple[Operation, Resource], ...] = ()
) -> Callable[[Streaming[S, Q]], Streaming[S, Q]]:
    """Serve a stream by the decorated method. The InvalidRequest, Denied, NotReady or QuotaExceeded
    that it raises ends the stream.

    Other errors concern one message of the stream, and its replies carry them. The arguments are the stream's row in
    the gate's table, by which the method's StreamGuard checks each message.
    """

    def decorate(method: Streaming[S, Q]) -> Streaming[S, Q]:
        @wraps(method)
        async def answer(service: S, requests: AsyncIterator[Q], context: Context) -> None:
            try:
                await method(service, requests, context)
            except (InvalidRequest, Denied, NotReady, QuotaExceeded) as error:
                await end_with(error, context)

        answer.access = Access(operation, resource, also)  # type: ignore[attr-defined]
        return answer

    return decorate


def access_of(service: type, method: Method) -> Access:
    """Return the permission that a caller of `method` needs, as `service` declares it. Raises AttributeError."""
    access: Access = getattr(service, method.name).access
    return access


async def item(kind: type[R], work: Awaitable[R], **fields: Any) -> R:
    """Return the reply item that `work` returns. If it raises, return an item with the error and `fields`."""
    try:
        return await work
    except TinymqError as error:
        return kind(error=to_wire(error), **fields)


async def refuse(method: Method, error: TinymqError, context: Context) -> Any:
    """Return a reply with `error`, in the form of this RPC.

    If the RPC's replies have no place for an error, end the call with the status of the error.
    """
    fields = method.reply.DESCRIPTOR.fields_by_name
    if "error" in fields:
        return method.reply(error=to_wire(error))
    for name in ITEMS:
        part = fields[name].message_type if name in fields else None
        if part is not None and "error" in part.fields_by_name:
            reply: Any = method.reply()
            getattr(reply, name).add().error.CopyFrom(to_wire(error))
            return reply
    return await end_with(error, context)


def has_error(message: Any) -> bool:
    """Does a reply, or an item of one, carry an error?"""
    return "error" in message.DESCRIPTOR.fields_by_name and message.HasField("error")
