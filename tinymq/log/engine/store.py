"""A broker's data directory: its owner, terms and votes, and the logs of its Raft groups.

Opening decides what has survived: see recovery.py for one log, durability_marks.py and vote_store.py for the files that
all logs share.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tinymq.base.clock import Clock
from tinymq.base.config import Limits
from tinymq.base.errors import CorruptData, WrongBroker, WrongCluster
from tinymq.base.topic_config import Storage
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.boot_id import after_boot, read_boot
from tinymq.log.broker_files.broker_identity import (
    BrokerIdentity,
    read_identity,
    read_registry,
    write_identity,
    write_registry,
)
from tinymq.log.broker_files.durability_marks import SUSPECT, DurabilityMark, DurabilityMarks, LoadedMarks, load_marks
from tinymq.log.broker_files.vote_store import LoadedVotes, VoteFile, VoteStore, load_votes
from tinymq.log.engine.disk_engine import DiskEngine, DiskIncarnationCounts
from tinymq.log.engine.memory_engine import MemoryEngine
from tinymq.log.engine.storage_engine import OpenedLog, StorageEngine
from tinymq.log.files.files import Files, Lock
from tinymq.log.files.layout import GROUPS, LOCK, group_of
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.log_config import DISK, LogConfig
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.log.writer.sync_batch import SyncBatches
from tinymq.log.writer.writer import Writer

__all__ = ["OpenedLog", "Store"]

IDLE_MARK_S = 0.1
MARK_EVERY_S = 0.01  # to sync the marks with every batch would make that of a lone entry 40 % longer


@dataclass(frozen=True, slots=True)
class _Shared:
    """The files that all groups share, as found at opening."""

    lock: Lock
    identity: BrokerIdentity
    marks: DurabilityMarks
    vote_file: VoteFile
    votes: LoadedVotes


class Store:
    """One broker's data directory, which this process has locked. Lives on the loop."""

    def __init__(
        self,
        files: Files,
        runner: Runner,
        clock: Clock,
        limits: Limits,
        shared: _Shared,
        *,
        idle_mark_s: float,
        mark_every_s: float,
    ):
        self.identity = shared.identity
        self._changing_identity = asyncio.Lock()
        self.votes = VoteStore(dict(shared.votes.hard_states), lambda: self.writer.wake())
        batches = SyncBatches(files, shared.marks, shared.vote_file)
        self.writer = Writer(runner, clock, batches, self.votes, idle_mark_s=idle_mark_s, mark_every_s=mark_every_s)
        self._files = files
        self._runner = runner
        self._limits = limits
        self._lock = shared.lock
        self._marks = shared.marks
        self._logs: dict[GroupId, Log] = {}  # open ones
        self._engines: dict[GroupId, StorageEngine] = {}  # of the groups that this process has opened
        self.tails = TailBudget(limits.tail_cache_bytes_max)
        self._disk = DiskEngine(files, runner, self.writer, batches, self.tails)
        self._memory = MemoryEngine(
            DiskIncarnationCounts(files, self.writer, batches, self._disk.delete), limits, self.tails
        )

    @classmethod
    async def open(
        cls, files: Files, runner: Runner, clock: Clock, *, broker_id: int, limits: Limits, rng: random.Random,
        idle_mark_s: float = IDLE_MARK_S, mark_every_s: float = MARK_EVERY_S,
    ) -> Store:  # fmt: skip
        """Open the data directory, or set up a new one.

        Marks are synced after `idle_mark_s` without a write, and together with a write when `mark_every_s` have passed.
        Raises FolderInUse, WrongBroker, UnsupportedVersion, CorruptData (an unreadable identity), StorageError.
        """
        incarnation = rng.randbytes(16)
        shared = await runner.run(lambda: _open_shared(files, broker_id, incarnation))
        return cls(files, runner, clock, limits, shared, idle_mark_s=idle_mark_s, mark_every_s=mark_every_s)

    async def bind_cluster(self, cluster_id: bytes) -> None:
        """Store durably that the directory belongs to this cluster. Raises WrongCluster if it belongs to another."""
        if self.identity.cluster_id == cluster_id:
            return
        if self.identity.cluster_id is not None:
            raise WrongCluster(f"the data directory belongs to cluster {self.identity.cluster_id.hex()}")
        await self._change_identity(lambda identity: replace(identity, cluster_id=cluster_id))

    async def note_feature_level(self, level: int) -> None:
        """Store durably that the cluster is at `level`. From then on no build that does not know the level opens the
        directory. A level below the stored one changes nothing. Raises StorageError."""
        if level > self.identity.feature_level:
            await self._change_identity(lambda identity: replace(identity, feature_level=level))

    async def hold_feature_level(self, level: int) -> None:
        """Let the broker announce at most this level from now on, also after a restart; 0: no such bound. Raises
        StorageError."""
        if level != self.identity.held_level:
            await self._change_identity(lambda identity: replace(identity, held_level=level))

    async def _change_identity(self, changed: Callable[[BrokerIdentity], BrokerIdentity]) -> None:
        """Make one change at a time, each to the result of the previous one."""
        async with self._changing_identity:
            identity = changed(self.identity)
            await self._runner.run(lambda: write_identity(self._files, identity))
            self.identity = identity

    def note_registry(self, kind: str) -> str:
        """Return the kind of registry in which this directory's topics are. If none is stored yet, store `kind`
        durably.

        Blocks. Raises CorruptData, StorageError.
        """
        noted = read_registry(self._files)
        if noted is None:
            write_registry(self._files, kind)
        return noted or kind

    @property
    def groups_ever_opened(self) -> list[GroupId]:
        """Groups that were opened here and not deleted, even if their directory is lost."""
        return self._marks.groups()

    def list_groups(self) -> list[GroupId]:
        """Groups that have a directory. Blocks for a moment."""
        return _groups_on_disk(self._files)

    # Logs. The engine of a group's storage does the work; storage_engine.py has the contract.

    async def open_log(self, group: GroupId, first_entry: Entry, config: LogConfig = DISK) -> OpenedLog:
        assert group not in self._logs, group
        assert first_entry.index == 1, first_entry
        engine = self._engines[group] = self._disk if config.storage is Storage.DISK else self._memory
        opened = await engine.open(group, first_entry, self._bounded(config))
        self._logs[group] = opened.log
        return opened

    def configure(self, group: GroupId, config: LogConfig) -> None:
        """Use `config` for the group's log, if that is open and has not failed."""
        if (log := self._logs.get(group)) is not None and log.failed is None:
            self._engine(group).configure(log, self._bounded(config))

    async def mark_damaged(self, log: Log, error: CorruptData) -> None:
        await self._engine(log.group).mark_damaged(log, error)

    async def raise_count(self, group: GroupId, count: int) -> None:
        log = self._logs[group]
        assert count > log.count, (group, count, log.count)
        try:
            await self._engine(group).raise_count(log, count)
        finally:
            self._release_closed(log)

    async def quarantine(self, group: GroupId) -> None:
        self._release(group)
        await self._engine(group).quarantine(group)
        # Only now has the group another replica here. Until then, the votes of the old replica bind this broker.
        self.votes.forget(group)

    async def remove_quarantined(self, group: GroupId, commit: int) -> bool:
        return await self._engine(group).remove_quarantined(group, commit)

    def has_quarantined(self, group: GroupId) -> bool:
        return self._engine(group).has_quarantined(group)

    async def install(self, group: GroupId, snapshot: Snapshot) -> OpenedLog:
        log = self._logs[group]
        try:
            opened = await self._engine(group).install(log, snapshot)
        finally:
            self._release_closed(log)
        self._logs[group] = opened.log
        return opened

    async def close_log(self, group: GroupId) -> None:
        if (log := self._logs.pop(group, None)) is not None:
            await self._engine(group).close(log)

    async def delete_log(self, group: GroupId) -> None:
        """Delete the group's log, and its term and vote."""
        self._release(group)
        self.votes.forget(group)
        await self._engine(group).delete(group)
        self._engines.pop(group, None)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all logs in memory."""
        return self._memory.bytes

    def _engine(self, group: GroupId) -> StorageEngine:
        return self._engines.get(group, self._disk)

    def _release(self, group: GroupId) -> None:
        """Close the group's log if it is open. Its queued operations are not carried out."""
        if (log := self._logs.pop(group, None)) is not None:
            self.writer.drop(log)
            log.close()

    def _release_closed(self, log: Log) -> None:
        if log.closed and self._logs.get(log.group) is log:
            del self._logs[log.group]

    def _bounded(self, config: LogConfig) -> LogConfig:
        return replace(config, segment_bytes=min(config.segment_bytes, self._limits.segment_bytes))

    async def close(self) -> None:
        """Stop cleanly: everything is written and synced, marks included."""
        try:
            await self.writer.close()
        finally:
            self._lock.close()

    async def abandon(self) -> None:
        """Stop as a crash does: nothing more is written. For tests of crashes, and brokers whose disk has failed."""
        try:
            await self.writer.abandon()
        finally:
            self._lock.close()


