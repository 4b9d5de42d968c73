"""Verify fetched frames, and make messages and Arrow tables of them. Frames are verified here and nowhere later.

The cost is per batch: two checksums and one validation. C code makes the messages from the columns, one by one as they
are taken: messages that are kept in a list cost as much again, because Python's cyclic collector walks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from operator import length_hint
from typing import NamedTuple

import pyarrow as pa

from tinymq.base.errors import CorruptData, InvalidBatch
from tinymq.base.value import value
from tinymq.client.common.rows import columns_of
from tinymq.client.common.values import as_datetime
from tinymq.format.batch import SCHEMA, BatchLimits, decode_batch
from tinymq.format.columns import int64_scalar
from tinymq.format.entry import HEADER_SIZE, EntryHeader, Kind, batch_in, crc32c_of, parse_header

TABLE_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), *SCHEMA])
"""The schema of the tables that `to_arrow` returns, and of the batches of a scan."""

RAMP_MIN = 1 << 14

_SILENT = frozenset({Kind.NOOP, Kind.CONFIG, Kind.COMMAND, Kind.STAGED, Kind.DISCARD})


class Message(NamedTuple):
    """One record as read. Immutable.

    for message in mq.reader("orders", end="latest"):
        print(message.partition, message.offset, message.key, message.value)
        print(message.timestamp.isoformat(), message.header("trace"))
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_us: int  # the sender's, since 1970 UTC
    leader_epoch: int  # the term of the leader that wrote it

    @property
    def timestamp(self) -> datetime:
        """`timestamp_us` as a datetime in UTC."""
        return as_datetime(self.timestamp_us)

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of that name; None if there is none."""
        for found, content in reversed(self.headers):
            if found == name:
                return content
        return None


@value
class Chunk:
    """Records of one partition with consecutive offsets: a stored batch, or a part of it."""

    partition: int
    base_offset: int  # of the first row
    leader_epoch: int
    batch: pa.RecordBatch  # of SCHEMA, validated
    bytes: int  # of memory that it keeps alive; bounds count these

    @property
    def next_offset(self) -> int:
        return self.base_offset + int(self.batch.num_rows)

    def cut(self, start: int, end: int | None) -> Chunk | None:
        """Return the rows with start <= offset < end; None if there are none."""
        first = max(0, start - self.base_offset)
        last = self.batch.num_rows if end is None else min(self.batch.num_rows, end - self.base_offset)
        if first == 0 and last == self.batch.num_rows:
            return self
        if first >= last:
            return None
        return Chunk(
            self.partition,
            self.base_offset + first,
            self.leader_epoch,
            self.batch.slice(first, last - first),
            self.bytes,
        )

    def messages(self, topic: str) -> ChunkMessages:
        """Return the records as messages, to be taken one by one."""
        return ChunkMessages(self, topic)

    def table(self) -> pa.RecordBatch:
        """Return the rows with TABLE_SCHEMA."""
        import pyarrow.compute as pc  # here: a reader of messages never needs it, and it takes long to load

        count = self.batch.num_rows
        partition = pa.repeat(int64_scalar(self.partition).cast(pa.int32()), count)
        offset = pc.add(_ramp(count), int64_scalar(self.base_offset))
        return pa.RecordBatch.from_arrays([partition, offset, *self.batch.columns], schema=TABLE_SCHEMA)


class ChunkMessages:
    """The messages of a chunk, of which some are taken.

    `at_hand` makes each message when it is drawn, and C code does both in one step: whatever interrupts a thread, a
    message was drawn and `next_offset` lies behind it, or neither.
    """

    __slots__ = ("_end", "_offsets", "at_hand", "chunk")

    def __init__(self, chunk: Chunk, topic: str) -> None:
        self.chunk = chunk
        self._end = chunk.next_offset
        self._offsets = iter(range(chunk.base_offset, self._end))
        keys, values, headers, times_us = columns_of(chunk.batch)
        places, epochs = (repeat(topic), repeat(chunk.partition)), repeat(chunk.leader_epoch)
        rows = zip(*places, self._offsets, keys, values, headers, times_us, epochs, strict=False)
        self.at_hand: Iterator[Message] = map(tuple.__new__, repeat(Message), rows)

    def __iter__(self) -> Iterator[Message]:
        return self.at_hand

    @property
    def next_offset(self) -> int:
        """The offset of the message that is drawn next; behind the last one, if none is left."""
        return self._end - length_hint(self._offsets)

    @property
    def empty(self) -> bool:
        """Is none left?"""
        return not length_hint(self._offsets)

    def stop(self) -> int:
        """Let no more be drawn. Returns what `next_offset` was. Another thread may draw at the same time."""
        left = list(self._offsets)  # one step, which ends the rows, too
        self._end = left[0] if left else self._end
        return self._end


@lru_cache(maxsize=1)
def _long_ramp(count: int) -> pa.Array:
    import pyarrow.compute as pc

    return pc.subtract(pc.cumulative_sum(pa.repeat(one := int64_scalar(1), count)), one)


def _ramp(count: int) -> pa.Array:
    """Return 0, 1, ... count - 1, as a slice of a cached array: to make one costs ten times as much as to add to it."""
    longer = max(RAMP_MIN, 1 << (count - 1).bit_length())
    return _long_ramp(longer).slice(0, count)


def frame_headers(frames: memoryview) -> Iterator[tuple[int, EntryHeader]]:
    """Yield (position, header) of every frame, with verified header checksums. Raises CorruptData."""
    position = 0
    while position < len(frames):
        header = parse_header(frames, position)
        if position + header.size > len(frames):
            raise CorruptData("a frame is cut short", position=position, index=header.index)
        yield position, header
        position += header.size


def next_offset_after(frames: memoryview) -> int | None:
    """Return the offset behind these frames; None if there are none. Raises CorruptData."""
    after = None
    for _, header in frame_headers(frames):
        after = header.next_offset
    return after


def read_chunks(
    partition: int, frames: memoryview, offset: int, end: int | None, limits: BatchLimits
) -> Iterator[Chunk]:
    """Yield the records of some frames from `offset` to below `end`. Raises CorruptData, UnsupportedVersion."""
    for position, header in frame_headers(frames):
        if header.kind in _SILENT:
            continue
        start = position + HEADER_SIZE
        payload = frames[start : start + header.length]
        data = batch_in(header, payload)
        if header.next_offset <= offset or (end is not None and header.base_offset >= end):
            continue
        if crc32c_of(payload) != header.payload_crc:
            raise CorruptData("a payload's checksum does not match", index=header.index, partition=partition)
        try:
            batch = decode_batch(data, limits)
        except InvalidBatch as error:
            raise CorruptData(f"a stored batch is not one: {error.message}", partition=partition) from error
        if batch.num_rows != header.record_count:
            raise CorruptData("a frame counts other records than its batch holds", index=header.index)
        chunk = Chunk(partition, header.base_offset, header.term, batch, header.size).cut(offset, end)
        if chunk is not None:
            yield chunk


def to_table(chunks: list[Chunk]) -> pa.Table:
    """Return the rows of all chunks, partition by partition, with TABLE_SCHEMA; uncopied."""
    ordered = sorted(chunks, key=lambda chunk: chunk.partition)  # stable: offsets stay in order
    return pa.Table.from_batches([chunk.table() for chunk in ordered], schema=TABLE_SCHEMA)
