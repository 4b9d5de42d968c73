"""Collect records into batches, by partition, until a batch is full, due or flushed. No I/O; the time is an argument.

`append` is the hot path. Sending threads call it, and it takes a third of a microsecond: a few additions to the open
batch, with no lock, no future and no call to another thread (docs/adr/0089). The lock guards everything else: which
batch is open, and where a sealed one goes. The thread that fills a batch encodes it; the loop encodes a batch that is
due. `wake` is called when the loop has something to do, and at most once until `woken` is called.

A batch takes its place in the send queue under the lock, and is encoded afterwards. The queue sends its first batch
only when it is encoded, so that the order within a partition is the order of the appends.

A thread that appends may be interrupted (Ctrl-C, a signal handler that raises) wherever Python checks for signals: at
the start of a function, after a call, and at the end of a loop's pass. State that has to change as a whole changes
between two such points, and the loop finishes a batch that its thread did not finish.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, Closed, InvalidConfig, InvalidRequest
from tinymq.client.common.config import COMPRESSION, ProducerConfig
from tinymq.client.common.gil import GIL
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
from tinymq.client.produce.delivery import Delivery, delivery_of
from tinymq.client.produce.producer_batch import Cells, ProducerBatch
from tinymq.client.produce.queue_owners import QueueOwners
from tinymq.client.produce.send_queue import QueueOwner, SendQueue
from tinymq.client.produce.topic_buffers import BATCH_OVERHEAD_BYTES, TopicBuffer, TopicBuffers
from tinymq.format.batch import Codec
from tinymq.format.columns import Headers

LOG = logging.getLogger("tinymq.client")

UNFINISHED_S = 0.1  # how long the thread that sealed a batch has to encode it, before the loop does
RECORD_OVERHEAD_BYTES = 24  # Arrow's, per record: offsets, timestamp, validity bits (a little less in truth)


class Batcher:
    """The open and sealed batches of one producer, within the bound of its buffer pool."""

    def __init__(
        self,
        config: ProducerConfig,
        limits: Limits,
        *,
        monotonic: Callable[[], float],
        wall_ns: Callable[[], int],
        rng: random.Random,
        wake: Callable[[], None],
        loop_ended: Callable[[], bool] = bool,
        staged: bool = False,
    ) -> None:
        """`staged`: the batches belong to a transaction."""
        if config.batch_bytes_max > limits.batch_bytes_max - BATCH_OVERHEAD_BYTES:
            most = limits.batch_bytes_max - BATCH_OVERHEAD_BYTES
            raise InvalidConfig(f"batch_bytes_max={config.batch_bytes_max}", hint=f"brokers take up to {most}")
        self.open_queues: dict[SendQueue, None] = {}  # queues with an open batch, the oldest first
        self.ready: list[SendQueue] = []  # queues that the loop has to look at: a batch was encoded, or they were left
        # Sealed batches that the loop does not know yet, and when it looks after them.
        self._unfinished: dict[ProducerBatch, float] = {}
        self.lock = threading.Lock()
        self.pool = BufferPool(
            config.buffer_bytes_max, max(1, config.buffer_bytes_max - 2 * config.batch_bytes_max), self.lock
        )
        self.owners = QueueOwners(self.lock)
        self.buffers = TopicBuffers(config, limits, self.lock, rng, loop_ended, staged=staged)
        self._by_topic = self.buffers.by_topic
        self._config = config
        self._linger_s, self._delivery_s = config.linger_ms / 1000, config.delivery_timeout_ms / 1000
        self._codec: Codec = COMPRESSION[config.compression]
        self.record_bytes_max = min(limits.record_bytes_max, limits.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        named = config.partitioner
        self.partitioner = partitioner.named(named) if isinstance(named, str) else named
        self._keyed = named == "keyed"
        # Topics to whose open batches a caller may append as `append` does, by name.
        self.plain_topics: Mapping[str, TopicBuffer] = self._by_topic if GIL and self._keyed else {}
        self._monotonic, self.wall_ns = monotonic, wall_ns
        self.rng, self._wake = rng, wake
        self._awake = False  # `wake` was called, and `woken` was not yet
        self._timed = False  # the loop has a timer for the next open batch that is due
        self._closed = False

    def append(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None, alone: bool = False,
    ) -> Delivery | None:  # fmt: skip
        """Append one record. None: not now, because the topic is not open, the partition not known, or the buffer full.

        Raises InvalidRequest, BatchTooLarge or UnknownPartition for a record that can never be appended. With `alone`,
        the thread may become the owner of the queue for a lone record; `QueueOwners.claimed` tells whether it did.
        """
        pool = self.pool
        try:
            buffer = self._by_topic[topic]
        except KeyError:
            return None
        except TypeError as error:
            raise InvalidRequest(f"topic={topic!r}", hint="pass the topic's name as text") from error
        if pool.taken_bytes >= pool.bytes_max:
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
        if size > self.record_bytes_max:
            raise BatchTooLarge(f"record of {size} bytes with its framing; at most {self.record_bytes_max}")
        cells = value, key, self.wall_ns() // 1000 if timestamp is None else check_timestamp(timestamp)
        bound, queue = True, None  # False: the record may go to any partition
        if partition is not None:
            if (queue := buffer.queue(partition)) is None:
                return None
        elif self.partitioner is None:
            if key and self._keyed:
                queue = buffer.queues[crc32(key) % len(buffer.queues)]
            else:
                queue, bound = buffer.sticky, False
        if GIL and queue is not None and (batch := queue.open) is not None:
            row = batch.put(buffer, pool, cells, pairs, size, bound)
            if row >= 0:
                return delivery_of(batch, row)
        return self._append_locked(buffer, queue, cells, pairs, size, bound=bound, alone=alone)

    def _append_locked(
        self, buffer: TopicBuffer, queue: SendQueue | None, cells: Cells, pairs: Headers | None, size: int,
        bound: bool, alone: bool,
    ) -> Delivery:  # fmt: skip
        """Append a record when no open batch has room for it. `queue`: None if a partitioner chooses it."""
        full: list[ProducerBatch] = []  # to be encoded
        try:
            with self.lock:
                if queue is None:
                    assert self.partitioner is not None, "every other record has a queue"
                    queue = buffer.pick(self.partitioner(cells[1], len(buffer.queues)))
                while True:
                    if not bound:
                        queue = buffer.sticky
                    claimed = self._claim_queue(buffer, queue, not bound) if alone and queue.open is None else None
                    batch = claimed or queue.open or self._open(queue)
                    row = batch.put(buffer, self.pool, cells, pairs, size, bound, locked=True)
                    if row >= 0:
                        break
                    full.append(self._seal(queue))
                    if not bound:
                        buffer.turn(self.rng)
            for sealed in full:
                self._finish(sealed)
        except BaseException:
            self._wake()  # the interrupt may have struck just before the loop was woken
            raise
        return delivery_of(batch, row)

    def put_whole(
        self, choose: Callable[[], SendQueue | None], fill: Callable[[ProducerBatch], None], *, behind: bool
    ) -> ProducerBatch | None:
        """Queue a batch that no other record joins. None: not now, because `choose` found no queue for it.

        `choose` is called under the lock; `fill` gives the batch its records. `behind`: everything that the queue got
        before comes before it.
        """
        if self.pool.taken_bytes >= self.pool.bytes_max:
            return None
        full: ProducerBatch | None = None  # to be encoded
        try:
            with self.lock:
                queue = choose()
                if queue is None:
                    return None
                batch = self._new_batch(queue)
                fill(batch)
                if behind and queue.open is not None and queue.open.count:
                    full = self._seal(queue)
                # From here on only the last statement is a call, so that an interrupt leaves all of it or nothing.
                self.pool.taken_bytes += batch.bytes
                self._unfinished[batch] = batch.opened_s + UNFINISHED_S
                queue.sealed.append(batch)
            if full is not None:
                self._finish(full)
            self._finish(batch)
        except BaseException:
            self._wake()
            raise
        return batch

    def _new_batch(self, queue: SendQueue) -> ProducerBatch:
        if self._closed:
            raise Closed("the producer is closed")
        now_s = self._monotonic()
        return ProducerBatch(queue, now_s, now_s + self._delivery_s)

    def _open(self, queue: SendQueue) -> ProducerBatch:
        batch = queue.open = self._new_batch(queue)
        self.open_queues[queue] = None
        if not self._awake and not self._timed:  # otherwise the loop comes by itself, after linger_ms at the latest
            self._awake = True
            self._wake()
        return batch

    def _seal(self, queue: SendQueue) -> ProducerBatch:
        batch, now_s = queue.open, self._monotonic()
        assert batch is not None, "sealed twice"
        queue.open = None  # from here on only the last statement is a call
        del self.open_queues[queue]
        self._unfinished[batch] = now_s + UNFINISHED_S
        queue.sealed.append(batch)
        return batch

    def _finish(self, batch: ProducerBatch) -> None:
        """Encode a sealed batch, which has its place in the queue, and wake the loop. Called without the lock."""
        batch.encode(self._codec)
        self.hand_over(batch.queue)
        self._unfinished.pop(batch, None)

    def hand_over(self, queue: SendQueue) -> None:
        """Tell the loop to look at the queue."""
        self.ready.append(queue)
        if not self._awake:
            self._awake = True
            self._wake()

    # ---- the side of a thread that delivers by itself ---------------------------------------------

    def _claim_queue(self, buffer: TopicBuffer, queue: SendQueue, free: bool) -> ProducerBatch | None:
        """Give the queue to the calling thread, with a batch that no other record joins. None: it is no lone record."""
        if self._closed or self.pool.taken_bytes or queue.sealed or not self.owners.may_claim(queue):
            return None
        batch = self._new_batch(queue)
        self.owners.claim(batch)
        queue.sealed.append(batch)
        if free:
            buffer.turn(self.rng)
        return batch

    def give_back(self, batch: ProducerBatch) -> None:
        """End the calling thread's ownership of the queue: its batch has ended."""
        queue = batch.queue

        def tell() -> bool:
            # One statement: a thread that is interrupted calls this again, and must not free the bytes twice.
            self.pool.taken_bytes, batch.bytes = self.pool.taken_bytes - batch.bytes, 0
            return queue.open is not None or bool(queue.sealed) or self.pool.awaited

        if self.owners.pass_on(queue, QueueOwner.NOBODY, tell):
            self.hand_over(queue)

    # ---- the loop's side -------------------------------------------------------------------------

    def woken(self) -> list[SendQueue]:
        """Return the queues that the loop has to look at. `wake` may be called again from now on."""
        self._awake = False
        ready, self.ready = self.ready, []
        if self.pool.awaited:
            self.pool.release(0)  # `give_back` only frees the bytes; the waiting calls are made here, on the loop
        return ready

    def seal_due(self, now_s: float, *, all_open: bool = False) -> tuple[list[SendQueue], float | None]:
        """Seal and encode the batches that are due (or all), and those that their threads have left unfinished.

        Returns (their queues, when to look again). A queue with enough batches in flight keeps its open batch: it could
        not be sent now, and becomes fuller.
        """
        left = self._unfinished.copy()  # one step of the interpreter: threads remove their batches meanwhile
        if not self.open_queues and not left:
            self._timed = False
            return [], None
        sealed = [batch for batch, look_s in left.items() if look_s <= now_s]
        dues_s: list[float] = []
        turned = set()
        with self.lock:
            for queue in list(self.open_queues):
                assert queue.open is not None, "an open queue has an open batch"
                due_s = queue.open.opened_s + self._linger_s
                if not queue.open.count:  # the thread of its first record was interrupted
                    queue.open = None
                    del self.open_queues[queue]
                elif all_open or (due_s <= now_s and queue.takes_partial):
                    sealed.append(self._seal(queue))
                    turned.add(queue.topic)
                elif due_s > now_s:
                    dues_s.append(due_s)
            self._timed = bool(dues_s)
            for topic in turned:
                buffer = self._by_topic.get(topic)
                if buffer is not None and buffer.sticky.open is None:
                    buffer.turn(self.rng)
        for batch in sealed:
            try:
                batch.encode(self._codec)
            except Exception:  # the batch ends at its deadline, and the batches behind it are sent
                LOG.exception("a batch for %s/%s cannot be encoded", batch.queue.topic, batch.queue.partition)
            self._unfinished.pop(batch, None)
        dues_s += [look_s for look_s in left.values() if look_s > now_s]
        return [batch.queue for batch in sealed], min(dues_s, default=None)

    def place(self, buffer: TopicBuffer, usable: Sequence[int], left: frozenset[int]) -> None:
        """Give batches without keys to the partitions `usable` from now on, and move them away from those in `left`."""
        with self.lock:
            buffer.usable, buffer.left = usable, left
            if buffer.sticky.partition in left:
                buffer.turn(self.rng)

    def move(self, buffer: TopicBuffer, queue: SendQueue) -> list[SendQueue]:
        """Move the batches that are not bound to the queue's partition to usable queues, and return those.

        The loop owns `queue`.
        """
        with self.lock:
            if buffer.sticky is queue:
                buffer.turn(self.rng)
            batch = queue.open
            sealed = self._seal(queue) if batch is not None and batch.count and not batch.bound else None
        if sealed is not None:
            sealed.encode(self._codec)
            self._unfinished.pop(sealed, None)
        targets: dict[SendQueue, None] = {}
        with self.lock:
            for moved in queue.withdraw():
                number = partitioner.pick_sticky(queue.partition, buffer.usable, self.rng)
                moved.queue = target = buffer.by_number[number]
                target.sealed.append(moved)
                targets[target] = None
        return list(targets)

    def close(self) -> None:
        """Refuse new batches from now on. On the loop. An open batch may still be filled until it is sealed."""
        with self.lock:
            self._closed = True
            self.buffers.by_topic.clear()
            waiting = self.pool.close()
        for call in waiting:
            call()
