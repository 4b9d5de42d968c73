"""The produce stream: batches in, results out, several in a message when they are ready together. One reader per stream
keeps the order of batches, and one writer sends the ready results; a batch in between costs a callback, not a task.
Accepted batches without an answer are bounded, in bytes and in number. When one of these bounds is reached, the stream
is not read. A request with many batches is processed in slices, between which the loop serves others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from tinymq.access.stream_guard import StreamGuard
from tinymq.base.config import Limits
from tinymq.base.errors import Closed, InvalidRequest, TinymqError
from tinymq.broker.delayed.bounds import Due
from tinymq.broker.partition.admission import admit, cost_of, declare, is_heavy
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.quotas import UNLIMITED, ClientQuota
from tinymq.broker.serve.slices import Slice
from tinymq.format.batch import CheckedBatch, Declared
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.reply_stream import start_writer
from tinymq.rpc.services.staged_batches import StagingWait, parse_staged

RESULTS_MAX = 2000  # results in one reply: well below the size of a message, errors included
TIMEOUT_S_MAX = 3600.0

CALL = "Broker.Produce"  # to the meter

_ACKS = {pb.ACKS_QUORUM: Acks.QUORUM, pb.ACKS_LEADER: Acks.LEADER, pb.ACKS_NONE: Acks.NONE}


Batch = tuple[pb.ProduceBatch, bytes]
"""The metadata of a batch, and its payload, which travels beside it."""


class ProduceReplies(Protocol):
    """The sink for a stream's answers."""

    async def write(self, message: pb.ProduceReply) -> None:
        """Raises Closed when the client has disconnected."""
        ...


class _Taken(NamedTuple):
    """An accepted batch whose answer is still due."""

    request_id: int
    topic_id: bytes
    size: int
    records: int
    arrived_s: float
    appended_s: float | None  # None: the leader's own copy is enough
    throttled_s: float  # that the stream is not read after it


async def unpacked(requests: AsyncIterator[pb.ProduceRequest]) -> AsyncIterator[Iterable[Batch]]:
    """Yield the batches of messages that contain their payloads. Each payload is copied when its turn comes."""
    async for request in requests:
        yield ((batch, batch.payload) for batch in request.batches)


