"""Batches that no other record joins: of a record with a message id, of a delayed record, and of a table. No I/O.

Each is sealed at once, behind everything that its partition's queue got before (`Batcher.put_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from zlib import crc32

import pyarrow as pa

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, InvalidRequest
from tinymq.client.common.argument_checks import check_topic
from tinymq.client.common.config import COMPRESSION, ProducerConfig
from tinymq.client.common.due import Due
from tinymq.client.common.values import (
    HeadersLike,
    Timestamp,
    check_headers,
    check_key,
    check_message_id,
    check_timestamp,
    check_value,
    header_bytes,
)
from tinymq.client.produce.batcher import RECORD_OVERHEAD_BYTES, Batcher
from tinymq.client.produce.delivery import Delivery, ScheduledDelivery, delivery_of, scheduled_delivery_of
from tinymq.client.produce.partitioner import pick_sticky
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.client.produce.topic_buffers import BATCH_OVERHEAD_BYTES, TopicBuffer
from tinymq.format.batch import encode_record_batch
from tinymq.format.columns import int64_column


class WholeBatches:
    """Appends whole batches to one producer's batcher, from any thread."""

    def __init__(self, batcher: Batcher, config: ProducerConfig, limits: Limits) -> None:
        self._batcher = batcher
        self._keyed = config.partitioner == "keyed"
        self._codec = COMPRESSION[config.compression]
        self._batch_bytes_limit = limits.batch_bytes_max

    def append_identified(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None, message_id: str | bytes,
    ) -> Delivery | None:  # fmt: skip
        """Append one record with a message id. None and errors: as `Batcher.append`.

        A partition recognises the ids of its own records only. A record without a key or a partition therefore goes to
        the partition that its id chooses, so that another attempt of another program goes there, too.
        """
        batch = self._append(topic, value, key, headers, timestamp, partition, message_id=message_id, due=None)
        return None if batch is None else delivery_of(batch, 0)

    def append_delayed(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None, message_id: str | bytes | None, due: Due,
    ) -> ScheduledDelivery | None:  # fmt: skip
        """Append one delayed record, with or without a message id. None and errors: as `Batcher.append`."""
        batch = self._append(topic, value, key, headers, timestamp, partition, message_id=message_id, due=due)
        return None if batch is None else scheduled_delivery_of(batch)

    def _append(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None, *, message_id: str | bytes | None, due: Due | None,
    ) -> ProducerBatch | None:  # fmt: skip
        batcher, identity = self._batcher, b"" if message_id is None else check_message_id(message_id)
        buffer = batcher.buffers.by_topic.get(check_topic(topic))
        if buffer is None:
            return None
        value, key = check_value(value), None if key is None else check_key(key)
        pairs = check_headers(headers or ())
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + header_bytes(pairs)
        if size > batcher.record_bytes_max:
            raise BatchTooLarge(f"record of {size} bytes with its framing; at most {batcher.record_bytes_max}")
        time_us = batcher.wall_ns() // 1000 if timestamp is None else check_timestamp(timestamp)
        # Whether the record must go to this one partition.
        bound = partition is not None or batcher.partitioner is not None or bool(identity or (key and self._keyed))

        def fill(batch: ProducerBatch) -> None:
            batch.message_id, batch.due, batch.bound, batch.count, batch.bytes = identity, due, bound, 1, size
            batch.cells, batch.headers = [value, key, time_us], {0: pairs} if pairs else {}

        # A delayed record comes behind whatever is sent before it is due, so it need not end the open batch.
        choose = partial(self._queue_of, buffer, key, identity, partition)
        return batcher.put_whole(choose, fill, behind=due is None)

    def append_table(self, buffer: TopicBuffer, partition: int | None, batch: pa.RecordBatch) -> ProducerBatch | None:
        """Append a record batch of SCHEMA as one batch. None: not now."""
        if self._batcher.pool.taken_bytes >= self._batcher.pool.bytes_max:
            return None
        message = encode_record_batch(batch, self._codec)
        if message.size > self._batch_bytes_limit - BATCH_OVERHEAD_BYTES:
            raise BatchTooLarge(f"record batch of {message.size} bytes; brokers take up to {self._batch_bytes_limit}")

        def fill(pending: ProducerBatch) -> None:
            pending.message, pending.codec, pending.count = message, self._codec, batch.num_rows
            pending.bytes, pending.bound = message.size, partition is not None

        def choose() -> SendQueue | None:
            if partition is not None:
                return buffer.queue(partition)
            queue = buffer.sticky
            buffer.turn(self._batcher.rng)
            return queue

        return self._batcher.put_whole(choose, fill, behind=True)

    def _queue_of(
        self, buffer: TopicBuffer, key: bytes | None, identity: bytes, partition: int | None
    ) -> SendQueue | None:
        """Return the queue of a record; None: its partition is not known. The caller holds the batcher's lock."""
        batcher, chooses = self._batcher, key or identity or None
        if partition is not None:
            return buffer.queue(partition)
        if batcher.partitioner is not None:
            return buffer.pick(batcher.partitioner(chooses, len(buffer.queues)))
        if chooses and (identity or self._keyed):
            return buffer.queues[crc32(chooses) % len(buffer.queues)]
        return buffer.by_number[pick_sticky(None, buffer.usable, batcher.rng)]


# ---- how a table becomes batches; the order within each partition stays


def by_partition(
    batch: pa.RecordBatch, partition_of: Callable[[bytes | None], int | None]
) -> list[tuple[int | None, pa.RecordBatch]]:
    """Split a batch of SCHEMA into (partition, rows). Partition None: these rows may go to any one partition.

    A batch whose rows all go to one partition is returned as it is; otherwise rows are copied.
    """
    rows: dict[int | None, list[int]] = {}
    for row, key in enumerate(batch.column(0).to_pylist()):
        rows.setdefault(partition_of(key), []).append(row)
    if len(rows) == 1:
        return [(next(iter(rows)), batch)]
    return [(partition, batch.take(int64_column(places))) for partition, places in rows.items()]


def only_partition(placed: Iterable[tuple[int | None, pa.RecordBatch]]) -> int | None:
    """The partition of all rows of `by_partition` that must go to a certain one; None: any. Raises InvalidRequest if
    they are several."""
    partitions = sorted({partition for partition, _ in placed if partition is not None})
    if len(partitions) > 1:
        some = ", ".join(map(str, partitions[:5]))
        raise InvalidRequest(
            f"the keys belong to {len(partitions)} partitions of the topic ({some})",
            hint='name the partition, or use a transaction with an id: mq.transaction("NAME")',
        )
    return partitions[0] if partitions else None


def by_size(batch: pa.RecordBatch, bytes_aim: int, bytes_max: int, rows_max: int) -> list[pa.RecordBatch]:
    """Cut `batch` into slices of about `bytes_aim` unpacked bytes.

    No slice has more than `rows_max` rows, and none has more than `bytes_max` unless it is a single row.
    """
    rows = batch.num_rows
    pieces = max(1, round(batch.nbytes / bytes_aim), -(-rows // rows_max))
    if pieces > 1:
        step = -(-rows // pieces)
        slices = [batch.slice(start, min(step, rows - start)) for start in range(0, rows, step)]
    else:
        slices = [batch]
    fitting = []
    for piece in slices:
        if piece.nbytes > bytes_max and piece.num_rows > 1:
            half = piece.num_rows // 2
            for part in (piece.slice(0, half), piece.slice(half)):
                fitting.extend(by_size(part, bytes_aim, bytes_max, rows_max))
        else:
            fitting.append(piece)
    return fitting
