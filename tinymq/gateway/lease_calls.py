"""Messages of queue groups, for callers without a tinymq client: leased by ConsumeMessage, settled by Settle.

A lease is named by bytes that only brokers read: the grant, and what it was granted in. So any leader can settle it,
also one that came later, and a repeat of a settlement has the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError

from tinymq.base.errors import InvalidRequest, LeaseLost, TinymqError, UnknownPartition
from tinymq.base.group_config import RETRY_MS_MAX
from tinymq.base.types import check_channel_name
from tinymq.broker.groups.lease_values import Era, Grant
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.messages import StoredMessage, unpack_record
from tinymq.broker.work.attachment import Verb
from tinymq.broker.work.unary_worker import Leased
from tinymq.gateway.call import NOTHING_DONE, Call, too_late
from tinymq.gateway.leader_calls import LeaderCalls
from tinymq.gateway.watch import LOOK_S
from tinymq.proto import group_pb2 as wire
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.lookup import find_topic
from tinymq.rpc.common.presence import require

LEASE_BYTES_MAX = 256
ERROR_BYTES_MAX = 4096
ATTEMPT_S_MIN = 0.001

_VERBS = {
    pb.SettleRequest.ACK: Verb.ACK,
    pb.SettleRequest.NACK: Verb.NACK,
    pb.SettleRequest.REJECT: Verb.REJECT,
    pb.SettleRequest.EXTEND: Verb.EXTEND,
}

Shape = Callable[[int, StoredMessage], pb.QueueMessage]
"""The message of a queue as it is sent. Raises BatchTooLarge if the caller would not take it."""


class LeaseCalls:
    """The calls of one gateway."""

    def __init__(self, serving: Serving, leaders: LeaderCalls) -> None:
        self._serving = serving
        self._leaders = leaders

    # ---- leasing

    async def consume(
        self, request: pb.ConsumeMessageRequest, call: Call, until_s: float, shape: Shape
    ) -> pb.ConsumeMessageReply:
        """Lease the next message of one queue or of any. Raises UnknownGroup, WrongKind, InvalidRequest."""
        check_channel_name(request.group)
        if request.channel or request.request_id:
            hint = "a group keeps its own place, and a lost answer is delivered again when its lease has ended"
            raise InvalidRequest("a group with a channel or a request_id", hint=hint)
        if request.HasField("queue"):
            return await self._one(request, call, until_s, shape, patient=True)
        clock = call.broker.env.clock
        while True:
            topic = await find_topic(call.broker, request.topic)
            failed: TinymqError | None = None
            for queue in topic.queues:
                asked = pb.ConsumeMessageRequest(topic=request.topic, queue=queue.partition, group=request.group)
                try:
                    reply = await self._one(asked, call, 0.0, shape, patient=False)
                except UnknownPartition:  # deleted meanwhile
                    continue
                except NOTHING_DONE as error:
                    failed = error
                    continue
                if reply.HasField("message"):
                    return reply
            left_s = until_s - clock.monotonic()
            if failed is not None and (not self._leaders.stays or call.left_s() <= LOOK_S):
                raise too_late(failed) if self._leaders.stays else failed
            if failed is None and left_s <= 0:
                return pb.ConsumeMessageReply()
            await clock.sleep(max(ATTEMPT_S_MIN, min(LOOK_S, left_s if failed is None else LOOK_S)))

    async def _one(
        self, request: pb.ConsumeMessageRequest, call: Call, until_s: float, shape: Shape, *, patient: bool
    ) -> pb.ConsumeMessageReply:
        wait_s = max(0.0, until_s - call.broker.env.clock.monotonic())
        asked = pb.ConsumeMessageRequest()
        asked.CopyFrom(request)
        asked.wait_ms = int(wait_s * 1000)
        here = partial(self._lease, call, asked, wait_s, shape)
        # An attempt whose answer is lost leaves a lease behind, which ends by itself: asking twice does no harm.
        return await self._leaders.at_leader(
            call, "ConsumeMessage", asked, here, repeatable=True, waits_s=wait_s, patient=patient
        )

    async def _lease(
        self, call: Call, request: pb.ConsumeMessageRequest, wait_s: float, shape: Shape, partition: Partition
    ) -> pb.ConsumeMessageReply:
        group = await self._group_id(request.group)
        unary = self._serving.unary_workers()
        worker = unary.of(partition, request.group, group)
        leased = await worker.take(wait_s, unary.clock)
        if leased is None:
            return pb.ConsumeMessageReply()
        try:
            record = unpack_record(leased.batch.payload, leased.batch.base_offset, leased.grant.offset)
            message = shape(request.queue, record)
        except TinymqError:
            worker.give_back(leased.grant)
            raise
        return pb.ConsumeMessageReply(
            message=message,
            lease=_pack(partition, group, leased),
            delivery=leased.grant.delivery,
            lease_ms=int(leased.lease_s * 1000),
        )

    async def _group_id(self, name: str) -> int:
        groups = self._serving.running_groups()
        known = groups.known.get(name)
        return (known if known is not None else await groups.get(name)).group_id

    # ---- settling

    async def settle(self, request: pb.SettleRequest, call: Call) -> pb.SettleReply:
        """Settle one message. Raises LeaseLost, InvalidRequest, UnknownGroup, OutcomeUnknown."""
        require(request, "queue")
        check_channel_name(request.group)
        verb = _VERBS.get(request.verb)
        if verb is None:
            raise InvalidRequest(f"a settlement of verb {request.verb}", hint="ACK, NACK, REJECT or EXTEND")
        if request.delay_ms > RETRY_MS_MAX:
            raise InvalidRequest(f"a delay of {request.delay_ms} ms", hint=f"at most {RETRY_MS_MAX}")
        here = partial(self._settle, request, verb, _parse(request.lease))
        return await self._leaders.at_leader(call, "Settle", request, here, repeatable=True)

    async def _settle(
        self, request: pb.SettleRequest, verb: Verb, lease: wire.UnaryLease, partition: Partition
    ) -> pb.SettleReply:
        if lease.topic_id != partition.group.id.topic_id:
            raise LeaseLost(f"{partition}: the topic was deleted, and made again")
        unary = self._serving.unary_workers()
        worker = unary.of(partition, request.group, lease.group_id)
        era = Era(lease.history, lease.generation)
        grant = Grant(lease.offset, lease.term, lease.number, lease.delivery, era, started=True)
        delay_ms = request.delay_ms if request.HasField("delay_ms") else None
        error = request.error.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
        left_s = await worker.settle(verb, grant, delay_ms, error, unary.clock.monotonic())
        return pb.SettleReply(lease_ms=int(left_s * 1000) if verb is Verb.EXTEND else 0)


def _pack(partition: Partition, group_id: int, leased: Leased) -> bytes:
    grant = leased.grant
    return wire.UnaryLease(
        topic_id=partition.group.id.topic_id,
        group_id=group_id,
        history=grant.era.history,
        generation=grant.era.generation,
        offset=grant.offset,
        term=grant.term,
        number=grant.number,
        delivery=grant.delivery,
    ).SerializeToString()


def _parse(lease: bytes) -> wire.UnaryLease:
    """Raises InvalidRequest for bytes that no broker made."""
    hint = "send what ConsumeMessage answered, unchanged"
    if not 0 < len(lease) <= LEASE_BYTES_MAX:
        raise InvalidRequest(f"a lease of {len(lease)} bytes", hint=hint)
    try:
        found = wire.UnaryLease.FromString(lease)
    except DecodeError:
        raise InvalidRequest("a lease that does not parse", hint=hint) from None
    if (found.offset | found.number | found.term) >> 62:
        raise InvalidRequest("a lease that no broker made", hint=hint)
    return found
