"""service QueueService: single messages, at any broker, for any client.

A failure is a typed error, and ends the call with a gRPC status (tinymq/rpc/common/statuses.py).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from tinymq.base.errors import (
    BatchTooLarge,
    InvalidRequest,
    OffsetOutOfRange,
    TinymqError,
    UnknownPartition,
)
from tinymq.base.partitioning import keyed
from tinymq.base.types import TopicId, check_channel_name
from tinymq.broker.delayed.bounds import Due
from tinymq.broker.partition.partition import Acks, Partition
from tinymq.broker.serve import messages
from tinymq.broker.serve.quotas import Quotas
from tinymq.format.feature_level import DELAYS_LEVEL, check
from tinymq.gateway.call import AROUND_BYTES, NOTHING_DONE, RECEIVES_BYTES, Call, queue_message, read_call, too_late
from tinymq.gateway.leader_calls import LeaderCalls
from tinymq.gateway.lease_calls import LeaseCalls
from tinymq.gateway.topics import create_queue, delete_queue
from tinymq.gateway.watch import LOOK_S, Watch
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.registry.state.values import TopicRecord
from tinymq.rpc.common.access import CONSUMER, GROUP, QUEUE_CHANNEL, TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context
from tinymq.rpc.common.caller import count_partition, require
from tinymq.rpc.common.forward_mark import ForwardMarks
from tinymq.rpc.common.lookup import find_topic
from tinymq.rpc.common.rpc_method import unary

REQUEST_ID_BYTES = 16
MARGIN_S = 0.2  # no message is taken so shortly before the deadline: its answer would be lost
TOPICS_MAX = 10_000  # whose turns are remembered
AVOIDED_S = 2.0  # how long a queue that could not be written to comes last, if any queue will do
AVOIDED_MAX = 10_000
ASKED_MAX = 16  # queues of a topic asked side by side
LOOK_S_MIN = 0.01  # before queues that had nothing after all are asked again: doubles, up to LOOK_S
PRODUCE_BYTES_MAX = RECEIVES_BYTES - 2 * AROUND_BYTES  # of a request: its message fits into an answer to any client


class QueueService(pb_grpc.QueueServiceServicer):
    """service QueueService."""

    def __init__(
        self,
        serving: Serving,
        leaders: LeaderCalls,
        marks: ForwardMarks,
        quotas: Quotas,
        randbytes: Callable[[int], bytes],
    ) -> None:
        self._serving = serving
        self._leaders = leaders
        self._marks = marks
        self._leases = LeaseCalls(serving, leaders)
        self._quotas = quotas
        self._randbytes = randbytes
        self._takers = messages.WaitingTakers()
        self._turns: OrderedDict[TopicId, int] = OrderedDict()
        self._avoided: OrderedDict[tuple[TopicId, int], float] = OrderedDict()  # until when queues are avoided

    async def close(self) -> None:
        """End the calls that wait for other brokers. They may have been done."""
        await self._leaders.close()

    @unary(operation="write", resource=TOPIC)
    async def ProduceMessage(self, request: pb.ProduceMessageRequest, context: Context) -> pb.ProduceMessageReply:
        call = self._call(context, "ProduceMessage", request)
        return await self._produce("ProduceMessage", Acks.QUORUM, request, call)

    @unary(operation="write", resource=TOPIC)
    async def AsyncProduceMessage(self, request: pb.ProduceMessageRequest, context: Context) -> pb.ProduceMessageReply:
        call = self._call(context, "AsyncProduceMessage", request)
        return await self._produce("AsyncProduceMessage", Acks.LEADER, request, call)

    @unary(operation="read", resource=CONSUMER, also=(("read", TOPIC),))
    async def ConsumeMessage(self, request: pb.ConsumeMessageRequest, context: Context) -> pb.ConsumeMessageReply:
        call = self._call(context, "ConsumeMessage", request)
        return await self._consume(request, call)

    @unary(operation="read", resource=GROUP, also=(("read", TOPIC),))
    async def Settle(self, request: pb.SettleRequest, context: Context) -> pb.SettleReply:
        return await self._leases.settle(request, self._call(context, "Settle", request))

    @unary(operation="read", resource=TOPIC)
    async def FetchMessage(self, request: pb.FetchMessageRequest, context: Context) -> pb.FetchMessageReply:
        call = self._call(context, "FetchMessage", request)
        return await self._fetch(request, call)

    @unary(operation="create", resource=TOPIC)
    async def CreateQueue(self, request: pb.CreateQueueRequest, context: Context) -> pb.CreateQueueReply:
        call = self._call(context, "CreateQueue", request)
        await count_partition(self._serving, request.topic, makes=True)
        return await create_queue(request, call)

    @unary(operation="delete", resource=TOPIC)
    async def DeleteQueue(self, request: pb.DeleteQueueRequest, context: Context) -> pb.DeleteQueueReply:
        call = self._call(context, "DeleteQueue", request)
        return await delete_queue(request, call)

    @unary(operation="describe", resource=TOPIC, also=(("describe", QUEUE_CHANNEL),))
    async def GetQueueSize(self, request: pb.GetQueueSizeRequest, context: Context) -> pb.GetQueueSizeReply:
        call = self._call(context, "GetQueueSize", request)
        return await self._size(request, call)

    def _call(self, context: Context, method: str, request: Any) -> Call:
        return read_call(self._serving.running(), context, self._marks, method, request)

    # ---- producing -----------------------------------------------------------------------------------

    async def _produce(
        self, method: str, acks: Acks, request: pb.ProduceMessageRequest, call: Call
    ) -> pb.ProduceMessageReply:
        if request.ByteSize() > PRODUCE_BYTES_MAX + (AROUND_BYTES if call.forwarded else 0):  # forwarding enlarges it
            raise BatchTooLarge(
                f"a message of {request.ByteSize()} bytes; at most {PRODUCE_BYTES_MAX}: a gRPC client takes no more",
                hint="tinymq's own client sends and reads larger ones",
            )
        if request.HasField("delay_ms"):  # at its level, every broker that the call may be forwarded to knows the field
            check("a delayed message", DELAYS_LEVEL, call.broker.registry.feature_level)
        if request.timeout_ms:
            call = _by(call, request.timeout_ms / 1000)
        if not call.charged:
            await self._quotas.produce.share(call.client).admit(request.ByteSize(), call.left_s())
        if not request.HasField("timestamp_us"):
            request.timestamp_us = call.broker.env.clock.wall_us()
        if call.broker.would_create(request.topic):
            require("create", "topic", request.topic)
        await call.broker.create_missing(request.topic, call.left_s())
        here = partial(self._put, call, request, acks)
        if request.HasField("queue"):
            return await self._leaders.at_leader(call, method, request, here, repeatable=False)
        if not request.key:
            return await self._produce_in_turn(method, request, call, here)
        request.queue = _queue_of(await find_topic(call.broker, request.topic), request.key)
        try:
            return await self._leaders.at_leader(call, method, request, here, repeatable=False)
        except UnknownPartition:  # the queue was deleted meanwhile
            await call.broker.refresh()
        request.queue = _queue_of(await find_topic(call.broker, request.topic), request.key)
        return await self._leaders.at_leader(call, method, request, here, repeatable=False)

    async def _produce_in_turn(
        self,
        method: str,
        request: pb.ProduceMessageRequest,
        call: Call,
        here: Callable[[Partition], Awaitable[pb.ProduceMessageReply]],
    ) -> pb.ProduceMessageReply:
        """Produce to the next queue whose leader accepts the message. An attempt that may have been written is never
        repeated at another queue."""
        clock, pause_s = call.broker.env.clock, LOOK_S_MIN
        while True:
            last: TinymqError | None = None
            topic = await find_topic(call.broker, request.topic)
            for number in self._in_turn(topic, clock.monotonic()):
                request.queue = number
                try:
                    reply = await self._leaders.at_leader(call, method, request, here, repeatable=False, patient=False)
                except UnknownPartition as error:  # the queue was deleted meanwhile
                    last = last or error
                except NOTHING_DONE as error:
                    last = error
                    self._avoid(topic.topic_id, number, clock.monotonic() + AVOIDED_S)
                else:
                    self._avoided.pop((topic.topic_id, number), None)
                    return reply
                if call.left_s() <= 0:
                    break
            assert last is not None, "a topic has a queue"
            if not self._leaders.stays:
                raise last
            if call.left_s() <= pause_s:
                raise too_late(last)
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
            if isinstance(last, UnknownPartition):
                await call.broker.refresh()

    async def _put(
        self, call: Call, request: pb.ProduceMessageRequest, acks: Acks, partition: Partition
    ) -> pb.ProduceMessageReply:
        key = request.key if request.HasField("key") else None
        value = request.value if request.HasField("value") else None
        headers = [(h.key, h.value if h.HasField("value") else None) for h in request.headers]
        payload = messages.pack_record(key, value, headers, request.timestamp_us)
        began_s = (meter := self._serving.meter).now()
        due = Due(delay_us=request.delay_ms * 1000) if request.HasField("delay_ms") else None
        produced = await messages.put(call.broker, partition, payload, acks, max(0.001, call.left_s()), due=due)
        committed = began_s if acks is Acks.QUORUM else None
        meter.produced(partition.group.id.topic_id, len(payload), 1, began_s, committed)
        return pb.ProduceMessageReply(
            queue=request.queue, offset=produced.base_offset, append_time_us=produced.append_time_us,
            schedule_id=produced.schedule_id, deliver_at_us=produced.deliver_at_us,
        )  # fmt: skip

    def _in_turn(self, topic: TopicRecord, now_s: float) -> list[int]:
        """Return all queues, beginning with the one whose turn it is. Queues that could not be written to a moment ago
        come last."""
        first = self._turn(topic)
        numbers = [queue.partition for queue in (*topic.queues[first:], *topic.queues[:first])]
        return sorted(numbers, key=lambda number: self._avoided.get((topic.topic_id, number), 0.0) > now_s)

    def _avoid(self, topic_id: TopicId, number: int, until_s: float) -> None:
        self._avoided[topic_id, number] = until_s
        self._avoided.move_to_end((topic_id, number))
        if len(self._avoided) > AVOIDED_MAX:
            self._avoided.popitem(last=False)

    def _turn(self, topic: TopicRecord) -> int:
        """Return the place, among the topic's queues, of the queue whose turn it is."""
        turn = self._turns.pop(topic.topic_id, -1) + 1
        self._turns[topic.topic_id] = turn
        if len(self._turns) > TOPICS_MAX:
            self._turns.popitem(last=False)
        return turn % len(topic.queues)

    # ---- consuming -----------------------------------------------------------------------------------

    async def _consume(self, request: pb.ConsumeMessageRequest, call: Call) -> pb.ConsumeMessageReply:
        if not request.group:
            check_channel_name(request.channel)
        named = bool(request.request_id) and not request.group
        if named and not request.HasField("queue"):
            raise InvalidRequest("a request_id without a queue", hint="name the queue, or leave the request_id out")
        share = self._quotas.fetch.share(call.client)
        if not call.charged:
            await share.admit(0, call.left_s())
        wait_s = min(request.wait_ms / 1000, call.broker.timing.fetch_wait_s_max, call.left_s() - MARGIN_S)
        until_s = call.broker.env.clock.monotonic() + wait_s
        if request.group:
            shape = partial(queue_message, call, request.topic)
            reply = await self._leases.consume(request, call, until_s, shape)
        elif request.HasField("queue"):
            reply = await self._consume_one(request, call, until_s)
        else:
            reply = await self._consume_any(request, call, until_s)
        if not call.charged:
            share.charge(reply.ByteSize())
        return reply

    async def _consume_one(
        self, request: pb.ConsumeMessageRequest, call: Call, until_s: float, *, patient: bool = True
    ) -> pb.ConsumeMessageReply:
        """The next message of one queue. The request has an id in any case, so that a lost answer between brokers, or
        a leader's end, loses no message."""
        asked = pb.ConsumeMessageRequest(topic=request.topic, queue=request.queue, channel=request.channel)
        while True:
            asked.request_id = request_key(request.request_id) if request.request_id else self._randbytes(16)
            wait_s = max(0.0, until_s - call.broker.env.clock.monotonic())
            asked.wait_ms = int(wait_s * 1000)
            here = partial(self._take, call, asked, wait_s)
            try:
                return await self._leaders.at_leader(
                    call, "ConsumeMessage", asked, here, repeatable=True, waits_s=wait_s, patient=patient
                )
            except OffsetOutOfRange:  # trimmed between the taking and the reading
                if request.request_id or call.left_s() <= 0:
                    raise

    async def _take(
        self, call: Call, request: pb.ConsumeMessageRequest, wait_s: float, partition: Partition
    ) -> pb.ConsumeMessageReply:
        timeout_s = max(0.001, call.left_s())
        taken = await self._takers.take(
            call.broker, partition, request.channel, request.request_id, wait_s=wait_s, timeout_s=timeout_s,
            shape=partial(queue_message, call, request.topic, request.queue),
        )  # fmt: skip
        return pb.ConsumeMessageReply(message=taken)

    async def _consume_any(
        self, request: pb.ConsumeMessageRequest, call: Call, until_s: float
    ) -> pb.ConsumeMessageReply:
        """Take the next message of any queue: ask the leaders in turn, then watch the replicas here."""
        clock, pause_s = call.broker.env.clock, LOOK_S_MIN
        topic = await find_topic(call.broker, request.topic)
        first = self._turn(topic)
        wanted = [queue.partition for queue in (*topic.queues[first:], *topic.queues[:first])]
        reply, missed = await self._ask(request, call, wanted)
        while reply is None:
            left_s = until_s - clock.monotonic()
            if not missed and left_s <= 0:
                return pb.ConsumeMessageReply()
            if missed and not (self._leaders.stays and call.left_s() > MARGIN_S):
                error = next(iter(missed.values()))
                raise too_late(error) if self._leaders.stays else error
            topic = await find_topic(call.broker, request.topic)
            with Watch(self._takers, call.broker, topic, request.channel, missed) as watch:
                await watch.changed(left_s)
                reply, missed = await self._ask(request, call, watch.wanted())
            if reply is None:  # the replicas here are behind: do not ask in a busy loop
                await clock.sleep(pause_s)
                pause_s = min(2 * pause_s, LOOK_S)
        return reply

    async def _ask(
        self, request: pb.ConsumeMessageRequest, call: Call, numbers: Iterable[int]
    ) -> tuple[pb.ConsumeMessageReply | None, dict[int, TinymqError]]:
        """Return the message of the first queue that has one, and the errors of queues that could not be asked."""
        missed: dict[int, TinymqError] = {}
        for number in numbers:
            queue_request = pb.ConsumeMessageRequest(topic=request.topic, queue=number, channel=request.channel)
            try:
                reply = await self._consume_one(queue_request, call, 0.0, patient=False)
            except UnknownPartition:  # deleted meanwhile
                continue
            except NOTHING_DONE as error:
                missed[number] = error
                continue
            if reply.HasField("message"):
                return reply, missed
        return None, missed

    # ---- looking -------------------------------------------------------------------------------------

    async def _fetch(self, request: pb.FetchMessageRequest, call: Call) -> pb.FetchMessageReply:
        share = self._quotas.fetch.share(call.client)
        if not call.charged:
            await share.admit(0, call.left_s())
        wait_s = min(request.wait_ms / 1000, call.broker.timing.fetch_wait_s_max, call.left_s() - MARGIN_S)

        async def here(partition: Partition) -> pb.FetchMessageReply:
            seen = await messages.look(call.broker, partition, request.offset, wait_s)
            reply = pb.FetchMessageReply(log_start=seen.log_start, high_watermark=seen.high_watermark)
            if seen.record is not None:
                reply.message.CopyFrom(queue_message(call, request.topic, request.queue, seen.record))
            return reply

        waits_s = max(0.0, wait_s)
        reply = await self._leaders.at_leader(
            call, "FetchMessage", request, here, repeatable=True, waits_s=waits_s
        )  # fmt: skip
        if not call.charged:
            share.charge(reply.ByteSize())
        return reply

    async def _size(self, request: pb.GetQueueSizeRequest, call: Call) -> pb.GetQueueSizeReply:
        if request.channel:
            check_channel_name(request.channel)
        if request.HasField("queue"):
            numbers = [request.queue]
        else:
            numbers = [queue.partition for queue in (await find_topic(call.broker, request.topic)).queues]
        room = asyncio.Semaphore(ASKED_MAX)

        async def one(number: int) -> int:
            asked = pb.GetQueueSizeRequest(topic=request.topic, queue=number, channel=request.channel)

            async def here(partition: Partition) -> pb.GetQueueSizeReply:
                await messages.prove_leading(partition, max(0.001, call.left_s()))
                return pb.GetQueueSizeReply(messages=messages.size_of(partition, request.channel))

            async with room:
                return (await self._leaders.at_leader(call, "GetQueueSize", asked, here, repeatable=True)).messages

        return pb.GetQueueSizeReply(messages=sum(await asyncio.gather(*map(one, numbers))))


def _queue_of(topic: TopicRecord, key: bytes) -> int:
    """Return the queue of a key, as tinymq's client chooses it."""
    return topic.queues[keyed(key, len(topic.queues))].partition


def request_key(request_id: bytes) -> bytes:
    """Return the id as the partition remembers it: 16 bytes. A shorter id is hashed."""
    if len(request_id) > REQUEST_ID_BYTES:
        raise InvalidRequest(f"a request_id of {len(request_id)} bytes", hint="1 to 16 bytes, new for each message")
    if len(request_id) == REQUEST_ID_BYTES:
        return request_id
    return blake2b(request_id, digest_size=REQUEST_ID_BYTES).digest()


def _by(call: Call, timeout_s: float) -> Call:
    """The same call with an earlier deadline."""
    deadline_s = call.broker.env.clock.monotonic() + timeout_s
    return replace(call, deadline_s=min(call.deadline_s, deadline_s))