class ProduceStream:
    """One client's stream, from its opening to its end."""

    def __init__(
        self, serving: Serving, replies: ProduceReplies, guard: StreamGuard, share: ClientQuota = UNLIMITED
    ) -> None:
        self._serving = serving
        self._guard = guard
        self._meter = serving.meter
        self._replies = replies
        self._share = share
        self._results: list[pb.ProduceResult] = []
        self._inflight_bytes = 0
        self._slice = Slice(serving.slices)
        self._inflight = 0  # batches that are still to be answered
        self._ended = False
        self._announces_end = False  # the next reply asks the client to open another stream
        self._ready = asyncio.Event()  # the writer waits on it
        self._room = asyncio.Event()  # the reader waits on it

    async def run(self, arriving: AsyncIterator[Iterable[Batch]]) -> None:
        """Run until the client has ended its side and every batch is answered, or until the stream breaks.

        Raises the InvalidRequest that `arriving` raises, once every earlier batch is answered.
        """
        writer = start_writer(self._write())
        refusal: InvalidRequest | None = None
        try:
            try:
                async for batches in arriving:
                    for batch, payload in batches:
                        if self._slice.spend(await self._take(batch, payload)):
                            await self._slice.rest()
            except InvalidRequest as error:
                refusal = error
            self._ended = True
            self._ready.set()
            with suppress(Closed):  # the client has gone
                await writer
        finally:
            self._ended = True
            writer.cancel()
        if refusal is not None:
            raise refusal

    def announce_end(self) -> None:
        """Ask the client to continue on another stream. Batches that arrive here meanwhile are served."""
        self._announces_end = True
        self._ready.set()

    async def _take(self, batch: pb.ProduceBatch, payload: bytes) -> int:
        """Accept one batch. Returns its cost for the loop, in units of one small batch."""
        arrived_s = self._meter.now()
        throttled_s, cost = 0.0, 1
        try:
            broker = self._serving.running()
            throttled_s = self._share.charge(len(payload))
            while self._is_full(len(payload), broker.limits):
                await self._wait_for_room()
            self._guard.check(("write", "topic", batch.topic_id))
            broker.find(batch.topic_id, batch.partition)  # a batch for a partition that is not here is not inspected
            declared = declare(payload, batch.payload_crc, broker.limits)
            checked = None
            if is_heavy(declared, len(payload)):  # validated in a thread, while the stream's next batch waits
                check = partial(admit, payload, batch.payload_crc, broker.limits, declared)
                checked = await broker.unpack_queue.run(check)
            else:
                cost = cost_of(declared)
            self._append(
                broker, batch, payload, declared=declared, checked=checked, arrived_s=arrived_s, throttled_s=throttled_s
            )
        except TinymqError as error:
            self._meter.refused(CALL, error.code)
            if batch.acks != pb.ACKS_NONE:
                result = pb.ProduceResult(request_id=batch.request_id, error=to_wire(error))
                self._results.append(_throttled(result, throttled_s))
                self._ready.set()
        while len(self._results) >= RESULTS_MAX:
            await self._wait_for_room()
        await self._share.wait(throttled_s)  # later batches wait in the connection
        return cost

    def _is_full(self, size: int, limits: Limits) -> bool:
        """Must another batch of `size` bytes wait, because too many batches wait for their answers?"""
        if not self._inflight:
            return False
        return self._inflight_bytes + size > limits.stream_inflight_bytes_max or (
            self._inflight >= limits.stream_requests_max
        )

    def _append(
        self,
        broker: Broker,
        batch: pb.ProduceBatch,
        payload: bytes,
        declared: Declared,
        checked: CheckedBatch | None,
        arrived_s: float,
        throttled_s: float,
    ) -> None:
        """Validate, decide and append, in one call without an await."""
        topic_id, meter = batch.topic_id, self._meter
        self._guard.check(("write", "topic", topic_id))  # again: the batch may have waited for long
        partition = broker.find(topic_id, batch.partition)
        if checked is None:
            checked = admit(payload, batch.payload_crc, broker.limits, declared)
        self._admit_producer(partition, checked)
        acks = _ACKS.get(batch.acks)
        if acks is None:
            raise InvalidRequest(f"acks {batch.acks} is not known", hint="quorum 0, leader 1, none 2")
        timeout_s = min(batch.timeout_ms / 1000, TIMEOUT_S_MAX) if batch.timeout_ms else broker.timing.produce_timeout_s
        size, records = len(payload), checked.header.record_count
        appended_s = meter.now() if acks is Acks.QUORUM else None
        taken = _Taken(
            request_id=batch.request_id, topic_id=topic_id, size=size, records=records,
            arrived_s=arrived_s, appended_s=appended_s, throttled_s=throttled_s,
        )  # fmt: skip
        if acks is not Acks.NONE:
            self._inflight += 1
            self._inflight_bytes += size
        try:
            done = partial(self._done, taken)
            crc, message_id, due = batch.payload_crc, batch.message_id, _due(batch)
            if batch.HasField("transaction"):
                staged = parse_staged(batch, checked, acks)
                StagingWait(partition, staged, checked, payload, crc, done).begin(broker.deadlines, timeout_s)
            else:
                partition.produce(checked, payload, crc, acks, timeout_s, done, message_id=message_id, due=due)
        except TinymqError:
            if acks is not Acks.NONE:
                self._answered(size)
            raise
        if acks is Acks.NONE:
            meter.appended(topic_id, size, records)

    def _admit_producer(self, partition: Partition, batch: CheckedBatch) -> None:
        """Count a producer that this partition does not know yet. Raises NotLeader, QuotaExceeded."""
        producer_id = batch.header.producer_id
        name = self._guard.quota_name if producer_id else ""
        if name:
            partition.check_leading()
            if partition.duplicates.latest_producer(producer_id) is None:
                self._serving.quotas.producer_ids.admit(name, partition.name)

    def _done(self, taken: _Taken, outcome: Produced | TinymqError) -> None:
        self._answered(taken.size)
        if isinstance(outcome, TinymqError):
            self._meter.refused(CALL, outcome.code)
            result = pb.ProduceResult(request_id=taken.request_id, error=to_wire(outcome))
        else:
            if outcome.duplicate:
                self._meter.duplicated(taken.topic_id, taken.arrived_s)
            else:
                self._meter.produced(taken.topic_id, taken.size, taken.records, taken.arrived_s, taken.appended_s)
            result = pb.ProduceResult(
                request_id=taken.request_id,
                base_offset=outcome.base_offset,
                append_time_us=outcome.append_time_us,
                leader_epoch=outcome.leader_epoch,
                duplicate=outcome.duplicate,
                schedule_id=outcome.schedule_id,
                deliver_at_us=outcome.deliver_at_us,
            )
        self._results.append(_throttled(result, taken.throttled_s))
        self._ready.set()

    def _answered(self, size: int) -> None:
        self._inflight -= 1
        self._inflight_bytes -= size
        self._room.set()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def _write(self) -> None:
        while True:
            if self._announces_end:
                self._announces_end = False
                await self._replies.write(pb.ProduceReply(ending=True))
            elif self._results:
                some, self._results = self._results[:RESULTS_MAX], self._results[RESULTS_MAX:]
                self._room.set()
                await self._replies.write(pb.ProduceReply(results=some))
            elif self._ended and not self._inflight:
                return
            else:
                self._ready.clear()
                await self._ready.wait()


def _due(batch: pb.ProduceBatch) -> Due | None:
    """When the batch is due; None: it is not delayed."""
    if batch.HasField("delay_us"):
        return Due(delay_us=batch.delay_us)
    return Due(deliver_at_us=max(batch.deliver_at_us, 1)) if batch.HasField("deliver_at_us") else None


def _throttled(result: pb.ProduceResult, wait_s: float) -> pb.ProduceResult:
    if wait_s:
        result.throttled_ms = int(wait_s * 1000)
    return result
