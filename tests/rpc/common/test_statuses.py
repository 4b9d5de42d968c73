"""Errors as gRPC statuses: each has a code, arrives complete, and fits into the trailers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from tinymq.base.errors import BY_CODE, BrokerUnreachable, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.client.net.grpc_transport import error_of_status
from tinymq.proto.errors import TRAILER
from tinymq.rpc.common.statuses import PUSHBACK, STATUS, status_of, text_of, trailers_of

OUTBOX = "tinymq.outbox.errors"  # these stay in the program that raises them
WIRED = sorted(
    code for code, kind in BY_CODE.items() if kind.__init__ is TinymqError.__init__ and kind.__module__ != OUTBOX
)
EXPECTED = {
    "UnknownTopic": StatusCode.NOT_FOUND,
    "UnknownPartition": StatusCode.NOT_FOUND,
    "UnknownChannel": StatusCode.NOT_FOUND,
    "InvalidName": StatusCode.INVALID_ARGUMENT,
    "BatchTooLarge": StatusCode.INVALID_ARGUMENT,
    "InvalidConfig": StatusCode.INVALID_ARGUMENT,
    "TopicExists": StatusCode.ALREADY_EXISTS,
    "NotLeader": StatusCode.UNAVAILABLE,
    "NotReady": StatusCode.UNAVAILABLE,
    "DeadlineExceeded": StatusCode.DEADLINE_EXCEEDED,
    "QuotaExceeded": StatusCode.RESOURCE_EXHAUSTED,
    "Fenced": StatusCode.FAILED_PRECONDITION,
    "OffsetOutOfRange": StatusCode.OUT_OF_RANGE,
    "OutcomeUnknown": StatusCode.UNKNOWN,
    "CorruptData": StatusCode.DATA_LOSS,
    "WrongSecret": StatusCode.PERMISSION_DENIED,
}


def test_the_table() -> None:
    assert {code: status_of(BY_CODE[code]("x")) for code in EXPECTED} == EXPECTED
    assert status_of(TinymqError("x")) is StatusCode.UNKNOWN
    unnamed = {code for code in WIRED if status_of(BY_CODE[code]("x")) is StatusCode.UNKNOWN}
    assert unnamed == {"OutcomeUnknown", "UnknownError", "RetriableUnknownError"}, (
        "every other error has a more specific code"
    )
    assert all(kind.code in BY_CODE or kind is TinymqError for kind in STATUS)


class Failing:
    """A server that ends each call with an error."""

    def __init__(self, error: TinymqError) -> None:
        self._error = error

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        await context.abort(status_of(self._error), text_of(self._error), trailers_of(self._error))
        return b""


async def over_grpc(error: TinymqError) -> grpc.aio.AioRpcError:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Failing(error),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary("/any/call")(b"", timeout=10)
            return failed.value
    finally:
        await server.stop(None)


def test_an_error_crosses_grpc_and_comes_back_as_itself() -> None:
    sent = QuotaExceeded("too many", hint="later", retry_after_ms=1500)
    failed = asyncio.run(over_grpc(sent))
    assert (failed.code(), failed.details()) == (StatusCode.RESOURCE_EXHAUSTED, "too many (later)")
    trailers: dict[str, Any] = dict(failed.trailing_metadata())
    assert trailers[PUSHBACK] == "1500"
    back = error_of_status(failed, "h:1")
    assert type(back) is QuotaExceeded
    assert (back.message, back.hint, back.detail) == ("too many", "later", {"retry_after_ms": "1500"})


def test_the_longest_error_fits_into_the_trailers() -> None:
    wide = "\N{GRINNING FACE}" * 2000
    sent = BY_CODE["InvalidRequest"](wide, hint=wide, **{f"detail_{n}": wide for n in range(30)})
    failed = asyncio.run(over_grpc(sent))
    assert failed.code() is StatusCode.INVALID_ARGUMENT
    back = error_of_status(failed, "h:1")
    assert back.code == "InvalidRequest"
    assert back.message == wide[: len(back.message)]
    assert len(back.message) >= 100


def ended(code: StatusCode, details: str = "", trailer: bytes | None = None) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata() if trailer is None else grpc.aio.Metadata((TRAILER, trailer))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (ended(StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: refused"), BrokerUnreachable),
        (ended(StatusCode.UNAVAILABLE, "Socket closed"), OutcomeUnknown),
        (ended(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), OutcomeUnknown),
        (ended(StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"), QuotaExceeded),
        (ended(StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max"), OutcomeUnknown),
        (ended(StatusCode.UNIMPLEMENTED, "Method not found!"), BY_CODE["UnsupportedVersion"]),
        (ended(StatusCode.UNKNOWN, "?", b"\xff\xff"), OutcomeUnknown),
    ],
)
def test_what_no_broker_said(failed: grpc.aio.AioRpcError, kind: type[TinymqError]) -> None:
    """Only an error that proves that nothing was done may be UNAVAILABLE, which clients retry blindly."""
    assert type(error_of_status(failed, "h:1")) is kind
