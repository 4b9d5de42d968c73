"""Which delayed batches to copy to the end of the log, so that old segments can go. Pure.

A segment stays while an entry in it has a batch that waits, and so do all segments behind it. When retention has
reached segments that are mostly empty of such batches, the leader copies what waits in the oldest ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tinymq.broker.delayed.uncommitted_delays import UncommittedDelays
from tinymq.broker.state.delayed import DelayedBatch, DelayedBatches
from tinymq.format.delayed import STAGED_HEAD_SIZE
from tinymq.format.entry import HEADER_SIZE

PINNED_MAX = 2  # times the bytes of what waits in them: so much may the segments take that are kept for it
COPIED_BYTES_MAX = 4 * 1024 * 1024  # in one check of retention: users' writes come first


class SegmentBounds(NamedTuple):
    """A closed segment of a log."""

    first_index: int
    last_index: int
    bytes: int


def due_copies(
    pinned: Sequence[SegmentBounds], applied: DelayedBatches, uncommitted: UncommittedDelays
) -> list[DelayedBatch]:
    """The batches to copy now, those of the oldest entries first. `pinned` are the segments that retention would remove
    if no batch waited in them, in the order of the log."""
    if not pinned or not len(applied):
        return []
    waiting = applied.between(pinned[0].first_index, pinned[-1].last_index)
    taken = sum(segment.bytes for segment in pinned)
    if taken <= PINNED_MAX * sum(_frame_bytes(batch) for batch in waiting):
        return []
    copies, size = list[DelayedBatch](), 0
    for batch in sorted(waiting, key=lambda batch: batch.entry_index):
        if uncommitted.movable(applied, batch.schedule_id) is None:
            continue
        size += _frame_bytes(batch)
        if copies and size > COPIED_BYTES_MAX:
            break
        copies.append(batch)
    return copies


def _frame_bytes(batch: DelayedBatch) -> int:
    return batch.bytes + STAGED_HEAD_SIZE + HEADER_SIZE
