"""Logs in memory: replicated like all others, bounded, and gone with the process.

They are the same logs over other files, with segments, indexes and snapshots, and with nothing to wait for. The disk
has their incarnation counts only. Each process begins a log under a count that no process before it used. So a broker
that was started again is another replica: no CONFIG lists it, it has no vote, and its leader fills it (hazard 22).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from tinymq.base.config import Limits
from tinymq.base.errors import CorruptData, QuotaExceeded
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.durability_marks import DAMAGED, DurabilityMark
from tinymq.log.engine.storage_engine import OpenedLog
from tinymq.log.files.layout import group_directory
from tinymq.log.files.memory_files import MemoryFiles
from tinymq.log.files.runner import InlineRunner
from tinymq.log.replica_log.creation import begin_behind, create_log, remove_below
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.log_config import LogConfig
from tinymq.log.replica_log.recovery import Recovered, recover
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.log.writer.disk import LogDisk

FULL_RETRY_MS = 500  # first, records have to be trimmed or topics deleted


class IncarnationCounts(Protocol):
    """Incarnation counts that survive the process. Every method may raise StorageError."""

    async def next(self, group: GroupId) -> int:
        """Take a count that no log of the group here has had; 0 the first time. Durable when this returns."""
        ...

    async def put(self, group: GroupId, count: int) -> None:
        """Set the group's count. Durable when this returns."""
        ...

    async def forget(self, group: GroupId) -> None:
        """Forget a group that is deleted."""
        ...


class MemoryWriter:
    """Carries out the operations of logs in memory, once per turn of the loop. Entries that are appended in one turn
    count together, and no caller is called back while it appends."""

    def __init__(self, files: MemoryFiles) -> None:
        self._disk = LogDisk(files, ahead=False)
        self._dirty: dict[Log, None] = {}
        self._waking = False
        self.pending_bytes = 0  # admitted since the last turn, and not in the files yet

    def add(self, log: Log) -> None:
        self._dirty[log] = None
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._turn)

    def commit_advanced(self, log: Log) -> None:
        """Nothing is stored: the next process begins with new logs. Until then a commit index counts as durable."""
        if log.commit.urgent:
            self.add(log)  # in the next turn: the caller is not done yet

    def drop(self, log: Log) -> None:
        self._dirty.pop(log, None)
        self.forget(log.group)

    def forget(self, group: GroupId) -> None:
        """Close the group's files."""
        self._disk.forget(group_directory(group))

    def write(self, log: Log) -> None:
        """Carry out the log's operations now."""
        self._dirty.pop(log, None)
        if log.failed is None:
            for operation in log.take_operations():
                self._disk.carry_out(operation)
            self._disk.sync(())
            log.written()
            log.commit_synced(log.commit.known)

    def _turn(self) -> None:
        self._waking = False
        self.pending_bytes = 0
        for log in list(self._dirty):
            self.write(log)


class MemoryEngine:
    """The logs in memory. See StorageEngine."""

    outlives = False

    def __init__(self, counts: IncarnationCounts, limits: Limits, tails: TailBudget) -> None:
        self._counts = counts
        self._limits = limits
        self._tails = tails
        self._files = MemoryFiles()
        self._writer = MemoryWriter(self._files)
        self._closed_marks: dict[GroupId, DurabilityMark] = {}  # of the logs that this process has closed

    @property
    def bytes(self) -> int:
        """Bytes of all logs in memory."""
        return self._files.bytes

    async def open(self, group: GroupId, first_entry: Entry, config: LogConfig) -> OpenedLog:
        mark = self._closed_marks.pop(group, None)
        if mark is None:
            mark = DurabilityMark(group, await self._counts.next(group))
        recovered = recover(self._files, mark, config.segment_bytes) if mark.index else None
        if recovered is None:
            recovered = create_log(self._files, group, first_entry, 0)
        log = self._log(group, recovered, config, mark)
        if recovered.damage is not None:
            log.failed = CorruptData(recovered.damage)
        return OpenedLog(
            log,
            applied_index=recovered.applied_index,
            snapshot=recovered.snapshot,
            count=mark.count,
            damage=recovered.damage,
            tail_intact=recovered.tail_intact,
        )

    def _log(self, group: GroupId, recovered: Recovered, config: LogConfig, mark: DurabilityMark) -> Log:
        log = Log(
            group, self._files, InlineRunner(), self._writer, recovered, count=mark.count, commit=mark.commit,
            config=config, tails=self._tails,
            fault_count=0,  # the topic accepts every risk that may end a replica in memory
        )  # fmt: skip
        log.quota = self._check_quota
        return log

    def _check_quota(self, length: int) -> None:
        taken = self._files.bytes + self._writer.pending_bytes
        if taken + length > self._limits.memory_storage_bytes_max:
            raise QuotaExceeded(
                f"topics in memory take {taken:,} bytes on this broker", retry_after_ms=FULL_RETRY_MS,
                hint="trim or delete some, or raise memory_storage_bytes_max",
            )  # fmt: skip
        self._writer.pending_bytes += length

    def configure(self, log: Log, config: LogConfig) -> None:
        log.configure(config)

    async def mark_damaged(self, log: Log, error: CorruptData) -> None:
        log.fail(error)

    async def raise_count(self, log: Log, count: int) -> None:
        await self._counts.put(log.group, count)
        await self.close(log)
        self._closed_marks[log.group] = replace(self._closed_marks[log.group], count=count)

    async def quarantine(self, group: GroupId) -> None:
        """Drop the log: no memory is spent on a damaged one. The next opening takes the next count."""
        self._drop(group)

    async def remove_quarantined(self, group: GroupId, commit: int) -> bool:
        return True

    def has_quarantined(self, group: GroupId) -> bool:
        return False

    async def install(self, log: Log, snapshot: Snapshot) -> OpenedLog:
        if log.last_index >= snapshot.index:
            log.truncate_from(snapshot.index)
        self._release(log)
        recovered = begin_behind(self._files, log.group, snapshot)
        remove_below(self._files, log.group, snapshot.index + 1)
        begun = self._log(log.group, recovered, log.config, DurabilityMark(log.group, log.count, commit=snapshot.index))
        return OpenedLog(begun, snapshot.index, snapshot.data, count=log.count, damage=None, tail_intact=True)

    async def close(self, log: Log) -> None:
        damaged = DAMAGED if isinstance(log.failed, CorruptData) else 0
        self._release(log)
        self._closed_marks[log.group] = log.mark(damaged)

    def _release(self, log: Log) -> None:
        self._writer.write(log)
        self._writer.drop(log)
        log.close()

    async def delete(self, group: GroupId) -> None:
        self._drop(group)
        await self._counts.forget(group)

    def _drop(self, group: GroupId) -> None:
        self._closed_marks.pop(group, None)
        self._writer.forget(group)
        self._files.remove_tree(group_directory(group))
