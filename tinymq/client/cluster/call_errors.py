"""The errors of calls that any broker answers: which may pass, and what a call raises when it gives up. Pure."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.message import Message

from tinymq.base.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    WrongEventLoop,
)
from tinymq.client.net.wire import read_error
from tinymq.proto.methods import method_of

UNCLEAR_HINT = "check the brokers and their registry; see whether it was done, then call again"


def reason_of(error: TinymqError, address: str) -> str:
    """Return the reason of a failure, without the address that it begins with."""
    return error.message.removeprefix(f"{address}: ")


def error_of(reply: Any) -> TinymqError | None:
    """Return the error that a reply carries, if any."""
    if "error" in reply.DESCRIPTOR.fields_by_name and reply.HasField("error"):
        return read_error(reply.error)
    return None


def is_unformed(error: TinymqError) -> bool:
    """Does the broker say that it belongs to no cluster yet?"""
    return isinstance(error, NotReady) and error.detail.get("state") == "unformed"


def may_pass(error: TinymqError) -> bool:
    """May the same request succeed soon? A request that exceeds a quota may, if the broker names a pause."""
    if isinstance(error, QuotaExceeded):
        return "retry_after_ms" in error.detail
    return error.retriable or isinstance(error, OutcomeUnknown)


def give_up(
    request: Message, timeout_s: float, reasons: dict[str, str], last: TinymqError | None, unclear: TinymqError | None
) -> TinymqError:
    what = f"{method_of(request).name} within {timeout_s:.3g} s"
    tried = "; ".join(f"{address}: {reason}" for address, reason in reasons.items()) or "no broker was tried"
    if unclear is None and last is not None and is_unformed(last):
        return NotReady(f"the cluster is not formed yet: {tried}", hint=last.hint, state="unformed")
    if unclear is not None:
        return OutcomeUnknown(f"no answer to {what}, and it may have been done: {tried}", hint=UNCLEAR_HINT)
    if isinstance(last, QuotaExceeded) or (last is not None and "missing" in last.detail):
        return last
    if last is not None:
        return DeadlineExceeded(f"no broker could do {what}: {tried}", last=last.code)
    return BrokerUnreachable(f"no broker answered {method_of(request).name}: {tried}")


def wrong_loop(home: asyncio.AbstractEventLoop) -> WrongEventLoop:
    """Return the error for a caller on another loop than `home`."""
    what = "has ended" if home.is_closed() else "runs in another thread" if home.is_running() else "does not run now"
    return WrongEventLoop(f"this client belongs to another event loop, which {what}")
