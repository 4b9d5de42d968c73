"""From any broker to the one that leads a partition: here, or one hop away; looked for again until the deadline.

A call that came from another broker is answered here or not at all: two brokers that take each other for the leader
must not play ping-pong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from tinymq.base.config import MIB, format_address
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    TinymqError,
    Unavailable,
)
from tinymq.base.types import PeerAddress
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.gateway.forward_mark import FORWARDED, ForwardMarks
from tinymq.registry.state.values import QueueRecord
from tinymq.rpc.common.broker_state import Serving, State
from tinymq.rpc.common.call_context import CLIENT_ID, Context, client_of
from tinymq.rpc.common.forwarding import Forwarding
from tinymq.rpc.common.lookup import find_queue, find_topic

T = TypeVar("T")

LOOK_S_MIN = 0.01  # between two looks for the leader: doubles
LOOK_S_MAX = 0.25
SILENT_S = 3.0  # a repeatable call that is not answered this long after its wait goes to whoever leads then
TIMEOUT_S_MAX = 3600.0
DIGITS_MAX = 12
HEARD_S = 0.1  # for an answer to arrive

RECEIVES = "tinymq-receive-bytes-max"  # metadata key: the largest answer that the client takes
RECEIVES_BYTES = 4 * MIB  # unless it says so: a gRPC client's own bound, as it comes

NOTHING_DONE = (NotLeader, NotReady, BrokerUnreachable)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it came in."""

    broker: Broker  # that it came to
    client: str  # whose quota it counts to
    forwarded: bool  # by another broker, or by a client that claims so: never forwarded again
    deadline_s: float  # by the broker's monotonic clock
    receives_bytes: int = RECEIVES_BYTES  # the largest answer
    charged: bool = False  # another broker has proven that it counted this call

    def left_s(self) -> float:
        return self.deadline_s - self.broker.env.clock.monotonic()


def read_call(broker: Broker, context: Context, marks: ForwardMarks, method: str, request: Any) -> Call:
    """Who calls, until when, and whether another broker passed it on. Raises InvalidRequest."""
    metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
    given_s = context.time_remaining()
    timeout_s = broker.timing.produce_timeout_s
    if given_s is not None:  # what is answered at the deadline itself is not heard
        timeout_s = min(given_s - min(HEARD_S, given_s / 10), TIMEOUT_S_MAX)
    deadline_s = broker.env.clock.monotonic() + timeout_s
    receives = str(metadata.get(RECEIVES, RECEIVES_BYTES))
    if not (receives.isascii() and receives.isdigit() and len(receives) <= DIGITS_MAX):
        raise InvalidRequest(f"{RECEIVES}: {receives[:100]!r}", hint="a number of bytes, such as 8388608")
    most = min(int(receives), broker.limits.grpc_message_bytes_max)
    client, mark = client_of(context), metadata.get(FORWARDED)
    charged = mark is not None and marks.holds(broker, str(mark), method, client, request)
    return Call(broker, client, mark is not None, deadline_s, most, charged)


class Leading:
    """Finds who leads, and asks it. `elsewhere`: where some are asked, wherever else they are said to be."""

    def __init__(
        self, serving: Serving, forwarding: Forwarding, marks: ForwardMarks, elsewhere: Iterable[PeerAddress] = ()
    ) -> None:
        self._serving = serving
        self._forwarding = forwarding
        self._marks = marks
        self._elsewhere = {peer.broker_id: format_address(peer.host, peer.port) for peer in elsewhere}

    @property
    def stays(self) -> bool:
        """Is this broker going to be there for another attempt?"""
        return self._serving.state is State.RUNNING

    async def at_leader(
        self,
        call: Call,
        method: str,
        request: Any,
        here: Callable[[Partition], Awaitable[T]],
        *,
        repeatable: bool,
        waits_s: float = 0.0,
        patient: bool = True,
    ) -> T:
        """`here(partition)` if this broker leads `request.queue` of `request.topic`, else its leader's answer.

        `repeatable`: asking twice does no harm, so that an unknown outcome is settled by asking again. `patient`: where
        nobody leads it is looked again. Raises what the leader says, DeadlineExceeded when nothing was done in time,
        OutcomeUnknown.
        """
        clock, pause_s = call.broker.env.clock, LOOK_S_MIN
        unclear: OutcomeUnknown | None = None  # an attempt that may have been heard
        while True:
            try:
                return await self._try(call, method, request, here, SILENT_S + waits_s if repeatable else None)
            except NOTHING_DONE as error:
                last: TinymqError = error
            except OutcomeUnknown as error:
                if not repeatable:
                    raise
                last = unclear = error
            except Unavailable as error:  # a refusal, unless an earlier attempt may have been heard
                if unclear is None:
                    raise
                last = error
            except Closed as error:  # this broker stops
                raise unclear or error from None
            if call.forwarded or not (patient or unclear) or not self.stays:
                raise unclear or last
            if call.left_s() <= pause_s:
                raise unclear or too_late(last)
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S_MAX)

    async def _try(
        self,
        call: Call,
        method: str,
        request: Any,
        here: Callable[[Partition], Awaitable[T]],
        patience_s: float | None,
    ) -> T:
        broker = call.broker
        topic = await find_topic(broker, request.topic)
        queue = await find_queue(broker, topic, request.queue)
        partition = broker.replica_host.get(queue.topic_id, queue.partition)
        if partition is not None and partition.leading:
            return await here(partition)
        leader, _ = broker.leader_of(queue.group)
        if call.forwarded or leader in (0, broker.env.broker_id):
            raise partition.not_leader() if partition is not None else _nobody(queue, leader, broker)
        address = broker.address_of(leader)
        if address is None:
            raise NotReady(f"{queue.topic}/{queue.partition}: its leader, broker {leader}, is not registered")
        left_s = max(0.001, call.left_s())
        timeout_s = left_s if patience_s is None else min(left_s, patience_s)
        metadata = (
            (FORWARDED, self._marks.sign(broker, leader, method, call.client, request)),
            (CLIENT_ID, call.client),
            (RECEIVES, str(call.receives_bytes)),
        )
        where = self._elsewhere.get(leader, address)
        reply: T = await self._forwarding.ask(where, method, request, timeout_s, metadata)
        return reply


def _nobody(queue: QueueRecord, leader: int, broker: Broker) -> NotLeader:
    return NotLeader(
        f"{queue.topic}/{queue.partition}: broker {broker.env.broker_id} holds no replica",
        leader=leader or None,
        leader_address=broker.address_of(leader),
    )


def too_late(last: TinymqError) -> DeadlineExceeded:
    """What to say when there is no time for another attempt, and none did anything."""
    return DeadlineExceeded(f"nobody could be asked in time: {last.message}")