def _open_shared(files: Files, broker_id: int, incarnation: bytes) -> _Shared:
    lock = files.lock(LOCK)
    try:
        identity = read_identity(files)
        on_disk = _groups_on_disk(files)
        if identity is None:
            if on_disk:
                raise CorruptData("the data directory has logs, but its broker.json is gone")
            identity = BrokerIdentity(broker_id, incarnation)
            marks = DurabilityMarks(files, LoadedMarks({}, 0, complete=True))
            votes = LoadedVotes({}, 0, amnesia=False)
            vote_file = VoteFile(files, votes)
            write_identity(files, identity)  # last: it completes the directory
            return _Shared(lock, identity, marks, vote_file, votes)
        if identity.broker_id != broker_id:
            if identity.cluster_id is not None or on_disk:
                raise WrongBroker(f"the data directory belongs to broker {identity.broker_id}, not {broker_id}")
            # The directory never came into a cluster, and has no log: it may have a new owner.
            identity = BrokerIdentity(broker_id, incarnation)
            write_identity(files, identity)
        votes = load_votes(files)
        boot = files.boot_id()
        same_boot = boot != b"" and boot == read_boot(files)
        loaded = _distrusted(load_marks(files), on_disk, amnesia=votes.amnesia, same_boot=same_boot)
        marks = DurabilityMarks(files, loaded)
        return _Shared(lock, identity, marks, VoteFile(files, votes), votes)
    except BaseException:
        lock.close()
        raise


def _distrusted(loaded: LoadedMarks, on_disk: list[GroupId], *, amnesia: bool, same_boot: bool) -> LoadedMarks:
    """The marks, adjusted to damage in other files. They are made durable before the files of votes are replaced:
    a start after a crash in between finds the amnesia again."""
    marks = dict(loaded.marks)
    if not loaded.complete:
        for group in on_disk:
            marks.setdefault(group, DurabilityMark(group, flags=SUSPECT))
    marks = {group: groups if same_boot else after_boot(groups) for group, groups in marks.items()}
    if amnesia:
        marks = {group: mark.raised_by_fault() for group, mark in marks.items()}
    return LoadedMarks(marks, loaded.number, loaded.complete)


def _groups_on_disk(files: Files) -> list[GroupId]:
    groups = (group_of(topic, name) for topic in files.list(GROUPS) for name in files.list(f"{GROUPS}/{topic}"))
    return [group for group in groups if group is not None]
