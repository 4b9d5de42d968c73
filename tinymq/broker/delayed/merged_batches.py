"""Makes one batch of small delayed batches that are due together. Pure.

An entry costs every replica and every reader about the same, whatever its size, so a burst of 100,000 single records
would keep them busy for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from tinymq.base.errors import InvalidBatch
from tinymq.broker.delayed.staged_reads import StagedPayload
from tinymq.broker.state.delayed import DelayedBatch
from tinymq.format.batch import BatchLimits, Codec, decode_batch, encode_record_batch, pack_batch, parse_batch_header

SMALL_BYTES_MAX = 16 * 1024  # of a batch that is merged with others
MERGED_BYTES_MAX = 256 * 1024
MERGED_MAX = 256  # batches


class DueBatch(NamedTuple):
    """A delayed batch that is due, with its bytes."""

    waiting: DelayedBatch
    staged: StagedPayload


class MergedBatch(NamedTuple):
    """The delayed batches that one DATA entry publishes."""

    waiting: Sequence[DelayedBatch]  # in the order of their records
    batch: bytes
    records: int
    max_timestamp_us: int


def runs(due: Sequence[DueBatch]) -> Iterator[Sequence[DueBatch]]:
    """Divide batches into runs that become one batch each. Their order stays."""
    run: list[DueBatch] = []
    size = 0
    for each in due:
        small = each.waiting.bytes <= SMALL_BYTES_MAX
        if run and not (small and size + each.waiting.bytes <= MERGED_BYTES_MAX and len(run) < MERGED_MAX):
            yield run
            run, size = [], 0
        run.append(each)
        # Nothing is merged with a large batch: it is full at once.
        size += each.waiting.bytes if small else MERGED_BYTES_MAX
    if run:
        yield run


def merge(run: Sequence[DueBatch], limits: BatchLimits) -> MergedBatch | None:
    """One batch with all records of a run; None: they cannot be one batch, and stay as they are.

    The records keep the compression of the first batch.
    """
    if len(run) == 1:
        ((waiting, staged),) = run
        return MergedBatch([waiting], staged.batch, waiting.records, staged.head.max_timestamp_us)
    try:
        codec = Codec(parse_batch_header(run[0].staged.batch).codec)
        records = pa.concat_batches([decode_batch(each.staged.batch, limits) for each in run])
        batch = pack_batch(encode_record_batch(records, codec), record_count=records.num_rows, codec=codec)
    except InvalidBatch:  # the limits were lowered since the batches were stored
        return None
    latest_us = max(each.staged.head.max_timestamp_us for each in run)
    return MergedBatch([each.waiting for each in run], batch, records.num_rows, latest_us)
