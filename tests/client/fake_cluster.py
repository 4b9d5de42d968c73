"""A cluster in memory behind the client's seam (tinymq/client/net/ports.py): leaders, failover, lost replies, slow,
hung and stale brokers. It stores frames and producers as a broker does, commits at once, and answers with the same
messages as the real ones. Protobuf parses its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tests.broker.values import takes_over
from tests.client import fake_delays
from tests.client.fake_delays import NOW_US as NOW_US
from tests.client.fake_transactions import TRANSACTION_CALLS, FakeTransactions
from tinymq.base.config import Limits
from tinymq.base.errors import (
    BrokerUnreachable,
    InvalidBatch,
    NotLeader,
    NotReady,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.broker.state.epoch_cache import EpochCache
from tinymq.broker.state.producers import ProducerState, extend, judge
from tinymq.client.net.ports import Fetched, PackedBatch
from tinymq.client.net.wire import join, read_fetched
from tinymq.format.batch import check_batch, decode_batch, parse_batch_header
from tinymq.format.entry import HEADER_SIZE, Kind, NewEntry, crc32c, make_entry, parse_header
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.proto.methods import method_of

_header = lru_cache(maxsize=1 << 14)(parse_header)  # cached, because a fetch reads the header of every frame


@dataclass
class FakePartition:
    """One partition: its log, which all replicas share, and how much of it each replica shows."""

    leader: int
    replicas: list[int]
    epoch: int = 1
    frames: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    last_crc: int = 0
    log_start: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)  # broker -> its high watermark, if it lags
    epochs: EpochCache = field(default_factory=EpochCache)
    delayed: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # by schedule id: (when it is due, batch)
    schedule_ids: int = 0

    def high_watermark(self, broker: int) -> int:
        return self.shown.get(broker, self.next_offset)

    def append(self, payload: bytes) -> int:
        checked = check_batch(payload, Limits())
        base = self.next_offset
        entry = make_entry(
            NewEntry(
                Kind.DATA, payload, record_count=checked.header.record_count, max_timestamp_us=checked.max_timestamp_us
            ),
            index=len(self.frames) + 1,
            term=self.epoch,
            prev_crc=self.last_crc,
            base_offset=base,
            append_time_us=NOW_US,
        )
        self.last_crc = entry.header.header_crc
        self.frames.append(entry.head + entry.payload)
        self.next_offset += checked.header.record_count
        if checked.header.producer_id:
            known = self.producers.get(checked.header.producer_id)
            self.producers[checked.header.producer_id] = extend(known, checked.header, base, NOW_US)
        return base

    def lose(self, offset: int) -> None:
        """Lose the records from `offset` on, on all replicas, which continue in another history."""
        self.frames = [frame for frame in self.frames if _header(frame).next_offset <= offset]
        self.next_offset = offset
        self.epoch += 1
        self.epochs.note(takes_over(self.epoch, self.epoch, offset))

    def read(self, offset: int, end: int, bytes_max: int) -> bytes:
        out: list[bytes] = []
        for frame in self.frames:
            header = _header(frame)
            if header.next_offset <= offset or header.next_offset > end:
                continue
            if out and sum(map(len, out)) + len(frame) > bytes_max:
                break
            out.append(frame)
        return b"".join(out)


class FakeCluster:
    """Brokers 1 to `nodes` at fake:1 to fake:N. Faults are fields that a test sets."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = range(1, nodes + 1)
        self.addresses, self.stream_addresses = {n: f"fake:{n}" for n in self.nodes}, dict[int, str]()
        self.topics: dict[str, tuple[bytes, list[FakePartition]]] = {}  # by name: (id, partitions at their numbers)
        self.gone: set[tuple[bytes, int]] = set()  # deleted partitions, which keep their places above
        self.slow_to_hear: set[int] = set()
        self.unheard: dict[int, set[tuple[bytes, int]]] = {}  # broker -> the new partitions that it has not heard of
        self.outdated: dict[int, dict[str, pb.TopicInfo]] = {}  # broker -> deleted topics that it still knows
        self.settings: dict[str, dict[str, str]] = {}
        self.done: dict[bytes, Any] = {}  # answers to changes of topics, by command id
        self.down: set[int] = set()
        self.hung: set[int] = set()  # brokers that accept everything and never answer
        self.lose_replies = 0  # produce messages left that are carried out before their stream breaks
        self.lose_requests = 0  # produce messages left that are lost when their stream breaks
        self.refusals: deque[TinymqError] = deque()  # the errors of the next batches, which are not appended
        self.records_max: int | None = None  # the most records that a partition accepts
        self.requests: list[str] = []
        self.produce_messages: list[int] = []  # the number of batches in each message
        self.ignorant: set[int] = set()  # brokers that know no topic
        self.corrupt: set[int] = set()  # brokers whose frames are damaged
        self.hold: asyncio.Event | None = None  # produce answers wait for this event
        self.changed = asyncio.Event()  # set and replaced when waiting fetches look again
        self.transactions = FakeTransactions(self)
        self._streams: list[_Stream] = []
        self._ids = self._version = 0

    # ---- what tests do --------------------------------------------------------------------------------

    @property
    def servers(self) -> list[str]:
        return list(self.addresses.values())

    def add_topic(self, name: str, partitions: int = 1) -> list[FakePartition]:
        self._ids += 1
        self._version += 1
        count = len(self.nodes)
        made = [FakePartition(p % count + 1, [(p + r) % count + 1 for r in range(count)]) for p in range(partitions)]
        self.topics[name] = (self._ids.to_bytes(16, "big"), made)
        return made

    def remove_topic(self, name: str) -> None:
        """Delete a topic. The brokers in `slow_to_hear` do not hear of it until a test clears `outdated`."""
        self.outdated = {broker: {name: self._info(name)} for broker in self.slow_to_hear}
        del self.topics[name]
        self._version += 1

    def add_partition(self, name: str) -> int:
        """Add a partition led by broker 1, of which the brokers in `slow_to_hear` do not hear. Returns its number."""
        topic_id, partitions = self.topics[name]
        partitions.append(FakePartition(1, list(self.nodes)))
        number = len(partitions) - 1
        self.unheard = {broker: {(topic_id, number)} for broker in self.slow_to_hear}
        self._version += 1
        return number

    def remove_partition(self, name: str, number: int) -> None:
        self.gone.add((self.topics[name][0], number))
        self._version += 1

    def notify(self) -> None:
        """Let waiting fetches look again, because a broker shows more or less than before."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def kill(self, broker: int, *, elect: bool = True) -> None:
        self.down.add(broker)
        self.break_streams(broker)
        if elect:
            self.elect_away_from(broker)

    def hang(self, broker: int, *, elect: bool = True) -> None:
        self.hung.add(broker)
        if elect:
            self.elect_away_from(broker)

    def start(self, broker: int) -> None:
        self.down.discard(broker)
        self.hung.discard(broker)

    def elect_away_from(self, broker: int) -> None:
        for _, partitions in self.topics.values():
            for at in partitions:
                if at.leader == broker:
                    at.leader = next(b for b in at.replicas if b not in self.down | self.hung)
                    at.epoch += 1

    def move(self, topic: str, partition: int, leader: int) -> None:
        at = self.topics[topic][1][partition]
        at.leader, at.epoch = leader, at.epoch + 1

    def break_streams(self, broker: int) -> None:
        for stream in [s for s in self._streams if s.broker == broker]:
            stream.break_off("connection reset")

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        """Return all values in the partition's log."""
        import pyarrow as pa

        from tinymq.format.batch import SCHEMA

        at = self.topics[topic][1][partition]
        found: list[bytes] = []
        for frame in at.frames:
            batch = pa.ipc.read_record_batch(pa.py_buffer(frame).slice(64 + 32), SCHEMA)
            found += batch.column(1).to_pylist()
        return found

    # ---- the seam: Connector --------------------------------------------------------------------------

    def link(self, address: str) -> FakeLink:
        return FakeLink(self, address)

    def reach(self, broker: int) -> None:
        if broker in self.down or broker not in self.nodes:
            raise BrokerUnreachable(f"fake:{broker}: connection refused")

    # ---- what brokers do ------------------------------------------------------------------------------

    def find(self, topic_id: bytes, partition: int, broker: int) -> FakePartition:
        for name, (known, partitions) in self.topics.items():
            if known == topic_id and broker not in self.ignorant:
                assert name
                if partition not in self._numbers(name, broker):
                    raise UnknownPartition("no such partition here")
                return partitions[partition]
        raise UnknownTopic("no such topic here")

    def _numbers(self, name: str, broker: int) -> list[int]:
        """Return the partitions that `broker` has heard of."""
        topic_id, partitions = self.topics[name]
        hidden = self.gone | self.unheard.get(broker, set())
        return [number for number in range(len(partitions)) if (topic_id, number) not in hidden]

    def not_leader(self, at: FakePartition) -> NotLeader:
        address = self.addresses[at.leader]
        return NotLeader("not the leader", leader=at.leader, leader_address=address, leader_epoch=at.epoch)

    def produce(self, broker: int, batch: pb.ProduceBatch) -> pb.ProduceResult:
        try:
            if self.refusals:
                raise self.refusals.popleft()
            if crc32c(batch.payload) != batch.payload_crc:
                raise InvalidBatch("wrong checksum")
            at = self.find(batch.topic_id, batch.partition, broker)
            if at.leader != broker:
                raise self.not_leader(at)
            header = parse_batch_header(batch.payload)
            if batch.HasField("transaction"):
                assert (header.producer_id, batch.acks) == (0, pb.ACKS_QUORUM)
                again = self.transactions.stage(at, batch)
                return pb.ProduceResult(request_id=batch.request_id, append_time_us=NOW_US, duplicate=again)
            if header.producer_id:
                found = judge(at.producers.get(header.producer_id), header)
                if found is not None:
                    return fake_delays.answer(at, batch, found.place, duplicate=True)
            if self.records_max is not None and at.next_offset + header.record_count > self.records_max:
                raise QuotaExceeded("it is full", hint="trim it", retry_after_ms=10)
            place = at.append(batch.payload) if batch.WhichOneof("due") is None else fake_delays.stage(at, batch)
            self.notify()
        except TinymqError as error:
            return pb.ProduceResult(request_id=batch.request_id, error=to_wire(error))
        return fake_delays.answer(at, batch, place)

    def fetch(self, broker: int, request: pb.FetchRequest) -> pb.FetchReply | None:
        """Return the answer to a fetch; None while there is nothing to answer."""
        reply = pb.FetchReply(request_id=request.request_id, next_offset=request.offset)
        try:
            at = self.find(request.topic_id, request.partition, broker)
            end = at.high_watermark(broker)
            reply.high_watermark, reply.log_start = end, at.log_start
            reply.leader, reply.leader_epoch, reply.history = at.leader, at.epoch, at.epochs.newest_term
            if request.leader_only and at.leader != broker:
                raise self.not_leader(at)
            if request.leader_epoch > at.epoch:
                raise NotReady("behind")
            start = at.epochs.divergence_offset(request.history) if request.HasField("history") else None
            if start is not None and request.offset > start:
                raise OffsetOutOfRange("lost", log_start=at.log_start, history_start=start)
            if request.offset < at.log_start:
                raise OffsetOutOfRange("below the log start", log_start=at.log_start)
            if request.offset > end:
                raise OffsetNotAvailable("beyond the end") if at.leader != broker else OffsetOutOfRange("beyond")
            frames = at.read(request.offset, end, request.max_bytes)
            if not frames:
                return None
            reply.frames = frames[:-3] + b"bad" if broker in self.corrupt else frames
        except TinymqError as error:
            reply.error.CopyFrom(to_wire(error))
        return reply

    def answer(self, broker: int, request: Any) -> Any:
        match request:
            case pb.MetadataRequest():
                return self._metadata(broker, request)
            case pb.OpenProducerRequest():
                self._ids += 1
                return pb.OpenProducerReply(producer_id=self._ids)
            case pb.CreateTopicRequest() | pb.DeleteTopicRequest() if request.command_id in self.done:
                return self.done[request.command_id]
            case pb.AlterTopicRequest() | pb.AddPartitionRequest() | pb.DeletePartitionRequest():
                return self.done.get(request.command_id) or self.done.setdefault(
                    request.command_id, _changed(self, request)
                )
            case pb.CreateTopicRequest():
                if request.name in self.topics:
                    return pb.CreateTopicReply(error=to_wire(TopicExists("there is one")))
                self.add_topic(request.name, request.partitions)
                self.settings[request.name] = {s.name: s.value for s in request.settings}
                made = pb.CreateTopicReply(topic=self._info(request.name))
                return self.done.setdefault(request.command_id, made)
            case pb.DeleteTopicRequest():
                if request.name not in self.topics:
                    return pb.DeleteTopicReply(error=to_wire(UnknownTopic("no such topic")))
                self.remove_topic(request.name)
                return self.done.setdefault(request.command_id, pb.DeleteTopicReply())
            case pb.ListOffsetsRequest():
                return _offsets(self, broker, request)
            case pb.ListScheduledRequest():
                return fake_delays.scheduled(self, broker, request)
            case pb.CancelScheduledRequest():
                return fake_delays.cancel(self, broker, request)
            case _ if isinstance(request, TRANSACTION_CALLS):
                return self.transactions.answer(broker, request)
            case pb.ClusterStatusRequest():
                return pb.ClusterStatusReply(broker_id=broker, state="running", metadata_leader=1, feature_level=1)

    def _info(self, name: str, broker: int = 0) -> pb.TopicInfo:
        """Return a topic's metadata as this broker has heard of it; 0: as it really is."""
        infos = [self._partition(name, number) for number in self._numbers(name, broker)]
        settings = [pb.Setting(name=key, value=value) for key, value in self.settings.get(name, {}).items()]
        return pb.TopicInfo(
            name=name,
            topic_id=self.topics[name][0],
            partitions=infos,
            replication_factor=len(self.nodes),
            settings=settings,
        )

    def _partition(self, name: str, number: int) -> pb.PartitionInfo:
        at = self.topics[name][1][number]
        return pb.PartitionInfo(partition=number, leader=at.leader, leader_epoch=at.epoch, replicas=at.replicas)

    def _metadata(self, broker: int, request: pb.MetadataRequest) -> pb.MetadataReply:
        ignorant = broker in self.ignorant
        knows = 0 if request.fresh else broker  # the leader of the registry has heard of everything
        outdated = self.outdated.get(knows, {})
        version = 0 if ignorant else self._version - (knows in self.unheard or bool(outdated))
        reply = pb.MetadataReply(cluster_id=b"c" * 16, broker_id=broker, version=version)
        reply.stream_address = self.stream_addresses.get(broker, "")
        for n in self.nodes:
            reply.brokers.add(id=n, address=self.addresses[n], alive=n not in self.down, rack=f"rack-{n}")
        for name in self.topics if request.all else request.topics:
            if name in self.topics and not ignorant:
                reply.topics.append(self._info(name, knows))
            elif name in outdated:
                reply.topics.append(outdated[name])
            else:
                reply.topics.add(name=name, error=to_wire(UnknownTopic("no such topic")))
        return reply


