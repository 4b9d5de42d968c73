"""Reads granted records and sends them to their workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import TinymqError
from tinymq.broker.groups.lease_values import Grant
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.partition.partition import Partition
from tinymq.broker.work.attachment import Attachment
from tinymq.broker.work.granted_records import GrantedBatch, GrantedRecords

logger = structlog.get_logger("tinymq.broker")


class Deliveries:
    """The deliveries of one group in one partition. At most one read is under way for each worker."""

    def __init__(
        self, partition: Partition, leases: QueueLeases, records: GrantedRecords, clock: Clock,
        pump: Callable[[], None], on_expired: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`pump` is called when a worker may get more records; `on_expired` gets the number of expired records."""
        self.ttl_us: int | None = None  # a record older than this is settled instead of sent; None: no limit
        self._partition = partition
        self._leases = leases
        self._records = records
        self._clock = clock
        self._pump = pump
        self._on_expired = on_expired
        self._closed = False
        self._reading: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        for task in self._reading:
            task.cancel()

    def send(self, at: Attachment, grants: list[Grant]) -> None:
        grants.sort(key=_by_offset)
        offsets = [grant.offset for grant in grants]
        batches = self._records.read_now(self._partition, offsets)
        if batches is not None:
            self._send_found(at, grants, batches)
            return
        at.reading = True
        task = asyncio.get_running_loop().create_task(self._read(at, grants, offsets))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, at: Attachment, grants: list[Grant], offsets: list[int]) -> None:
        batches: list[GrantedBatch] = []
        try:
            batches = await self._records.read(self._partition, offsets)
        except TinymqError as error:
            logger.warning("granted_records_unreadable", partition=self._partition.name, reason=str(error))
        at.reading = False
        if not self._closed:
            self._send_found(at, grants, batches)
            self._pump()

    def _send_found(self, at: Attachment, grants: list[Grant], batches: Sequence[GrantedBatch]) -> None:
        """Send grants, except those that ended during the read, and those whose record was removed or is too old."""
        now_s, leases = self._clock.monotonic(), self._leases
        found, place, expired = [], 0, 0
        dead_us = None if self.ttl_us is None else self._partition.group.append_time_now_us() - self.ttl_us
        for grant in grants:
            while place < len(batches) and grant.offset >= batches[place].base_offset + batches[place].record_count:
                place += 1
            lease = leases.leases.get(grant.offset)
            if lease is None or lease.grant is not grant:
                continue
            if at.over or place == len(batches) or grant.offset < batches[place].base_offset:
                leases.take_back(grant.offset)  # nothing to settle: retention removed the record, or the worker is gone
            elif dead_us is not None and batches[place].append_time_us <= dead_us:
                leases.settle_unseen(grant.offset)
                expired += 1
            else:
                found.append(grant)
        if expired:
            self._on_expired(expired)
        if not found:
            return
        size = sum(len(batch.payload) for batch in batches)
        at.sent_records += len(found)
        at.sent_bytes += size
        left_s = max(0.0, leases.leases[found[0].offset].until_s - now_s)
        at.port.granted(at.number, found, batches, size, left_s)


def _by_offset(grant: Grant) -> int:
    return grant.offset
