"""Which offset a time stands for, exactly: found by batch in the index, then by record in the batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tinymq.batch import decode_batch
from tinymq.broker.fetch import Ask, refusal
from tinymq.broker.partition import Partition
from tinymq.config import Limits
from tinymq.entry import Entry
from tinymq.errors import CorruptData, InvalidBatch, InvalidRequest
from tinymq.log.runner import Runner

END = -1
EARLIEST = -2
OF_MAX_TIMESTAMP = -3

# What is stored was admitted under the limits of its time: lowering a limit later must not hide it.
STORED = Limits(
    record_bytes_max=1 << 40,
    batch_bytes_max=64 << 20,
    batch_uncompressed_bytes_max=1 << 40,
    batch_records_max=1 << 32,
    fetch_bytes_max=64 << 20,
    stream_inflight_bytes_max=64 << 20,
)


@dataclass(frozen=True, slots=True)
class Found:
    """An offset, and the timestamp of the record there; -1 where there is no record to name."""

    offset: int
    timestamp_us: int
    high_watermark: int
    log_start: int
    leader_epoch: int


async def find_offset(partition: Partition, timestamp_us: int, leader_only: bool, runner: Runner) -> Found:
    """The first offset whose timestamp is at or after `timestamp_us`, the end when there is none; or a sentinel's.

    Over what this replica may show. Raises NotLeader, NotReady, CorruptData.
    """
    start = partition.group.log.log_start_offset if partition.closed is None else 0
    refused = refusal(partition, Ask(start, 0, 0, 0.0, leader_only=leader_only))
    if refused is not None:
        raise refused
    log, end = partition.group.log, partition.high_watermark
    offset, at_us = end, -1
    if timestamp_us == EARLIEST:
        offset = start
    elif timestamp_us == OF_MAX_TIMESTAMP:
        entry = await log.entry_of_max_timestamp(end)
        if entry is not None:
            offset, at_us = await runner.run(partial(_first_at, entry, entry.header.max_timestamp_us))
    elif timestamp_us != END:
        if not -(1 << 63) <= timestamp_us < 1 << 63:
            raise InvalidRequest(f"{timestamp_us} is not a time in microseconds")
        entry = await log.entry_for_time(timestamp_us, end)
        if entry is not None:
            offset, at_us = await runner.run(partial(_first_at, entry, timestamp_us))
    return Found(offset, at_us, end, start, partition.group.term)


def _first_at(entry: Entry, timestamp_us: int) -> tuple[int, int]:
    """(offset, timestamp) of the entry's first record at or after `timestamp_us`: its index says that there is one."""
    try:
        times = decode_batch(entry.payload, STORED).column(3).cast(pa.int64())
    except InvalidBatch as error:
        raise CorruptData(f"a stored batch does not decode: {error.message}", index=entry.index) from error
    row = pc.index(pc.greater_equal(times, timestamp_us), True).as_py()
    if row < 0:
        raise CorruptData("a stored batch lacks the timestamp that its header names", index=entry.index)
    return entry.header.base_offset + row, times[row].as_py()
