"""Logs in memory: replicated like all others, bounded, and gone with the process.

The same log over other files: segments, indexes and applied states, with nothing to wait for. The disk has the
incarnation counts alone. Each process begins a log under a count that none before it here had, so a broker that was
started again is another replica: it is listed in no CONFIG, has no vote, and is filled by its leader (hazard 22).
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

FULL_RETRY_MS = 500  # something has to be trimmed, or deleted, first


class IncarnationCounts(Protocol):
    """Where incarnation counts survive. Raises StorageError."""

    async def next(self, group: GroupId) -> int:
        """A count that no log of the group here had before; 0 the first time. Durable when it returns."""
        ...

    async def put(self, group: GroupId, count: int) -> None:
        """The group's count from now on. Durable when it returns."""
        ...

    async def forget(self, group: GroupId) -> None:
        """The group is gone for good."""
        ...


class MemoryWriter:
    """Carries out on the loop what logs ask for, once per turn of it: what they append in one turn counts together,
    and nobody is called back while he still appends."""

    def __init__(self, files: MemoryFiles) -> None:
        self._disk = LogDisk(files, ahead=False)
        self._dirty: dict[Log, None] = {}
        self._waking = False
        self.pending_bytes = 0  # admitted since the last turn

    def add(self, log: Log) -> None:
        self._dirty[log] = None
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._turn)

    def commit_advanced(self, log: Log) -> None:
        """A commit index is not kept: who comes after this process begins anew. Until then it is as good as kept."""
        if log.commit.urgent:
            self.add(log)  # not at once: it is in the middle of something

    def drop(self, log: Log) -> None:
        self._dirty.pop(log, None)
        self.forget(log.group)

    def forget(self, group: GroupId) -> None:
        """Let go of its files."""
        self._disk.forget(group_directory(group))

    def write(self, log: Log) -> None:
        """At once."""
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
    """See Engine."""

    outlives = False

    def __init__(self, counts: IncarnationCounts, limits: Limits, tails: TailBudget) -> None:
        self._counts = counts
        self._limits = limits
        self._tails = tails
        self._files = MemoryFiles()
        self._writer = MemoryWriter(self._files)
        self._kept: dict[GroupId, DurabilityMark] = {}  # of logs that this process has closed

    @property
    def bytes(self) -> int:
        """Of all logs in memory."""
        return self._files.bytes

    async def open(self, group: GroupId, first_entry: Entry, config: LogConfig) -> OpenedLog:
        kept = self._kept.pop(group, None)
        if kept is None:
            kept = DurabilityMark(group, await self._counts.next(group))
        recovered = recover(self._files, kept, config.segment_bytes) if kept.index else None
        if recovered is None:
            recovered = create_log(self._files, group, first_entry, 0)
        log = self._log(group, recovered, config, kept)
        if recovered.damage is not None:
            log.failed = CorruptData(recovered.damage)
        return OpenedLog(
            log, recovered.applied_index, recovered.snapshot, kept.count, recovered.damage, recovered.tail_intact
        )  # fmt: skip

    def _log(self, group: GroupId, recovered: Recovered, config: LogConfig, mark: DurabilityMark) -> Log:
        log = Log(
            group, self._files, InlineRunner(), self._writer, recovered, count=mark.count, commit=mark.commit,
            config=config, tails=self._tails,
            fault_count=0,  # whatever ends a replica in memory, the topic accepts that risk
        )  # fmt: skip
        log.quota = self._check_room
        return log

    def _check_room(self, length: int) -> None:
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
        self._kept[log.group] = replace(self._kept[log.group], count=count)

    async def quarantine(self, group: GroupId) -> None:
        """Memory is for what is of use: nothing is kept, and the next opening takes the next count."""
        self._drop(group)

    async def remove_quarantined(self, group: GroupId, commit: int) -> bool:
        return True

    def has_quarantined(self, group: GroupId) -> bool:
        return False

    async def install(self, log: Log, applied: Snapshot) -> OpenedLog:
        if log.last_index >= applied.index:
            log.truncate_from(applied.index)
        self._let_go(log)
        recovered = begin_behind(self._files, log.group, applied)
        remove_below(self._files, log.group, applied.index + 1)
        begun = self._log(log.group, recovered, log.config, DurabilityMark(log.group, log.count, commit=applied.index))
        return OpenedLog(begun, applied.index, applied.data, log.count, None, True)

    async def close(self, log: Log) -> None:
        damaged = DAMAGED if isinstance(log.failed, CorruptData) else 0
        self._let_go(log)
        self._kept[log.group] = log.mark(damaged)

    def _let_go(self, log: Log) -> None:
        self._writer.write(log)
        self._writer.drop(log)
        log.close()

    async def delete(self, group: GroupId) -> None:
        self._drop(group)
        await self._counts.forget(group)

    def _drop(self, group: GroupId) -> None:
        self._kept.pop(group, None)
        self._writer.forget(group)
        self._files.remove_tree(group_directory(group))