class FakeLink:
    """A connection to one fake broker."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        self._cluster = cluster
        self._address = address
        self.broker = int(address.rsplit(":", 1)[1])

    @property
    def address(self) -> str:
        return self._address

    async def call(self, request: Any, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        self._cluster.requests.append(f"{method_of(request).name} {self.broker}")
        self._cluster.reach(self.broker)
        if self.broker in self._cluster.hung:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), timeout_s)
            raise OutcomeUnknown(f"{self._address}: no answer in time")
        return self._cluster.answer(self.broker, request)

    async def open_produce(self, timeout_s: float) -> FakeProduceStream:
        await asyncio.sleep(0)
        self._cluster.reach(self.broker)
        return FakeProduceStream(self._cluster, self.broker)

    async def open_fetch(self, timeout_s: float) -> FakeFetchStream:
        await asyncio.sleep(0)
        self._cluster.reach(self.broker)
        return FakeFetchStream(self._cluster, self.broker)

    async def open_blocking(self, timeout_s: float) -> None:
        return None

    async def close(self) -> None:
        self._cluster.requests.append(f"close {self.broker}")


class _Stream:
    """The part that both kinds of stream share: replies in a queue, and an end."""

    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster = cluster
        self.broker = broker
        self.broken: str | None = None
        self.replies: asyncio.Queue[Callable[[], Any] | None] = asyncio.Queue()
        cluster._streams.append(self)

    def break_off(self, reason: str) -> None:
        if self.broken is None:
            self.broken = reason
            self.cluster._streams.remove(self)
            self.replies.put_nowait(None)

    def cancel(self) -> None:
        self.break_off("closed here")

    async def next(self) -> Any:
        while True:
            reply = await self.replies.get()
            if self.broken is not None or reply is None:
                raise OutcomeUnknown(f"fake:{self.broker}: {self.broken}")
            if self.broker not in self.cluster.hung:
                return reply()

    def check(self) -> None:
        if self.broken is not None:
            raise OutcomeUnknown(f"fake:{self.broker}: {self.broken}")


class FakeProduceStream(_Stream):
    async def write(self, batches: Sequence[PackedBatch]) -> None:
        await self.take(join(batches))

    async def take(self, request: bytes) -> None:
        self.check()
        cluster = self.cluster
        await asyncio.sleep(0)
        if self.broker in cluster.hung:
            return
        if cluster.lose_requests:
            cluster.lose_requests -= 1
            self.break_off("connection reset before the request")
            return
        message = pb.ProduceRequest.FromString(request)
        cluster.produce_messages.append(len(message.batches))
        results = [cluster.produce(self.broker, batch) for batch in message.batches]
        answered = [r for r, b in zip(results, message.batches, strict=True) if b.acks != pb.ACKS_NONE]
        if cluster.lose_replies:
            cluster.lose_replies -= 1
            self.break_off("connection reset before the answer")
            return
        if cluster.hold is not None:
            await cluster.hold.wait()
        self.replies.put_nowait(lambda: pb.ProduceReply(results=answered))

    async def read(self) -> pb.ProduceReply:
        reply = await self.next()
        assert isinstance(reply, pb.ProduceReply)
        return reply


class FakeFetchStream(_Stream):
    received_bytes = 0

    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        super().__init__(cluster, broker)
        self.waiting: dict[int, asyncio.Task[None]] = {}

    async def write(self, request: pb.FetchRequest) -> None:
        self.check()
        if request.cancel:
            task = self.waiting.pop(request.request_id, None)
            if task is not None:
                task.cancel()
            return
        copy = pb.FetchRequest()
        copy.CopyFrom(request)
        self.waiting[request.request_id] = asyncio.create_task(self._serve(copy))

    async def read(self) -> Fetched:
        reply = await self.next()
        assert isinstance(reply, bytes)
        return read_fetched(reply)

    async def _serve(self, request: pb.FetchRequest) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + request.max_wait_ms / 1000
        reply = None
        while reply is None and self.broken is None:
            if self.broker in self.cluster.hung:
                return
            changed = self.cluster.changed
            reply = self.cluster.fetch(self.broker, request)
            if reply is None and loop.time() < until:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), until - loop.time())
            elif reply is None:
                at = self.cluster.find(request.topic_id, request.partition, self.broker)
                reply = pb.FetchReply(
                    request_id=request.request_id, next_offset=request.offset, leader=at.leader,
                    leader_epoch=at.epoch, high_watermark=at.high_watermark(self.broker), history=at.epochs.newest_term,
                )  # fmt: skip
        self.waiting.pop(request.request_id, None)
        if reply is not None:
            data = reply.SerializeToString()
            self.replies.put_nowait(lambda: data)

    def break_off(self, reason: str) -> None:
        for task in self.waiting.values():
            task.cancel()
        super().break_off(reason)


def _offsets(cluster: FakeCluster, broker: int, request: pb.ListOffsetsRequest) -> pb.ListOffsetsReply:
    reply = pb.ListOffsetsReply()
    for query in request.queries:
        try:
            at = cluster.find(request.topic_id, query.partition, broker)
            if request.leader_only and at.leader != broker:
                raise cluster.not_leader(at)
            end = at.high_watermark(broker)
            named = {-1: end, -2: at.log_start}.get(query.timestamp_us)
            offset, time_us = (named, -1) if named is not None else _first_of_time(at, query.timestamp_us, end)
            reply.answers.add(
                partition=query.partition, offset=offset, timestamp_us=time_us, high_watermark=end,
                log_start=at.log_start, leader_epoch=at.epoch, history=at.epochs.newest_term,
            )  # fmt: skip
        except TinymqError as error:
            reply.answers.add(partition=query.partition, error=to_wire(error))
    return reply


def _first_of_time(at: FakePartition, time_us: int, end: int) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record at or after a time; (`end`, -1) if there is none."""
    for frame in at.frames:
        header = parse_header(frame)
        times = decode_batch(frame[HEADER_SIZE:], Limits()).column(3).cast(pa.int64()).to_pylist()
        for offset, found_us in enumerate(times, header.base_offset):
            if at.log_start <= offset < end and found_us >= time_us:
                return offset, found_us
    return end, -1


def _changed(cluster: FakeCluster, request: Any) -> Any:
    match request:
        case pb.AlterTopicRequest():
            cluster.settings.setdefault(request.name, {}).update({s.name: s.value for s in request.settings})
            return pb.AlterTopicReply(topic=cluster._info(request.name))
        case pb.AddPartitionRequest():
            added = cluster._partition(request.topic, cluster.add_partition(request.topic))
            return pb.AddPartitionReply(partition=added)
    if request.partition not in cluster._numbers(request.topic, 0):
        return pb.DeletePartitionReply(error=to_wire(UnknownPartition("no such partition")))
    cluster.remove_partition(request.topic, request.partition)
    return pb.DeletePartitionReply()
