"""Records become batches: by partition, until one is full, due or flushed. No I/O; the time is an argument.

`append` is the hot path, called by the threads that send, about a microsecond a record: one uncontended lock,
a few list appends, no future and no call to another thread. A full batch is encoded by the thread that filled
it; one that is due, by the loop. `wake` is called when the loop has something to do, at most once until
`woken` is called.

Order within a partition is that of the appends: a batch takes its place in its lane's queue under the lock,
and is encoded afterwards; the lane sends its first one only when that is encoded.

Who appends may be interrupted (Ctrl-C, a signal's handler that raises) wherever Python looks for signals: where a
function begins, where a call has returned, where a loop goes back. What has to be whole is done between two such
places, and a batch that its thread did not finish is finished by the loop.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from zlib import crc32

import pyarrow as pa

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, Closed, InvalidConfig, InvalidRequest
from tinymq.client.common.config import COMPRESSION, ProducerConfig
from tinymq.client.common.values import (
    HeadersLike,
    Timestamp,
    check_headers,
    check_key,
    check_timestamp,
    check_value,
    header_bytes,
)
from tinymq.client.produce import partitioner
from tinymq.client.produce.buffer_pool import BufferPool
from tinymq.client.produce.delivery import Delivery, ProducerBatch
from tinymq.client.produce.owners import Owners
from tinymq.client.produce.send_queue import Owner, SendQueue
from tinymq.client.produce.topic_buffers import BATCH_OVERHEAD_BYTES, TopicBuffer, TopicBuffers
from tinymq.format.batch import Codec, encode_record_batch

LOG = logging.getLogger("tinymq.client")

UNFINISHED_S = 0.1  # so long a sealed batch is left to the thread that fills the next one
RECORD_OVERHEAD_BYTES = 24  # Arrow's own, per record: offsets, timestamp, bits (a little less in truth)


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
        loop_ended: Callable[[], bool] = bool,
    ) -> None:
        if config.batch_bytes_max > limits.batch_bytes_max - BATCH_OVERHEAD_BYTES:
            most = limits.batch_bytes_max - BATCH_OVERHEAD_BYTES
            raise InvalidConfig(f"batch_bytes_max={config.batch_bytes_max}", hint=f"brokers take up to {most}")
        self.open_lanes: dict[SendQueue, None] = {}  # those with an open batch, the oldest first
        self.ready: list[SendQueue] = []  # those with a newly encoded batch
        self._unfinished: dict[
            ProducerBatch, float
        ] = {}  # sealed, not known to the loop yet; and when it looks after them
        self.lock = threading.Lock()
        self.room = BufferPool(
            config.buffer_bytes_max, max(1, config.buffer_bytes_max - 2 * config.batch_bytes_max), self.lock
        )
        self.owners = Owners(self.lock)
        self.sinks = TopicBuffers(config, limits, self.lock, rng, loop_ended)
        self._sink_of = self.sinks.by_topic.get
        self._config = config
        self._linger_s = config.linger_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._codec: Codec = COMPRESSION[config.compression]
        self._record_bytes_max = min(limits.record_bytes_max, limits.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        self._batch_bytes_limit = limits.batch_bytes_max
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

    def append(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None, alone: bool = False,
    ) -> Delivery | None:  # fmt: skip
        """Take one record. None: not now (topic not open, partition not known, buffer full). What never will do raises
        InvalidRequest, BatchTooLarge or UnknownPartition. `alone`: the thread looks whether it got the lane."""
        try:
            sink = self._sink_of(topic)
        except TypeError as error:
            raise InvalidRequest(f"topic={topic!r}", hint="pass the topic's name as text") from error
        if sink is None or (room := self.room).taken_bytes >= room.bytes_max:
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
        try:
            with self.lock:
                if partition is not None:
                    if (lane := sink.lane(partition)) is None:
                        return None
                elif self._partitioner is not None:
                    lane = sink.pick(self._partitioner(key, len(sink.lanes)))
                elif key and self._keyed:
                    lane = sink.lanes[crc32(key) % len(sink.lanes)]
                else:
                    lane, free = sink.sticky, True
                batch = lane.open
                if batch is None:
                    batch = (alone and self._claim_lane(sink, lane, free)) or self._open(lane)
                elif batch.count and (batch.bytes + size > sink.bytes_max or batch.count >= sink.records_max):
                    full = self._seal(lane)
                    if free:
                        lane = sink.turn(self._rng)
                    batch = lane.open or self._open(lane)
                if not free:
                    batch.bound = True
                row = batch.count  # from here on nothing is called
                if pairs:
                    batch.headers[row] = pairs
                batch.cells += (value, key, time_us)
                batch.count, batch.bytes, room.taken_bytes = row + 1, batch.bytes + size, room.taken_bytes + size
            if full is not None:
                self._finish(full)
        except BaseException:
            self._wake()  # it may have been about to
            raise
        return Delivery(batch, row)

    def append_batch(self, sink: TopicBuffer, partition: int | None, batch: pa.RecordBatch) -> ProducerBatch | None:
        """Take a whole record batch of SCHEMA as one batch; what was appended before goes before. None: not now."""
        if self.room.taken_bytes >= self.room.bytes_max:
            return None
        message = encode_record_batch(batch, self._codec)
        if message.size > self._batch_bytes_limit - BATCH_OVERHEAD_BYTES:
            raise BatchTooLarge(f"record batch of {message.size} bytes; brokers take up to {self._batch_bytes_limit}")
        full, size, count = None, message.size, batch.num_rows
        try:
            with self.lock:
                lane = sink.sticky if partition is None else sink.lane(partition)
                if lane is None:
                    return None
                if partition is None:
                    sink.turn(self._rng)
                if self._closed:
                    raise Closed("the producer is closed")
                if lane.open is not None and lane.open.count:
                    full = self._seal(lane)
                now_s = self._monotonic()
                pending = ProducerBatch(lane, now_s, now_s + self._delivery_s)
                pending.message, pending.codec, pending.count, pending.bytes = message, self._codec, count, size
                pending.bound = partition is not None
                self.room.taken_bytes += size  # from here on one thing is called
                self._unfinished[pending] = now_s + UNFINISHED_S
                lane.sealed.append(pending)
            if full is not None:
                self._finish(full)
            self._finish(pending)
        except BaseException:
            self._wake()
            raise
        return pending

    def _open(self, lane: SendQueue) -> ProducerBatch:
        if self._closed:
            raise Closed("the producer is closed")
        now_s = self._monotonic()
        batch = lane.open = ProducerBatch(lane, now_s, now_s + self._delivery_s)
        self.open_lanes[lane] = None
        if not self._awake and not self._timed:  # otherwise the loop comes anyway, at the latest after linger_ms
            self._awake = True
            self._wake()
        return batch

    def _seal(self, lane: SendQueue) -> ProducerBatch:
        batch, now_s = lane.open, self._monotonic()
        assert batch is not None, "sealed twice"
        lane.open = None  # from here on one thing is called
        del self.open_lanes[lane]
        self._unfinished[batch] = now_s + UNFINISHED_S
        lane.sealed.append(batch)
        return batch

    def _finish(self, batch: ProducerBatch) -> None:
        """Encode a sealed batch and hand it to the loop. Outside the lock: its place is taken already."""
        batch.encode(self._codec)
        self.hand_over(batch.lane)
        self._unfinished.pop(batch, None)

    def hand_over(self, lane: SendQueue) -> None:
        """The loop is to look at the lane."""
        self.ready.append(lane)
        if not self._awake:
            self._awake = True
            self._wake()

    # ---- the side of a thread that delivers by itself ---------------------------------------------

    def _claim_lane(self, sink: TopicBuffer, lane: SendQueue, free: bool) -> ProducerBatch | None:
        """The lane, for the calling thread, with a batch that nothing joins. None: the record is not alone."""
        if self._closed or self.room.taken_bytes or lane.sealed or not self.owners.may_claim(lane):
            return None
        now_s = self._monotonic()
        batch = ProducerBatch(lane, now_s, now_s + self._delivery_s)
        self.owners.claim(batch)
        lane.sealed.append(batch)
        if free:
            sink.turn(self._rng)
        return batch

    def give_back(self, batch: ProducerBatch) -> None:
        """Its thread is done with the batch, which has ended, and with the lane."""
        lane = batch.lane

        def tell() -> bool:
            self.room.taken_bytes, batch.bytes = self.room.taken_bytes - batch.bytes, 0  # interrupted, it comes again
            return lane.open is not None or bool(lane.sealed) or self.room.awaited

        if self.owners.pass_on(lane, Owner.NOBODY, tell):
            self.hand_over(lane)

    # ---- the loop's side -------------------------------------------------------------------------

    def woken(self) -> list[SendQueue]:
        """The loop has come to look: lanes with newly encoded batches. `wake` may be called again from now on."""
        self._awake = False
        ready, self.ready = self.ready, []
        if self.room.awaited:
            self.room.release(0)  # a thread that gives back tells nobody of the room there is
        return ready

    def seal_due(self, now_s: float, *, all_open: bool = False) -> tuple[list[SendQueue], float | None]:
        """Seal and encode what has lingered long enough (or everything), and what its thread has left unfinished:
        (their lanes, when to look again).

        A lane with enough on its way keeps its open batch: it could not be sent now, and will be fuller later.
        """
        left = self._unfinished.copy()  # in one step: threads that finish theirs take them out meanwhile
        if not self.open_lanes and not left:
            self._timed = False
            return [], None
        sealed = [batch for batch, look_s in left.items() if look_s <= now_s]
        dues_s: list[float] = []
        turned = set()
        with self.lock:
            for lane in list(self.open_lanes):
                assert lane.open is not None, "an open lane has an open batch"
                due_s = lane.open.opened_s + self._linger_s
                if not lane.open.count:  # its first record's thread was interrupted
                    lane.open = None
                    del self.open_lanes[lane]
                elif all_open or (due_s <= now_s and lane.takes_partial):
                    sealed.append(self._seal(lane))
                    turned.add(lane.topic)
                elif due_s > now_s:
                    dues_s.append(due_s)
            self._timed = bool(dues_s)
            for topic in turned:
                sink = self._sink_of(topic)
                if sink is not None and sink.sticky.open is None:
                    sink.turn(self._rng)
        for batch in sealed:
            try:
                batch.encode(self._codec)
            except Exception:  # it ends at its deadline, and what comes behind it goes on
                LOG.exception("a batch for %s/%s cannot be encoded", batch.lane.topic, batch.lane.partition)
            self._unfinished.pop(batch, None)
        dues_s += [look_s for look_s in left.values() if look_s > now_s]
        return [batch.lane for batch in sealed], min(dues_s, default=None)

    def place(self, sink: TopicBuffer, usable: Sequence[int], left: frozenset[int]) -> None:
        """From now on send batches of records without a key to one of the partitions `usable`, and away from those in
        `left`."""
        with self.lock:
            sink.usable, sink.left = usable, left
            if sink.sticky.partition in left:
                sink.turn(self._rng)

    def move(self, sink: TopicBuffer, lane: SendQueue) -> list[SendQueue]:
        """Move batches that are not bound to the lane's partition to usable lanes, and return those lanes. The loop
        owns the lane."""
        with self.lock:
            if sink.sticky is lane:
                sink.turn(self._rng)
            batch = lane.open
            sealed = self._seal(lane) if batch is not None and batch.count and not batch.bound else None
        if sealed is not None:
            sealed.encode(self._codec)
            self._unfinished.pop(sealed, None)
        targets: dict[SendQueue, None] = {}
        with self.lock:
            for moved in lane.withdraw():
                moved.lane = target = sink.by_number[partitioner.pick_sticky(lane.partition, sink.usable, self._rng)]
                target.sealed.append(moved)
                targets[target] = None
        return list(targets)

    def close(self) -> None:
        """Take nothing more, on the loop: an open batch may still be filled until it is sealed."""
        with self.lock:
            self._closed = True
            self.sinks.by_topic.clear()
            waiting = self.room.close()
        for call in waiting:
            call()
