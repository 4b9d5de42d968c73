"""The gRPC status of each error, and the trailer that carries the whole error.

QueueService answers with statuses. The services of tinymq's own client put errors into their replies.
"""

from __future__ import annotations

from typing import NoReturn

from grpc import StatusCode

from tinymq.base.errors import (
    AlreadyExists,
    BufferFull,
    Closed,
    CorruptData,
    DeadlineExceeded,
    Denied,
    DiskFull,
    Fenced,
    Held,
    InvalidRequest,
    LeaseLost,
    NotDelivered,
    NotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfDescriptors,
    OutOfOrderSequence,
    QuotaExceeded,
    SessionEnded,
    StorageError,
    TinymqError,
    TransactionAborted,
    Unauthenticated,
    Unavailable,
    UnknownProducer,
    UnsupportedVersion,
    VersionConflict,
)
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER, to_wire
from tinymq.rpc.common.call_context import Context

PUSHBACK = "grpc-retry-pushback-ms"  # the pause before gRPC's own retries

# All trailers together have 8 KiB, and each byte of non-ASCII text is sent as three.
MESSAGE_BYTES_MAX = 500
HINT_BYTES_MAX = 300
DETAIL_BYTES_MAX = 100
DETAILS_MAX = 12

STATUS: dict[type[TinymqError], StatusCode] = {
    TinymqError: StatusCode.UNKNOWN,
    InvalidRequest: StatusCode.INVALID_ARGUMENT,
    OffsetOutOfRange: StatusCode.OUT_OF_RANGE,
    Fenced: StatusCode.FAILED_PRECONDITION,
    OutOfOrderSequence: StatusCode.FAILED_PRECONDITION,
    LeaseLost: StatusCode.FAILED_PRECONDITION,
    SessionEnded: StatusCode.FAILED_PRECONDITION,
    UnknownProducer: StatusCode.FAILED_PRECONDITION,
    UnsupportedVersion: StatusCode.UNIMPLEMENTED,
    VersionConflict: StatusCode.ABORTED,
    TransactionAborted: StatusCode.ABORTED,
    NotFound: StatusCode.NOT_FOUND,
    AlreadyExists: StatusCode.ALREADY_EXISTS,
    Unavailable: StatusCode.UNAVAILABLE,
    QuotaExceeded: StatusCode.RESOURCE_EXHAUSTED,
    BufferFull: StatusCode.RESOURCE_EXHAUSTED,
    Held: StatusCode.FAILED_PRECONDITION,
    DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    OutcomeUnknown: StatusCode.UNKNOWN,
    NotDelivered: StatusCode.UNKNOWN,
    Denied: StatusCode.PERMISSION_DENIED,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    StorageError: StatusCode.INTERNAL,
    DiskFull: StatusCode.RESOURCE_EXHAUSTED,
    OutOfDescriptors: StatusCode.RESOURCE_EXHAUSTED,
    CorruptData: StatusCode.DATA_LOSS,
    Closed: StatusCode.UNAVAILABLE,
}
"""Statuses by class of error. A class that is not listed has the status of its nearest listed base class."""


def status_of(error: TinymqError) -> StatusCode:
    """The gRPC code of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def text_of(error: TinymqError) -> str:
    """Return the text of a status: the message, and the hint in brackets."""
    hint = f" ({_cut(error.hint, HINT_BYTES_MAX)})" if error.hint else ""
    return f"{_cut(error.message, MESSAGE_BYTES_MAX)}{hint}"


def _cut(text: str, bytes_max: int) -> str:
    """Return the beginning of `text` that fits into `bytes_max` bytes of UTF-8."""
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def trailers_of(error: TinymqError) -> tuple[tuple[str, str | bytes], ...]:
    """Return the trailers of a status: the packed Error, and the pause before a retry if it is known."""
    wire = to_wire(error)
    detail = {name: _cut(value, DETAIL_BYTES_MAX) for name, value in list(wire.detail.items())[:DETAILS_MAX]}
    short = pb.Error(
        code=wire.code,
        message=_cut(wire.message, MESSAGE_BYTES_MAX),
        retriable=wire.retriable,
        hint=_cut(wire.hint, HINT_BYTES_MAX),
        detail=detail,
    )
    trailers: list[tuple[str, str | bytes]] = [(TRAILER, short.SerializeToString())]
    if isinstance(error, QuotaExceeded) and error.detail.get("retry_after_ms", "").isdigit():
        trailers.append((PUSHBACK, error.detail["retry_after_ms"]))
    return tuple(trailers)


async def end_with(error: TinymqError, context: Context) -> NoReturn:
    """End a call with the status of `error`."""
    await context.abort(status_of(error), text_of(error), trailers_of(error))
    raise AssertionError("abort returned")
