"""The client of workloads over JetStream: the methods of tinymq's AsyncClient that nats_system.SUITED use.

    method              its form in JetStream
    send, producer      a request to the partition's subject, retried under one Nats-Msg-Id until the deadline
                        (idempotent), or sent once; the answer's sequence - 1 is the offset
    reader, "leader"    STREAM.MSG.GET, which the stream's leader answers
    reader, others      Direct Get, which any replica answers: the client cannot choose one
    admin.offsets       STREAM.INFO, which the stream's leader answers

Errors are tinymq's, so that histories tell definite failures from unknown outcomes alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsInt

from tinymq.base.errors import BrokerUnreachable, DeadlineExceeded, OutcomeUnknown, TinymqError
from tinymq_chaos.real.peers import nats_names as names
from tinymq_chaos.real.peers.nats_wire import JetStreamWire, PublishAck, StreamState
from tinymq_chaos.records import Headers, fields_in

ATTEMPT_S = 1.0  # of one attempt of a send, before the next
RETRY_S = 0.05
FETCH_MIN, FETCH_MAX = 4, 64  # messages of one request, or requests at once
EMPTY_S = 0.05  # between two looks for new messages
UNREACHABLE_S = 5.0  # without any answer, after which a poll raises an error


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """The position of an acknowledged record."""

    partition: int
    offset: int
    duplicate: bool = False
    append_time_us: int | None = None  # an answer has none


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as readers get it."""

    partition: int
    offset: int
    value: bytes

    @property
    def key(self) -> bytes | None:
        """A message has a value alone. Its other fields are those that belong to the value (`fields_in`)."""
        return fields_in(self.value)[0]

    @property
    def headers(self) -> Headers:
        return fields_in(self.value)[1]

    @property
    def timestamp_us(self) -> int:
        return fields_in(self.value)[2]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic_id: bytes
    partitions: int
    replication_factor: int = names.REPLICAS


@dataclass(frozen=True, slots=True)
class LogBounds:
    log_start: int
    high_watermark: int


class NatsClient:
    """A client that connects when it is first used."""

    def __init__(self, servers: list[str], request_timeout_ms: float = 4_000) -> None:
        self.wire = JetStreamWire(servers)
        self.admin = Admin(self.wire)
        self._timeout_s = request_timeout_ms / 1000

    def producer(
        self, *, delivery_timeout_ms: float = 4_000, idempotent: bool = True, **_: Any
    ) -> Producer:  # tinymq's other arguments (linger, room) do not exist in JetStream
        return Producer(self.wire, delivery_timeout_ms / 1000, idempotent)

    async def send(self, topic: str, value: bytes, *, partition: int = 0, **_: Any) -> RecordPosition:
        return await publish(self.wire, topic, partition, value, self._timeout_s, _message_id())

    def reader(
        self,
        topic: str,
        partitions: Sequence[int] | None = None,
        start: Any = "earliest",
        end: Mapping[int, SupportsInt] | None = None,
        *,
        replica: str = "leader",
        **_: Any,
    ) -> Reader:
        return Reader(self.wire, topic, partitions, replica == "leader", start, end)

    async def close(self) -> None:
        await self.wire.close()


class Admin:
    """Requests about topics, and their creation."""

    def __init__(self, wire: JetStreamWire) -> None:
        self._wire = wire

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        timeout: float = 10.0,
    ) -> TopicDescription:
        """Create streams for all partitions. The topic exists when its first stream does, which is created last.

        To create it again, as a client without an answer does, changes nothing. Raises OutcomeUnknown for every error.
        """
        assert not settings, f"JetStream has no form of {settings}"
        assert replication_factor in (None, names.REPLICAS), replication_factor
        topic_id = hashlib.sha256(name.encode()).hexdigest()[:16]
        for partition in reversed(range(partitions)):
            await self._wire.create(names.stream_config(name, partition, partitions, topic_id), timeout)
        return TopicDescription(bytes.fromhex(topic_id), partitions)

    async def describe_topic(self, name: str, *, timeout: float = 4.0) -> TopicDescription:
        metadata = (await self._wire.state(names.stream_of(name, 0), timeout)).metadata
        return TopicDescription(bytes.fromhex(metadata[names.TOPIC_ID]), int(metadata[names.PARTITIONS]))

    async def offsets(self, name: str, *, timeout: float = 4.0) -> dict[int, LogBounds]:
        found = await states(self._wire, name, timeout)
        return {p: LogBounds(names.offset_of(s.first), names.offset_of(s.last) + 1) for p, s in found.items()}


async def states(wire: JetStreamWire, topic: str, within_s: float) -> dict[int, StreamState]:
    """Return the states of all partitions."""
    first = await wire.state(names.stream_of(topic, 0), within_s)
    others = range(1, int(first.metadata[names.PARTITIONS]))
    found = await asyncio.gather(*(wire.state(names.stream_of(topic, p), within_s) for p in others))
    return {0: first, **dict(zip(others, found, strict=True))}


# ---- writing ------------------------------------------------------------------------------------------------------


