"""Finds the exact offset for a timestamp: the batch by the log's index, then the record in the batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tinymq.base.config import Limits
from tinymq.base.errors import CorruptData, InvalidBatch, InvalidRequest
from tinymq.broker.partition.group_port import RecordLog
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.fetch import FetchQuery, refusal
from tinymq.broker.serve.unpack_queue import BlockingRunner
from tinymq.format.batch import decode_batch
from tinymq.format.entry import Entry

END = -1
EARLIEST = -2
OF_MAX_TIMESTAMP = -3

# A stored batch was admitted under the limits of its time. Lowering a limit must not make it unreadable.
STORED = Limits(
    record_bytes_max=1 << 40,
    batch_bytes_max=64 << 20,
    batch_uncompressed_bytes_max=1 << 40,
    batch_records_max=1 << 32,
    fetch_bytes_max=64 << 20,
    stream_inflight_bytes_max=64 << 20,
)


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """An offset, and the timestamp of the record there; -1: the offset stands for no record."""

    offset: int
    timestamp_us: int
    high_watermark: int
    log_start: int
    leader_epoch: int
    recovery_term: int


async def find_offset(
    partition: Partition, timestamp_us: int, leader_only: bool, offload: BlockingRunner
) -> FoundOffset:
    """The first offset whose timestamp is at or after `timestamp_us`, or the end if there is none.

    `timestamp_us` may also be END, EARLIEST or OF_MAX_TIMESTAMP. Counts the records that this replica may show. Raises
    NotLeader, NotReady, CorruptData.
    """
    start = partition.log_start if partition.closed is None else 0
    refused = refusal(partition, FetchQuery(start, 0, 0, 0.0, leader_only=leader_only))
    if refused is not None:
        raise refused
    log, end, history = partition.group.log, partition.high_watermark, partition.state.epoch_cache.newest_term
    located: tuple[int, int] | None = None
    if timestamp_us == EARLIEST:
        located = start, -1
    elif timestamp_us == OF_MAX_TIMESTAMP:
        located = await _greatest(log, start, end, offload)
    elif timestamp_us != END:
        if not -(1 << 63) <= timestamp_us < 1 << 63:
            raise InvalidRequest(f"{timestamp_us} is not a time in microseconds")
        located = await _first_of_time(log, timestamp_us, start, end, offload)
    offset, at_us = located or (end, -1)
    return FoundOffset(offset, at_us, end, start, partition.group.term, history)


async def _first_of_time(
    log: RecordLog, timestamp_us: int, start: int, end: int, offload: BlockingRunner
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after `timestamp_us`, among those from `start` on."""
    entry = await log.time_index.entry_for_time(timestamp_us, end, start)
    if entry is None:
        return None
    located = await offload.run(partial(_first_at, entry, timestamp_us, start))
    if located is None:  # the batch contains the log start, and its record of that time lies below the start
        return await _first_of_time(log, timestamp_us, entry.header.next_offset, end, offload)
    return located


async def _greatest(log: RecordLog, start: int, end: int, offload: BlockingRunner) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the greatest timestamp, among those from `start` on."""
    entry = await log.time_index.entry_of_max_timestamp(end, start)
    if entry is None:
        return None
    located = await offload.run(partial(_first_at, entry, entry.header.max_timestamp_us, start))
    if located is not None:
        return located
    within = await offload.run(partial(_greatest_in, entry, start))  # its greatest lies below the log start
    later = await _greatest(log, entry.header.next_offset, end, offload)
    return later if later is not None and later[1] > within[1] else within


def _times(entry: Entry) -> pa.ChunkedArray | pa.Array:
    try:
        return decode_batch(entry.batch, STORED).column(3).cast(pa.int64())
    except InvalidBatch as error:
        raise CorruptData(f"a stored batch does not decode: {error.message}", index=entry.index) from error


def _first_at(entry: Entry, timestamp_us: int, start: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the entry's first record at or after `timestamp_us`, which its header promises to exist.

    None if all such records are below `start`.
    """
    base, times = entry.header.base_offset, _times(entry)
    skipped = max(0, start - base)
    row = pc.index(pc.greater_equal(times.slice(skipped), timestamp_us), True).as_py()
    if row >= 0:
        return base + skipped + row, times[skipped + row].as_py()
    if skipped:
        return None
    raise CorruptData("a stored batch lacks the timestamp that its header names", index=entry.index)


def _greatest_in(entry: Entry, start: int) -> tuple[int, int]:
    """(offset, timestamp) of the first record with the greatest timestamp of those from `start` on."""
    base, times = entry.header.base_offset, _times(entry)
    skipped = max(0, start - base)
    greatest = pc.max(times.slice(skipped))
    return base + skipped + pc.index(times.slice(skipped), greatest).as_py(), greatest.as_py()
