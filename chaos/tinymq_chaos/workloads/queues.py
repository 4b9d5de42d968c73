"""Callers without tinymq's client: QueueService, one message at a time, at any broker.

They produce, take, read and count, and create and delete queues. A caller asks for a message again under its request id
until it gets an answer. A caller that gives no id and names no queue may lose the message with the answer, and nothing
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from tinymq.base.errors import CorruptData, DiskFull, StorageError
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.records import name_in_fields
from tinymq_chaos.workloads.context import CALL_S, Caller, Context, begin, key_of, pause, recorded
from tinymq_chaos.workloads.producers import NumberedProducer
from tinymq_chaos.workloads.readers import drain

QUEUES = 2
TAKERS = 3
TRIES = 4  # of one request
WAIT_S = 0.5  # for a message, when there is none
NAMED, UNNAMED = "named", "unnamed"  # channels of requests with ids and without


async def queues(context: Context) -> None:
    """Use one topic through QueueService, at any broker."""
    service = QueueCaller(context, await context.topic(QUEUES))
    client = context.client(request_timeout_ms=CALL_S * 1000)
    service.key = await key_of(context, client, service.topic)
    takers = [service.take(f"{context.name} {n}") for n in range(TAKERS)]
    producers = [service.produce(f"{context.name}.{letter}") for letter in "ab"]
    await asyncio.gather(*producers, *takers, service.take_any(), service.look(), service.come_and_go())
    await drain(context, client, service.topic, service.key, "leader", range(QUEUES))


class QueueCaller:
    """The calls, each with its entry in the history."""

    def __init__(self, context: Context, topic: str) -> None:
        self.topic = topic
        self.key = ""  # the topic's name in histories
        self._context = context

    async def produce(self, process: str) -> None:
        """Send single messages one after another, mostly with an answer from a majority."""
        context, caller = self._context, self._context.caller()
        sender = NumberedProducer(context, process, self.topic, self.key, QUEUES)
        while not context.stop.is_set():
            await self._put(caller, sender, context.rng.randrange(QUEUES), sure=context.rng.random() < 0.85)
            await pause(context, 0.05, 0.7)

    async def _put(self, caller: Caller, sender: NumberedProducer, queue: int, *, sure: bool) -> Call:
        (name,) = sender.records(1)
        method, acks = ("ProduceMessage", "quorum") if sure else ("AsyncProduceMessage", "leader")
        fields = sender.content(name, own_clock=False)
        headers = [pb.Header(key=key, value=value) for key, value in fields.headers]
        request = pb.ProduceMessageRequest(
            topic=self.topic, queue=queue, key=fields.key, value=fields.value, headers=headers,
            timestamp_us=fields.timestamp_us,
        )  # fmt: skip
        call = sender.begin([name], queue, sender.process, idempotent=False, acks=acks)
        with _answered(call):
            reply = await _ask(caller, method, request)
            call.ok([reply.queue, reply.offset, reply.append_time_us])
        sender.ended(call)
        return call

    async def take(self, process: str) -> None:
        """Take the next message of one queue after another; ask for each until there is an answer."""
        context, caller = self._context, self._context.caller()
        while not context.stop.is_set():
            queue, request_id = context.rng.randrange(QUEUES), context.rng.randbytes(16)
            for _ in range(TRIES):
                call = await self._consume(caller, process, NAMED, queue, request_id)
                if call.outcome in (Outcome.OK, Outcome.FAILED) and context.rng.random() < 0.8:
                    break  # otherwise it asks again, like a caller that lost the answer
                await pause(context, 0.0, 0.2)
            await pause(context, 0.0, 0.4)

    async def take_any(self) -> None:
        """Take the next message of any queue."""
        context, caller = self._context, self._context.caller()
        for number in count():
            if context.stop.is_set():
                return
            await self._consume(caller, f"{context.name} any", UNNAMED, None, b"", f"any {number}")
            await pause(context, 0.0, 0.5)

    async def _consume(
        self, caller: Caller, process: str, channel: str, queue: int | None, request_id: bytes, request: str = ""
    ) -> Call:
        wait_ms = int(1000 * WAIT_S) if self._context.rng.random() < 0.3 else 0
        call = begin(
            self._context, process, "consume",
            topic=self.key, partition=queue, channel=channel, request=request or request_id.hex(), reads=True,
        )  # fmt: skip
        asked = pb.ConsumeMessageRequest(
            topic=self.topic, queue=queue, channel=channel, request_id=request_id, wait_ms=wait_ms
        )
        with _answered(call):
            reply = await _ask(caller, "ConsumeMessage", asked)
            if reply.HasField("message"):
                call.args["partition"] = reply.message.queue
            call.ok([reply.message.offset, _name_of(reply.message)] if reply.HasField("message") else None)
        return call

    async def look(self) -> None:
        """Read messages at offsets, and count them."""
        context, caller = self._context, self._context.caller()
        process = f"{context.name} looks"
        while not context.stop.is_set():
            queue = context.rng.randrange(QUEUES)
            end = await self._size(caller, process, queue, context.rng.choice(("", "", NAMED)))
            if end:
                await self._fetch(caller, process, queue, context.rng.randrange(end + 2))
            await pause(context, 0.2, 1.0)

    async def _size(self, caller: Caller, process: str, queue: int, channel: str) -> int:
        call = begin(self._context, process, "size", topic=self.key, partition=queue, channel=channel)
        with _answered(call):
            asked = pb.GetQueueSizeRequest(topic=self.topic, queue=queue, channel=channel)
            call.ok(int((await _ask(caller, "GetQueueSize", asked)).messages))
        return call.result or 0

    async def _fetch(self, caller: Caller, process: str, queue: int, offset: int) -> None:
        call = begin(self._context, process, "fetch", topic=self.key, partition=queue, offset=offset)
        with _answered(call):
            asked = pb.FetchMessageRequest(topic=self.topic, queue=queue, offset=offset)
            reply = await _ask(caller, "FetchMessage", asked)
            message = [reply.message.offset, _name_of(reply.message)] if reply.HasField("message") else None
            call.ok([message, reply.log_start, reply.high_watermark])

    async def come_and_go(self) -> None:
        """Create a queue, write to it, read it, and delete it with its content."""
        context, caller = self._context, self._context.caller()
        process = f"{context.name}.owner"
        sender = NumberedProducer(context, process, self.topic, self.key, QUEUES)
        while not context.stop.is_set():
            call = begin(context, process, "add_partition", topic=self.key)
            with _answered(call):
                call.ok(int((await _ask(caller, "CreateQueue", pb.CreateQueueRequest(topic=self.topic))).queue))
            if call.outcome is Outcome.OK:
                await self._use(caller, process, sender, call.result)
            await pause(context, 0.5, 3.0)

    async def _use(self, caller: Caller, process: str, sender: NumberedProducer, queue: int) -> None:
        for _ in range(self._context.rng.randint(1, 3)):
            await self._put(caller, sender, queue, sure=True)
        await self._consume(caller, process, NAMED, queue, self._context.rng.randbytes(8))
        call = begin(self._context, process, "delete_partition", topic=self.key, partition=queue)
        with _answered(call):
            await _ask(caller, "DeleteQueue", pb.DeleteQueueRequest(topic=self.topic, queue=queue))
            call.ok()


def _name_of(message: pb.QueueMessage) -> str:
    """Return the name of a record as QueueService gives it: an absent field is None."""
    headers = tuple((h.key, h.value if h.HasField("value") else None) for h in message.headers)
    key = message.key if message.HasField("key") else None
    value = message.value if message.HasField("value") else None
    return name_in_fields(key, value, headers, message.timestamp_us)


async def _ask(caller: Caller, method: str, request: Any) -> Any:
    return await caller.ask(f"tinymq.v1.QueueService/{method}", request, CALL_S)


@contextmanager
def _answered(call: Call) -> Iterator[None]:
    """Like `recorded`; an error that may come after an effect (docs/queue-service.md) is an unknown outcome."""
    with recorded(call):
        try:
            yield
        except (StorageError, CorruptData) as error:
            if isinstance(error, DiskFull):
                raise
            call.unknown(error.code)
