"""One foreign call: who calls, until when, how much of an answer the caller takes, and who counted the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinymq.base.config import MIB
from tinymq.base.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    NotReady,
    TinymqError,
)
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.messages import StoredMessage
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.call_context import Context, client_of
from tinymq.rpc.common.caller import permits, principal_text, user_of
from tinymq.rpc.common.forward_mark import FORWARDED, ForwardMarks

TIMEOUT_S_MAX = 3600.0
DIGITS_MAX = 12
ANSWER_S = 0.1  # an answer takes up to this long to reach the caller

RECEIVES = "tinymq-receive-bytes-max"  # metadata key: the largest answer that the client takes
RECEIVES_BYTES = 4 * MIB  # the default: a gRPC client takes no more, unless it is configured to

AROUND_BYTES = 1024  # that an answer may have beyond the message in it

NOTHING_DONE = (NotLeader, NotReady, BrokerUnreachable)
"""Errors after which it is certain that nothing was done, and that another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it came in."""

    broker: Broker  # that received it
    client: str  # whose quota it counts to
    forwarded: bool  # by another broker, or by a client that claims so: never forwarded again
    deadline_s: float  # by the broker's monotonic clock
    receives_bytes: int = RECEIVES_BYTES  # the largest answer that the caller takes
    charged: bool = False  # another broker has proven that it counted this call
    principal: str = ""  # who calls, as forwarded calls carry it; "" while callers are not checked

    def left_s(self) -> float:
        """Seconds until the deadline. Negative after it."""
        return self.deadline_s - self.broker.env.clock.monotonic()


def read_call(broker: Broker, context: Context, marks: ForwardMarks, method: str, request: Any) -> Call:
    """Read the metadata and the deadline of a call to `method`. Raises InvalidRequest."""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    given_s = context.time_remaining()
    timeout_s = broker.timing.produce_timeout_s
    if given_s is not None:  # an answer that is sent at the deadline itself comes too late
        timeout_s = min(given_s - min(ANSWER_S, given_s / 10), TIMEOUT_S_MAX)
    deadline_s = broker.env.clock.monotonic() + timeout_s
    receives = str(metadata.get(RECEIVES, RECEIVES_BYTES))
    if not (receives.isascii() and receives.isdigit() and len(receives) <= DIGITS_MAX):
        raise InvalidRequest(f"{RECEIVES}: {receives[:100]!r}", hint="a number of bytes, such as 8388608")
    receives_bytes = min(int(receives), broker.limits.grpc_message_bytes_max)
    client, mark, present = client_of(context), metadata.get(FORWARDED), permits()
    if present is None:  # else the gate has looked at the mark, which is valid once
        charged = mark is not None and marks.holds(broker, str(mark), method, client, request)
        return Call(broker, client, mark is not None, deadline_s, receives_bytes, charged)
    if not present.forwarded:
        client = user_of(context)
    principal = principal_text(present.caller.principal)
    return Call(
        broker=broker, client=client, forwarded=mark is not None, deadline_s=deadline_s, receives_bytes=receives_bytes,
        charged=present.forwarded, principal=principal,
    )  # fmt: skip


def too_late(last: TinymqError) -> DeadlineExceeded:
    """Return the error of a call that has no time for another attempt, after attempts that did nothing."""
    return DeadlineExceeded(f"nobody could be asked in time: {last.message}")


def queue_message(call: Call, topic: str, queue: int, record: StoredMessage) -> pb.QueueMessage:
    """Return the message as it is sent. Raises BatchTooLarge if the client would not take it."""
    message = pb.QueueMessage(
        topic=topic,
        queue=queue,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=[pb.Header(key=key, value=value) for key, value in record.headers],
        timestamp_us=record.timestamp_us,
    )
    needed = message.ByteSize() + AROUND_BYTES
    if needed > call.receives_bytes:
        raise BatchTooLarge(
            f"message {record.offset} of {topic}/{queue} needs an answer of {needed} bytes, and the client takes up to "
            f"{call.receives_bytes}",
            hint=f"receive more, and say so in the metadata: {RECEIVES}={needed}; or read it with tinymq's own client",
            offset=record.offset,
            needed_bytes=needed,
        )
    return message
