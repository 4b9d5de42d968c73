"""Copies batches without offsets to the end of the log, one task at a time.

A copy is one entry, and takes the place of the earlier one when it is applied: with two entries, a leader that is lost
between them would leave the batch twice, or not at all. Whether a copy may be appended is decided again after its batch
was read, in the same turn of the loop as the append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tinymq.base.errors import TinymqError
from tinymq.broker.delayed.staged_reads import read_entries
from tinymq.broker.partition.group_port import RecordLog
from tinymq.broker.partition.staged.copies import (
    SegmentBounds,
    StoredBatch,
    due_copies,
    stored_delayed,
    stored_transactional,
)
from tinymq.broker.partition.staged.delays import Delays
from tinymq.broker.partition.staged.log_port import LogPort
from tinymq.broker.partition.staged.transactions import PartitionTransactions
from tinymq.format.entry import Entry
from tinymq.format.feature_level import COPIES_LEVEL

logger = structlog.get_logger("tinymq.broker")


class Copier:
    """One object per replica. Only a leader copies."""

    def __init__(self, name: str, port: LogPort, delays: Delays, transactions: PartitionTransactions) -> None:
        self.on_copied: Callable[[int], None] = lambda batch_bytes: None  # called for each copy
        self._name = name
        self._state = port.state
        self._group = port.group
        self._delays = delays
        self._transactions = transactions
        self._copying: asyncio.Task[None] | None = None

    def release(self, log: RecordLog) -> None:
        """As the leader: begin to copy the batches that keep segments which retention has reached."""
        state = self._state
        if self._copying is not None or not (len(state.delayed) or len(state.staged)):
            return
        copies_transactions = self._group().feature_level >= COPIES_LEVEL
        unmoved = [state.published.lowest_index, None if copies_transactions else state.staged.lowest_index]
        kept_from = min((index for index in unmoved if index is not None), default=None)
        pinned = [SegmentBounds(*each) for each in log.closed_below(state.log_start)]
        # The batches that keep the segments from `kept_from` on cannot be copied, so a copy would free none of these.
        pinned = [each for each in pinned if kept_from is None or each.last_index < kept_from]
        if not pinned:
            return
        first_index, last_index = pinned[0].first_index, pinned[-1].last_index
        stored = [stored_delayed(batch) for batch in state.delayed.between(first_index, last_index)]
        if copies_transactions:
            stored += [stored_transactional(*each) for each in state.staged.between(first_index, last_index)]
        if copies := due_copies(pinned, stored, self._is_movable):
            self._copying = asyncio.get_running_loop().create_task(self._copy(copies))

    def _is_movable(self, stored: StoredBatch) -> bool:
        batch = stored.batch
        return self._delays.is_movable(batch) if isinstance(batch, int) else self._transactions.is_movable(batch)

    async def _copy(self, copies: Sequence[StoredBatch]) -> None:
        try:
            entries = await read_entries(self._group().log.reader, [copy[:2] for copy in copies])
            for copy in copies:
                self._append(copy, entries[copy.entry_index])
                await asyncio.sleep(0)
        except TinymqError as error:  # the next check of retention tries again
            logger.info("copying_failed", partition=self._name, error=error.code, reason=error.message)
        finally:
            self._copying = None

    def _append(self, copy: StoredBatch, entry: Entry) -> None:
        batch = copy.batch
        if isinstance(batch, int):
            size = self._delays.append_copy(batch, entry)
        else:
            size = self._transactions.append_copy(batch, entry)
        if size:
            self.on_copied(size)