async def publish(
    wire: JetStreamWire, topic: str, partition: int, value: bytes, within_s: float, message_id: str | None
) -> RecordPosition:
    """Publish until it is acknowledged or the deadline; once, without a message id.

    Raises DeadlineExceeded if nothing was done.
    """
    loop = asyncio.get_running_loop()
    until_s, unsure = loop.time() + within_s, ""
    refused: TinymqError = DeadlineExceeded("nothing was sent")
    while (left_s := until_s - loop.time()) > 0:
        attempt_s = left_s if message_id is None else min(left_s, ATTEMPT_S)
        try:
            ack: PublishAck = await wire.publish(names.subject_of(topic, partition), value, attempt_s, message_id)
            return RecordPosition(partition, names.offset_of(ack.sequence), ack.duplicate)
        except OutcomeUnknown as error:
            unsure = error.message
        except BrokerUnreachable as error:
            refused = DeadlineExceeded(error.message)
        if message_id is None:
            break
        await asyncio.sleep(min(RETRY_S, max(0.0, until_s - loop.time())))
    if unsure:
        raise OutcomeUnknown(unsure)
    raise refused


def _message_id() -> str:
    return secrets.token_hex(12)


class Delivery:
    """One record in flight."""

    def __init__(self, task: asyncio.Task[RecordPosition]) -> None:
        self._task = task

    def exception(self, timeout: float | None = None) -> TinymqError | None:
        """Return the error of a finished delivery; None: acknowledged."""
        if self._task.cancelled():
            return OutcomeUnknown("the producer was closed before")
        error = self._task.exception()
        if error is not None and not isinstance(error, TinymqError):
            raise error
        return error

    def result(self, timeout: float | None = None) -> RecordPosition:
        return self._task.result()

    def add_done_callback(self, call: Callable[[Delivery], object]) -> None:
        self._task.add_done_callback(lambda _: call(self))


class Producer:
    """Sends many records at once, each in a call of its own. JetStream promises their order only to a client that waits
    for each answer."""

    def __init__(self, wire: JetStreamWire, timeout_s: float, idempotent: bool) -> None:
        self._wire = wire
        self._timeout_s = timeout_s
        self._idempotent = idempotent
        self._sending: set[asyncio.Task[RecordPosition]] = set()

    async def send(self, topic: str, value: bytes, *, partition: int = 0, **_: Any) -> Delivery:
        message_id = _message_id() if self._idempotent else None
        task = asyncio.create_task(publish(self._wire, topic, partition, value, self._timeout_s, message_id))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return Delivery(task)

    async def close(self) -> None:
        """Wait for all sends."""
        if self._sending:
            await asyncio.wait(self._sending)


# ---- reading ------------------------------------------------------------------------------------------------------


class Reader:
    """One position in every partition, or in some."""

    def __init__(
        self,
        wire: JetStreamWire,
        topic: str,
        partitions: Sequence[int] | None,
        by_leader: bool,
        start: Any,
        end: Mapping[int, SupportsInt] | None,
    ) -> None:
        """`by_leader`: read from leaders; otherwise from any replica."""
        self._wire = wire
        self._topic = topic
        self._partitions = partitions
        self._by_leader = by_leader
        self._start = start
        self._end = end
        self._at: dict[int, int] = {}
        self._answered_s = 0.0
        # grows while there is much to read, so that few requests ask for messages that do not exist yet
        self._want = FETCH_MIN

    async def open(self) -> None:
        found = await states(self._wire, self._topic, 4.0)
        for partition, state in found.items():
            if self._partitions is not None and partition not in self._partitions:
                continue
            start = self._start.get(partition, "earliest") if isinstance(self._start, Mapping) else self._start
            places = {"earliest": names.offset_of(state.first), "latest": names.offset_of(state.last) + 1}
            self._at[partition] = places[start] if isinstance(start, str) else int(start)
        self._answered_s = asyncio.get_running_loop().time()

    def position(self) -> dict[int, int]:
        """Return the next offset by partition."""
        return dict(self._at)

    @property
    def at_end(self) -> bool:
        return self._end is not None and all(self._at[p] >= int(end) for p, end in self._end.items())

    async def poll(self, *, timeout: float, max_records: int = FETCH_MAX) -> list[ReceivedMessage]:
        """Return the next messages, up to FETCH_MAX and `max_records` of a partition; none, if none arrives within
        `timeout` seconds."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout
        while (left_s := until_s - loop.time()) > 0:
            shown: list[ReceivedMessage] = []
            for partition in self._at:
                shown += await self._fetch(partition, max_records, until_s - loop.time())
            if shown or self.at_end:
                return shown
            await asyncio.sleep(min(EMPTY_S, left_s))
        if loop.time() - self._answered_s > UNREACHABLE_S:
            raise BrokerUnreachable(f"{self._topic}: no answer for {UNREACHABLE_S:g} s")
        return []

    async def _fetch(self, partition: int, most: int, within_s: float) -> list[ReceivedMessage]:
        at, end = self._at[partition], None if self._end is None else self._end.get(partition)
        count = min(self._want, most, int(end) - at if end is not None else most)
        if count <= 0 or within_s <= 0:
            return []
        stream, first = names.stream_of(self._topic, partition), names.sequence_of(at)
        try:
            if self._by_leader:
                subject = names.subject_of(self._topic, partition)
                records = await self._wire.from_leader(stream, subject, first, count, within_s)
            else:
                records = await self._wire.from_any(stream, first, count, within_s)
        except (OutcomeUnknown, BrokerUnreachable):
            return []
        self._answered_s = asyncio.get_running_loop().time()
        self._want = min(FETCH_MAX, max(FETCH_MIN, 2 * len(records)))
        if records:
            self._at[partition] = names.offset_of(records[-1].sequence) + 1
        return [ReceivedMessage(partition, names.offset_of(record.sequence), record.value) for record in records]

    async def close(self) -> None:
        """Do nothing: a reader has no connection of its own."""
