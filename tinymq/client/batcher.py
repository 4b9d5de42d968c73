"""Records become batches: by partition, until one is full, due or flushed. No I/O; the time is an argument.

`append` is the hot path, called by the threads that send, about a microsecond a record: one uncontended lock,
a few list appends, no future and no call to another thread. A full batch is encoded by the thread that filled
it; one that is due, by the loop. `wake` is called when the loop has something to do, at most once until
`woken` is called.

Order within a partition is that of the appends: a batch takes its place in its lane's queue under the lock,
and is encoded afterwards; the lane sends its first one only when that is encoded.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from zlib import crc32

import pyarrow as pa

from tinymq.batch import Codec, encode_record_batch
from tinymq.client import partitioner
from tinymq.client.checks import check_partition
from tinymq.client.config import COMPRESSION, ProducerConfig
from tinymq.client.delivery import Delivery, Pending
from tinymq.client.lane import Lane
from tinymq.client.topic_settings import UNBOUNDED, Bounds
from tinymq.client.values import (
    HeadersLike,
    Timestamp,
    check_headers,
    check_key,
    check_timestamp,
    check_value,
    header_bytes,
)
from tinymq.config import Limits
from tinymq.errors import BatchTooLarge, Closed, InvalidConfig, InvalidRequest, UnknownPartition

RECORD_OVERHEAD_BYTES = 24  # Arrow's own, per record: offsets, timestamp, bits (a little less in truth)
BATCH_OVERHEAD_BYTES = 4096  # metadata, paddings and the batch header (under 1 KiB in truth)


class Sink:
    """One topic of one producer: a lane per partition, and how large its batches may be."""

    __slots__ = ("bounds", "by_number", "bytes_max", "lanes", "records_max", "sticky", "topic", "topic_id", "usable")

    def __init__(self, topic: str, topic_id: bytes, lanes: Sequence[Lane], rng: random.Random) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.lanes: tuple[Lane, ...] = ()  # by partition number, which may leave some out; never empty
        self.sticky = rng.choice(lanes)  # where records without a key go, until its batch is sealed
        self.usable: Sequence[int] = ()  # partitions that keyless batches may be given to; never empty
        self.bounds = UNBOUNDED  # the topic's; and with them, for each batch of more than one record:
        self.records_max = UNBOUNDED.records_max
        self.bytes_max = UNBOUNDED.bytes_max  # as the batcher counts
        self.replace(lanes, rng)

    def replace(self, lanes: Sequence[Lane], rng: random.Random) -> None:
        """The topic has these partitions now."""
        self.lanes = tuple(lanes)
        self.by_number = {lane.partition: lane for lane in lanes}
        self.usable = tuple(self.by_number)
        if self.sticky.partition not in self.by_number:
            self.turn(rng)

    def lane(self, partition: int) -> Lane | None:
        """None: not known, and perhaps new. Raises UnknownPartition for what never is one, InvalidRequest."""
        if partition.__class__ is not int:
            partition = check_partition(partition)
        if partition < 0:
            raise UnknownPartition(f"{self.topic}/{partition}: no partition has this number")
        return self.by_number.get(partition)

    def pick(self, place: int) -> Lane:
        """The lane at a place that a partitioner chose. Raises UnknownPartition, InvalidRequest."""
        if place.__class__ is not int:
            place = check_partition(place)
        if not 0 <= place < len(self.lanes):
            raise UnknownPartition(f"{self.topic}: the partitioner chose {place} among {len(self.lanes)} partitions")
        return self.lanes[place]

    def turn(self, rng: random.Random) -> Lane:
        """Another lane for records without a key."""
        partition = partitioner.pick_sticky(self.sticky.partition, self.usable, rng)
        self.sticky = self.by_number[partition]
        return self.sticky


class Batcher:
    """The open and sealed batches of one producer, within one bound."""

    def __init__(
        self,
        config: ProducerConfig,
        limits: Limits,
        *,
        monotonic: Callable[[], float],
        wall_us: Callable[[], int],
        rng: random.Random,
        wake: Callable[[], None],
    ) -> None:
        if config.batch_bytes_max > limits.batch_bytes_max - BATCH_OVERHEAD_BYTES:
            most = limits.batch_bytes_max - BATCH_OVERHEAD_BYTES
            raise InvalidConfig(f"batch_bytes_max={config.batch_bytes_max}", hint=f"brokers take up to {most}")
        self.sinks: dict[str, Sink] = {}
        self.open_lanes: dict[Lane, None] = {}  # those with an open batch, the oldest first
        self.ready: list[Lane] = []  # those with a newly encoded batch
        # Of all sinks there ever were, by topic id and partition: a partition that is seen again goes on in its lane,
        # for the same numbers given twice would be answered as duplicates.
        self.lanes: dict[tuple[bytes, int], Lane] = {}
        self.buffered_bytes = 0
        self._config = config
        self._linger_s = config.linger_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._codec: Codec = COMPRESSION[config.compression]
        self._bytes_max = config.batch_bytes_max
        self._record_bytes_max = min(limits.record_bytes_max, limits.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        self._batch_bytes_limit = limits.batch_bytes_max
        self._batch_records_limit = limits.batch_records_max
        self._buffer_max = config.buffer_bytes_max
        self._room_bytes = max(1, self._buffer_max - 2 * config.batch_bytes_max)
        named = config.partitioner
        self._partitioner = partitioner.named(named) if isinstance(named, str) else named
        self._keyed = named == "keyed"
        self._monotonic = monotonic
        self._wall_us = wall_us
        self._rng = rng
        self._wake = wake
        self._awake = False  # `wake` was called, and `woken` not yet
        self._timed = False  # the loop comes by itself when the next open batch is due
        self._closed = False
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def add_topic(self, topic: str, topic_id: bytes, partitions: Sequence[int], bounds: Bounds = UNBOUNDED) -> Sink:
        """Open a topic for appending, once it is known; or again, with the partitions and bounds that it has now."""
        with self._lock:
            sink = self.sinks.get(topic)
            if sink is None or sink.topic_id != topic_id:
                lanes = _open_lanes(self.lanes, topic, topic_id, partitions, self._config)
                sink = self.sinks[topic] = Sink(topic, topic_id, lanes, self._rng)
            elif tuple(sink.by_number) != tuple(partitions):
                sink.replace(_open_lanes(self.lanes, topic, topic_id, partitions, self._config), self._rng)
            sink.bounds = bounds
            sink.records_max = min(bounds.records_max, self._batch_records_limit)
            sink.bytes_max = min(self._bytes_max, bounds.bytes_max - BATCH_OVERHEAD_BYTES)
            return sink

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike | None,
        timestamp: Timestamp | None,
        partition: int | None,
    ) -> Delivery | None:
        """Take one record. None: not now, for the topic is not open, the partition not known, or the buffer full.
        For what will never do it raises InvalidRequest, BatchTooLarge or UnknownPartition; nothing is taken then."""
        try:
            sink = self.sinks.get(topic)
        except TypeError as error:
            raise InvalidRequest(f"topic={topic!r}", hint="pass the topic's name as text") from error
        if sink is None or self.buffered_bytes >= self._buffer_max:
            return None
        if value.__class__ is not bytes:
            value = check_value(value)
        size = RECORD_OVERHEAD_BYTES if value is None else RECORD_OVERHEAD_BYTES + len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = check_key(key)
            size += len(key)
        pairs = check_headers(headers) if headers is not None else None
        size += header_bytes(pairs) if pairs else 0
        time_us = self._wall_us() if timestamp is None else check_timestamp(timestamp)
        if size > self._record_bytes_max:
            raise BatchTooLarge(f"record of {size} bytes with its framing; at most {self._record_bytes_max}")
        full, free = None, False  # free: the record may go to any partition
        with self._lock:
            if partition is not None:
                lane = sink.lane(partition)
                if lane is None:
                    return None
            elif self._partitioner is not None:
                lane = sink.pick(self._partitioner(key, len(sink.lanes)))
            elif key and self._keyed:
                lane = sink.lanes[crc32(key) % len(sink.lanes)]
            else:
                lane, free = sink.sticky, True
            batch = lane.open
            if batch is None:
                batch = self._open(lane)
            elif batch.bytes + size > sink.bytes_max or len(batch.values) >= sink.records_max:
                full = self._seal(lane)
                if free:
                    lane = sink.turn(self._rng)
                batch = lane.open or self._open(lane)
            row = len(batch.values)
            batch.values.append(value)
            batch.keys.append(key)
            batch.times.append(time_us)
            if pairs:
                batch.headers[row] = pairs
            batch.bytes += size
            self.buffered_bytes += size
        if full is not None:
            self._finish(full)
        return Delivery(batch, row)

    def append_batch(self, sink: Sink, partition: int | None, batch: pa.RecordBatch) -> Pending | None:
        """Take a whole record batch of SCHEMA as one batch; what was appended before goes before. None: not now."""
        if self.buffered_bytes >= self._buffer_max:
            return None
        message = encode_record_batch(batch, self._codec)
        if message.size > self._batch_bytes_limit - BATCH_OVERHEAD_BYTES:
            raise BatchTooLarge(f"record batch of {message.size} bytes; brokers take up to {self._batch_bytes_limit}")
        full = None
        with self._lock:
            lane = sink.sticky if partition is None else sink.lane(partition)
            if lane is None:
                return None
            if partition is None:
                sink.turn(self._rng)
            if self._closed:
                raise Closed("the producer is closed")
            if lane.open is not None:
                full = self._seal(lane)
            now_s = self._monotonic()
            pending = Pending(lane, now_s, now_s + self._delivery_s)
            pending.message, pending.codec, pending.count = message, self._codec, batch.num_rows
            pending.bytes = message.size
            self.buffered_bytes += message.size
            lane.sealed.append(pending)
        if full is not None:
            self._finish(full)
        self._hand_over(lane)
        return pending

    def _open(self, lane: Lane) -> Pending:
        if self._closed:
            raise Closed("the producer is closed")
        now_s = self._monotonic()
        batch = lane.open = Pending(lane, now_s, now_s + self._delivery_s)
        self.open_lanes[lane] = None
        if not self._awake and not self._timed:  # otherwise the loop comes anyway, at the latest after linger_ms
            self._awake = True
            self._wake()
        return batch

    def _seal(self, lane: Lane) -> Pending:
        batch = lane.open
        assert batch is not None, "sealed twice"
        lane.open = None
        del self.open_lanes[lane]
        batch.count = len(batch.values)
        lane.sealed.append(batch)
        return batch

    def _finish(self, batch: Pending) -> None:
        """Encode a sealed batch and hand it to the loop. Outside the lock: its place is taken already."""
        batch.encode(self._codec)
        self._hand_over(batch.lane)

    def _hand_over(self, lane: Lane) -> None:
        self.ready.append(lane)
        if not self._awake:
            self._awake = True
            self._wake()

    # ---- the loop's side -------------------------------------------------------------------------

    def woken(self) -> list[Lane]:
        """The loop has come to look: lanes with newly encoded batches. `wake` may be called again from now on."""
        self._awake = False
        ready, self.ready = self.ready, []
        return ready

    def seal_due(self, now_s: float, *, all_open: bool = False) -> tuple[list[Lane], float | None]:
        """Seal and encode what has lingered long enough (or everything): (their lanes, when the next one is due).

        A lane with enough on its way keeps its open batch: it could not be sent now, and will be fuller later.
        """
        if not self.open_lanes:
            self._timed = False
            return [], None
        sealed = []
        next_s: float | None = None
        turned = set()
        with self._lock:
            for lane in list(self.open_lanes):
                assert lane.open is not None, "an open lane has an open batch"
                due_s = lane.open.opened_s + self._linger_s
                if all_open or (due_s <= now_s and lane.takes_partial):
                    sealed.append(self._seal(lane))
                    turned.add(lane.topic)
                elif due_s > now_s and (next_s is None or due_s < next_s):
                    next_s = due_s
            self._timed = next_s is not None
            for topic in turned:
                sink = self.sinks.get(topic)
                if sink is not None and sink.sticky.open is None:
                    sink.turn(self._rng)
        for batch in sealed:
            batch.encode(self._codec)
        return [batch.lane for batch in sealed], next_s

    def release(self, size: int) -> None:
        """A batch has ended: its bytes are free."""
        waiting: list[Callable[[], None]] = []
        with self._lock:
            self.buffered_bytes -= size
            if self._waiting and self.buffered_bytes < self._room_bytes:
                waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def when_room(self, call: Callable[[], None]) -> None:
        """Call `call` once there is room in the buffer, from the loop's thread; now, if there is."""
        with self._lock:
            if self.buffered_bytes >= self._buffer_max:
                self._waiting.append(call)
                return
        call()

    def forget(self, topic: str, topic_id: bytes) -> None:
        """The topic is gone: the next append asks for it anew."""
        with self._lock:
            sink = self.sinks.get(topic)
            if sink is not None and sink.topic_id == topic_id:
                del self.sinks[topic]

    def close(self) -> list[Callable[[], None]]:
        """Take nothing more: an open batch may still be filled until it is sealed. Who waits for room is to be told."""
        with self._lock:
            self._closed = True
            self.sinks = {}
            waiting, self._waiting = self._waiting, []
            return waiting


def _open_lanes(
    known: dict[tuple[bytes, int], Lane], topic: str, topic_id: bytes, partitions: Sequence[int], config: ProducerConfig
) -> list[Lane]:
    """The lanes of these partitions, out of `known`, and into it."""
    for p in partitions:
        if (topic_id, p) not in known:
            known[topic_id, p] = Lane(topic, topic_id, p, limit=config.inflight, numbered=config.numbered)
    return [known[topic_id, p] for p in partitions]
