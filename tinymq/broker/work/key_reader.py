"""Reads the keys of records ahead of their grants, for groups with keyed order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tinymq.base.errors import TinymqError
from tinymq.broker.groups.key_order import KeyOrder
from tinymq.broker.partition.partition import Partition
from tinymq.broker.work.granted_records import GrantedRecords

AHEAD_MAX = 10_000  # at this many keys ahead, no further read begins

logger = structlog.get_logger("tinymq.broker")


class KeyReader:
    """Reads the keys of one group in one partition, one read at a time."""

    def __init__(self, partition: Partition, records: GrantedRecords, pump: Callable[[], None]) -> None:
        """`pump` is called when more keys are known."""
        self._partition = partition
        self._records = records
        self._pump = pump
        self._task: asyncio.Task[None] | None = None

    def read_on(self, keys: KeyOrder | None) -> None:
        """Begin to read more keys, if too few are known and the partition has more."""
        idle = self._task is None or self._task.done()
        if keys is None or not idle or keys.known_end >= self._partition.high_watermark:
            return
        if keys.read_ahead < AHEAD_MAX:
            self._task = asyncio.get_running_loop().create_task(self._read(keys))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _read(self, keys: KeyOrder) -> None:
        start = max(keys.known_end, self._partition.log_start)
        try:
            found = await self._records.keys(self._partition, start)
        except TinymqError as error:  # the next call tries again
            logger.warning("keys_unreadable", partition=self._partition.name, reason=str(error))
            return
        for base_offset, hashes in found:
            keys.learn(base_offset, hashes)
        if found:
            asyncio.get_running_loop().call_soon(self._pump)
