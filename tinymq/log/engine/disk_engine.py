"""Logs on the disk: opened with what has survived; closed, replaced and removed in steps that a crash may cut short.

Every change of the disk outside of opening runs between two sync batches (`Writer.run_exclusive`). For one log see
recovery.py, for the file that all logs share durability_marks.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from tinymq.base.errors import CorruptData
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.durability_marks import (
    DAMAGED,
    DELETING,
    FORGOTTEN,
    QUARANTINING,
    SUSPECT,
    TAIL_LOST,
    DurabilityMark,
)
from tinymq.log.engine.damaged_logs import (
    count_on_disk,
    has_quarantined,
    prepare_quarantine,
    quarantined_commit,
    remove_quarantined,
    settle,
)
from tinymq.log.engine.storage_engine import OpenedLog
from tinymq.log.files.files import Files
from tinymq.log.files.layout import GROUPS, count_name, count_of, group_directory, topic_directory
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.creation import begin_behind, create_log, mark_behind, remove_below, sync_directories
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.log_config import LogConfig
from tinymq.log.replica_log.recovery import Recovered, recover
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.segment.reads import Span, locate
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.log.writer.sync_batch import SyncBatches
from tinymq.log.writer.writer import Writer


class DiskIncarnationCounts:
    """Incarnation counts of groups whose logs are in memory. Each has a mark, and an empty file in the group's
    directory in case the marks are lost. See memory_engine.IncarnationCounts."""

    def __init__(
        self, files: Files, writer: Writer, batches: SyncBatches, delete: Callable[[GroupId], Awaitable[None]]
    ) -> None:
        self._files = files
        self._writer = writer
        self._batches = batches
        self._delete = delete

    async def next(self, group: GroupId) -> int:
        return await self._writer.run_exclusive(lambda: self._put(group, None))

    async def put(self, group: GroupId, count: int) -> None:
        await self._writer.run_exclusive(lambda: self._put(group, count))

    async def forget(self, group: GroupId) -> None:
        await self._delete(group)

    def _put(self, group: GroupId, count: int | None) -> int:
        mark = self._batches.marks.get(group)
        if count is None:
            count = 0 if mark is None else 1 + max(mark.count, count_on_disk(self._files, group))
        directory = group_directory(group)
        before = [name for name in self._files.list(directory) if count_of(name) is not None]
        self._files.make_directory(directory)
        if count:
            file = self._files.open(f"{directory}/{count_name(count)}", create=True)
            try:
                self._files.sync([file])
            finally:
                file.close()
        sync_directories(self._files, group)
        self._batches.put_mark(DurabilityMark(group, count=count))
        for name in before:
            if name != count_name(count):
                self._files.remove(f"{directory}/{name}")
        return count


class DiskEngine:
    """The logs on disk. See StorageEngine."""

    outlives = True

    def __init__(self, files: Files, runner: Runner, writer: Writer, batches: SyncBatches, tails: TailBudget) -> None:
        self._files = files
        self._runner = runner
        self._writer = writer
        self._batches = batches
        self._marks = batches.marks
        self._tails = tails

    async def open(self, group: GroupId, first_entry: Entry, config: LogConfig) -> OpenedLog:
        mark = await self._settled_mark(group)
        before = mark or DurabilityMark(group)
        if before.fault_count is None:
            # Earlier versions did not store why they raised the count. These versions decided by the topic's present
            # setting, and this code does the same.
            before = replace(before, fault_count=0 if config.takes_risks else before.count)
        segment_bytes = config.segment_bytes
        recovered = await self._runner.run(
            lambda: _recover_or_create(self._files, before, first_entry, segment_bytes, listed=mark is not None)
        )
        if recovered.damage is not None and not recovered.tail_intact and not before.flags & TAIL_LOST:
            # The replica may have lost what it acknowledged, so its count rises, once for this damage.
            before = before.raised_by_fault(flags=TAIL_LOST)
            await self._put_mark(before)
        log = self._log(group, recovered, config, before)
        if recovered.damage is None:
            # Recovery has synced everything up to the log's end, so the mark may say so.
            if (after := log.mark()) != mark:
                await self._put_mark(after)
        else:
            log.failed = CorruptData(recovered.damage)
        return OpenedLog(
            log,
            applied_index=recovered.applied_index,
            snapshot=recovered.snapshot,
            count=log.count,
            damage=recovered.damage,
            tail_intact=recovered.tail_intact,
        )

    async def _settled_mark(self, group: GroupId) -> DurabilityMark | None:
        """The group's mark, after every step that it names as unfinished. None: this broker has never had a log of the
        group."""
        mark = self._marks.get(group)
        if mark is not None and mark.flags & (SUSPECT | DELETING | QUARANTINING):
            # A quarantine or a removal was interrupted, or the newest mark was lost.
            mark = await self._writer.run_exclusive(partial(settle, self._files, mark, self._batches.put_mark))
        if mark is not None and mark.index and not self._files.exists(group_directory(group)):
            # The directory is lost. The mark is durable before a new log exists that would pass for the lost one.
            mark = DurabilityMark(group, count=mark.count).raised_by_fault()
            await self._put_mark(mark)
        return mark

    async def mark_damaged(self, log: Log, error: CorruptData) -> None:
        self._writer.drop(log)
        log.fail(error)

        def put() -> None:
            mark = self._marks.get(log.group)
            if mark is not None and not log.closed:
                self._batches.put_mark(replace(mark, flags=mark.flags | DAMAGED))

        await self._writer.run_exclusive(put)

    async def raise_count(self, log: Log, count: int) -> None:
        await self._writer.barrier()
        if log.failed is not None:
            raise log.failed
        mark = replace(log.mark(), count=count, fault_count=count)
        self._release(log)

        def put() -> None:
            self._batches.forget(log.group)
            self._batches.put_mark(mark)

        await self._writer.run_exclusive(put)

    async def quarantine(self, group: GroupId) -> None:
        def put() -> None:
            self._batches.forget(group)
            mark = self._marks.get(group) or DurabilityMark(group)
            flags = DELETING if has_quarantined(self._files, group) else QUARANTINING
            if flags == QUARANTINING:
                prepare_quarantine(self._files, group, mark.commit)
            self._batches.put_mark(DurabilityMark(group, count=mark.count + 1, flags=flags))

        await self._writer.run_exclusive(put)

    async def remove_quarantined(self, group: GroupId, commit: int) -> bool:

        def remove() -> bool:
            if quarantined_commit(self._files, group) > commit:
                return False
            remove_quarantined(self._files, group)
            return True

        return await self._writer.run_exclusive(remove)

    def has_quarantined(self, group: GroupId) -> bool:
        return has_quarantined(self._files, group)

    async def install(self, log: Log, snapshot: Snapshot) -> OpenedLog:
        group = log.group
        if log.last_index >= snapshot.index:
            log.truncate_from(snapshot.index)
        await self._writer.barrier()
        if log.failed is not None:
            raise log.failed
        config, mark = log.config, mark_behind(group, snapshot, log.count, log.fault_count)
        self._release(log)

        def install() -> Recovered:
            self._batches.forget(group)
            recovered = begin_behind(self._files, group, snapshot)
            self._batches.put_mark(mark)
            remove_below(self._files, group, snapshot.index + 1)
            return recovered

        recovered = await self._writer.run_exclusive(install)
        log = self._log(group, recovered, config, mark)
        return OpenedLog(log, snapshot.index, snapshot.data, count=log.count, damage=None, tail_intact=True)

    def _release(self, log: Log) -> None:
        """Close the log, and do not carry out its queued operations."""
        self._writer.drop(log)
        log.close()

    def configure(self, log: Log, config: LogConfig) -> None:
        log.configure(config)
        self._writer.add(log)  # a write that could wait for its interval may have to be synced now

    def _log(self, group: GroupId, recovered: Recovered, config: LogConfig, mark: DurabilityMark) -> Log:
        return Log(
            group, self._files, self._runner, self._writer, recovered, count=mark.count, commit=mark.commit,
            config=config, tails=self._tails, fault_count=mark.fault_count,
        )  # fmt: skip

    async def close(self, log: Log) -> None:
        await self._writer.drain()
        self._writer.drop(log)
        mark = log.mark() if log.failed is None else None
        log.close()

        def close() -> None:
            self._batches.forget(log.group)
            if mark is not None:
                self._marks.write([mark])

        await self._writer.run_exclusive(close)

    async def delete(self, group: GroupId) -> None:
        def delete() -> None:
            self._batches.forget(group)
            mark = self._marks.get(group)
            if mark is not None:  # first, so that a crash in the middle of the removal is no damage
                self._batches.put_mark(replace(mark, flags=mark.flags | DELETING))
            remove_quarantined(self._files, group)
            self._files.remove_tree(group_directory(group))
            if self._files.exists(topic_directory(group)):
                self._files.sync_directory(topic_directory(group))
                if not self._files.list(topic_directory(group)):
                    self._files.remove_tree(topic_directory(group))
                    self._files.sync_directory(GROUPS)
            if mark is not None:
                self._batches.put_mark(DurabilityMark(group, flags=FORGOTTEN))

        await self._writer.run_exclusive(delete)

    async def _put_mark(self, mark: DurabilityMark) -> None:
        await self._writer.run_exclusive(lambda: self._batches.put_mark(mark))


def _recover_or_create(
    files: Files, mark: DurabilityMark, first: Entry, segment_bytes: int, *, listed: bool
) -> Recovered:
    # If a listed group's mark claims nothing, its creation was cut short: no entry in its directory ever counted.
    begun = mark.index or mark.flags & SUSPECT or not listed
    recovered = recover(files, mark, segment_bytes) if begun else None
    if recovered is None:
        return create_log(files, mark.group, first, mark.count)
    if recovered.damage is None and recovered.segments[0].first_index == 1:
        segment = recovered.segments[0]
        try:
            header = locate(files, Span(segment.path, segment.sparse.positions[0], 1, 1), 1).header
        except CorruptData as error:  # recovery reads the newest segment alone, and this may be an older one
            recovered.damage = error.message
        else:
            if header.header_crc != first.header.header_crc:
                recovered.damage = "the log begins with another first entry than its group does"
    if not listed and recovered.damage is None:
        sync_directories(files, mark.group)
    return recovered
