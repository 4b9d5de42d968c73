"""A broker's data folder: whose it is, its ballots, and the logs of its Raft groups.

Opening decides what survived: see recovery.py for one log, marks.py and ballots.py for what all of them share.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from tinymq.clock import Clock
from tinymq.config import Limits
from tinymq.entry import Entry
from tinymq.errors import CorruptData, WrongBroker, WrongCluster
from tinymq.log.aside import aside_commit, has_aside, prepare_aside, remove_aside, settle
from tinymq.log.ballots import BallotFile, Ballots, LoadedBallots, load_ballots
from tinymq.log.boots import after_boot, read_boot
from tinymq.log.creation import begin_behind, create_log, mark_behind, remove_below, sync_folders
from tinymq.log.files import Files, Lock
from tinymq.log.identity import Identity, read_identity, write_identity
from tinymq.log.layout import GROUPS, LOCK, group_folder, group_of, topic_folder
from tinymq.log.log import Log
from tinymq.log.log_config import DISK, LogConfig
from tinymq.log.marks import (
    ASIDE,
    DAMAGED,
    DELETING,
    FORGOTTEN,
    SUSPECT,
    TAIL_LOST,
    LoadedMarks,
    Mark,
    Marks,
    load_marks,
)  # fmt: skip
from tinymq.log.reads import Span, locate
from tinymq.log.recovery import Recovered, recover
from tinymq.log.round import Rounds
from tinymq.log.runner import Runner
from tinymq.log.states import AppliedState
from tinymq.log.writer import Writer
from tinymq.types import GroupId

IDLE_MARK_S = 0.1
MARK_EVERY_S = 0.01  # taking the marks along in every sync makes a lone write's 40 % longer


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log, and what the state machine goes on from: `state` includes all up to `applied_index` (0 and None: it
    begins with entry 1). With `damage`, nothing was changed on disk: the log ends before what is damaged, takes
    nothing, and must neither vote nor count unless `tail_intact`."""

    log: Log
    applied_index: int
    state: bytes | None
    count: int  # incarnations of this group here: raised when it may have lost what it acknowledged
    damage: str | None
    tail_intact: bool


@dataclass(frozen=True, slots=True)
class _Shared:
    """What opening found of the files that all groups share."""

    lock: Lock
    identity: Identity
    marks: Marks
    ballot_file: BallotFile
    ballots: LoadedBallots


class Store:
    """One broker's data folder, held by this process alone while it is open. Lives on the loop."""

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
        self.ballots = Ballots(dict(shared.ballots.ballots), lambda: self.writer.wake())
        self._rounds = Rounds(files, shared.marks, shared.ballot_file)
        self.writer = Writer(
            runner, clock, self._rounds, self.ballots, idle_mark_s=idle_mark_s, mark_every_s=mark_every_s
        )
        self._files = files
        self._runner = runner
        self._limits = limits
        self._lock = shared.lock
        self._marks = shared.marks
        self._logs: dict[GroupId, Log] = {}

    @classmethod
    async def open(
        cls, files: Files, runner: Runner, clock: Clock, *, broker_id: int, limits: Limits, rng: random.Random,
        idle_mark_s: float = IDLE_MARK_S, mark_every_s: float = MARK_EVERY_S,
    ) -> Store:  # fmt: skip
        """Open the folder, or make a new one. Marks are synced after `idle_mark_s` without a write, and with a write
        when `mark_every_s` have passed. Raises FolderInUse, WrongBroker, UnsupportedVersion, CorruptData (an
        unreadable identity), StorageError."""
        incarnation = rng.randbytes(16)
        shared = await runner.run(lambda: _open_shared(files, broker_id, incarnation))
        return cls(files, runner, clock, limits, shared, idle_mark_s=idle_mark_s, mark_every_s=mark_every_s)

    async def form(self, cluster_id: bytes) -> None:
        """The folder belongs to this cluster from now on; durable. Raises WrongCluster when it has another."""
        if self.identity.cluster_id == cluster_id:
            return
        if self.identity.cluster_id is not None:
            raise WrongCluster(f"the data folder belongs to cluster {self.identity.cluster_id.hex()}")
        identity = replace(self.identity, cluster_id=cluster_id)
        await self._runner.run(lambda: write_identity(self._files, identity))
        self.identity = identity

    @property
    def groups_ever_opened(self) -> list[GroupId]:
        """Groups that were opened here and not deleted, whether their folder is still there or not."""
        return self._marks.groups()

    def list_groups(self) -> list[GroupId]:
        """Groups that have a folder. Blocks for a moment."""
        return _groups_on_disk(self._files)

    # Logs

    async def open_log(self, group: GroupId, first_entry: Entry, config: LogConfig = DISK) -> OpenedLog:
        """Open the group's log; where none ever was, or its folder was lost, begin one with `first_entry` (index 1).
        When it returns, what counts is durable. Raises StorageError, UnsupportedVersion."""
        config = self._bounded(config)
        assert group not in self._logs, group
        assert first_entry.index == 1, first_entry
        mark = self._marks.get(group)
        if mark is not None and mark.flags & (SUSPECT | DELETING | ASIDE):
            mark = await self.writer.alone(partial(settle, self._files, mark, self._rounds.put_mark))
        if mark is not None and mark.index and not self._files.exists(group_folder(group)):
            mark = Mark(group, count=mark.count + 1)
            await self._put_mark(mark)  # durable before a new log exists that could be taken for the lost one
        before = mark or Mark(group)
        segment_bytes = config.segment_bytes
        recovered = await self._runner.run(
            lambda: _recover_or_create(self._files, before, first_entry, segment_bytes, listed=mark is not None)
        )
        count = before.count
        if recovered.damage is not None and not recovered.tail_intact and not before.flags & TAIL_LOST:
            count += 1
            await self._put_mark(replace(before, count=count, flags=before.flags | TAIL_LOST))
        log = self._log(group, recovered, config, count=count, commit=before.commit)
        if recovered.damage is None:
            if (after := log.mark()) != before or mark is None:
                await self._put_mark(after)
        else:
            log.failed = CorruptData(recovered.damage)
        self._logs[group] = log
        return OpenedLog(
            log, recovered.applied_index, recovered.state, count, recovered.damage, recovered.tail_intact
        )  # fmt: skip

    async def quarantine(self, log: Log, error: CorruptData) -> None:
        """A read found damage: `log` takes nothing more, and is found damaged when it is opened again. Durable.
        Raises StorageError."""
        self.writer.drop(log)
        log.fail(error)

        def put() -> None:
            mark = self._marks.get(log.group)
            if mark is not None and self._logs.get(log.group) is log:
                self._rounds.put_mark(replace(mark, flags=mark.flags | DAMAGED))

        await self.writer.alone(put)

    async def raise_count(self, group: GroupId, count: int) -> None:
        """Close the group's log; opened again it has this incarnation count. Durable. Raises StorageError."""
        log = self._logs[group]
        assert count > log.count, (group, count, log.count)
        await self.writer.barrier()
        if log.failed is not None:
            raise log.failed
        mark = replace(log.mark(), count=count)
        self._let_go(group)

        def put() -> None:
            self._rounds.forget(group_folder(group))
            self._rounds.put_mark(mark)

        await self.writer.alone(put)

    async def set_aside(self, group: GroupId) -> None:
        """Close the group's log, which is damaged; nothing in it counts any more, and its count is raised. Durable.
        `open_log` then begins a new one, and keeps the files of this one aside. Raises StorageError."""
        self._let_go(group)

        def put() -> None:
            self._rounds.forget(group_folder(group))
            mark = self._marks.get(group) or Mark(group)
            flags = DELETING if has_aside(self._files, group) else ASIDE
            if flags == ASIDE:
                prepare_aside(self._files, group, mark.commit)
            self._rounds.put_mark(Mark(group, count=mark.count + 1, flags=flags))

        await self.writer.alone(put)
        self.ballots.forget(group)  # not before: what comes now is another replica, and bound by no vote of this one

    async def remove_aside(self, group: GroupId, commit: int) -> bool:
        """Remove what is kept of an earlier log of the group, unless that was known to be committed beyond `commit`.
        False when it still is there. Raises StorageError."""

        def remove() -> bool:
            if aside_commit(self._files, group) > commit:
                return False
            remove_aside(self._files, group)
            return True

        return await self.writer.alone(remove)

    def has_aside(self, group: GroupId) -> bool:
        """Whether an earlier, damaged log of the group is kept. Blocks for a moment."""
        return has_aside(self._files, group)

    async def install(self, group: GroupId, applied: AppliedState) -> OpenedLog:
        """Replace the group's log by an empty one that begins behind `applied`; durable. The old one is closed, and
        nothing of it at or above `applied.index` may ever have been committed; a crash leaves the one or the other.
        Raises StorageError; then the group has no open log, and opening finds the old one, or the new one."""
        log = self._logs[group]
        if log.last_index >= applied.index:
            log.truncate_from(applied.index)
        await self.writer.barrier()
        if log.failed is not None:
            raise log.failed
        count, config = log.count, log.config
        self._let_go(group)

        def install() -> Recovered:
            self._rounds.forget(group_folder(group))
            recovered = begin_behind(self._files, group, applied)
            self._rounds.put_mark(mark_behind(group, applied, count))
            remove_below(self._files, group, applied.index + 1)
            return recovered

        recovered = await self.writer.alone(install)
        self._logs[group] = log = self._log(group, recovered, config, count=count, commit=applied.index)
        return OpenedLog(log, applied.index, applied.data, count, None, True)

    def _let_go(self, group: GroupId) -> None:
        """Close the group's log, if it is open; what it still has to write is not."""
        if (log := self._logs.pop(group, None)) is not None:
            self.writer.drop(log)
            log.close()

    def configure(self, group: GroupId, config: LogConfig) -> None:
        """From now on, if the group's log is open."""
        if (log := self._logs.get(group)) is not None and log.failed is None:
            log.configure(self._bounded(config))
            self.writer.add(log)  # what was to be synced some time may have to be now

    def _bounded(self, config: LogConfig) -> LogConfig:
        return replace(config, segment_bytes=min(config.segment_bytes, self._limits.segment_bytes))

    def _log(self, group: GroupId, recovered: Recovered, config: LogConfig, *, count: int, commit: int) -> Log:
        return Log(
            group, self._files, self._runner, self.writer, recovered, count=count, commit=commit, config=config,
            tail_bytes_max=self._limits.tail_cache_bytes_max,
        )  # fmt: skip

    async def close_log(self, group: GroupId) -> None:
        """Write what is left to write, and let go of the log."""
        log = self._logs.pop(group, None)
        if log is None:
            return
        await self.writer.drain()
        self.writer.drop(log)
        mark = log.mark() if log.failed is None else None
        log.close()

        def close() -> None:
            self._rounds.forget(group_folder(group))
            if mark is not None:
                self._marks.write([mark])

        await self.writer.alone(close)

    async def delete_log(self, group: GroupId) -> None:
        """The group is gone for good: its folder, its ballot, and its place in the marks; durable."""
        self._let_go(group)

        def delete() -> None:
            self._rounds.forget(group_folder(group))
            mark = self._marks.get(group)
            if mark is not None:  # first: a crash in the middle of the removal is no damage
                self._rounds.put_mark(replace(mark, flags=mark.flags | DELETING))
            remove_aside(self._files, group)
            self._files.remove_tree(group_folder(group))
            if self._files.exists(topic_folder(group)):
                self._files.sync_folder(topic_folder(group))
                if not self._files.list(topic_folder(group)):
                    self._files.remove_tree(topic_folder(group))
                    self._files.sync_folder(GROUPS)
            if mark is not None:
                self._rounds.put_mark(Mark(group, flags=FORGOTTEN))

        self.ballots.forget(group)
        await self.writer.alone(delete)

    async def close(self) -> None:
        """Clean stop: everything is written and synced, marks included."""
        try:
            await self.writer.close()
        finally:
            self._lock.close()

    async def abandon(self) -> None:
        """Stop as a crash would: nothing more is written. For tests of crashes, and for a broker whose disk failed."""
        try:
            await self.writer.abandon()
        finally:
            self._lock.close()

    async def _put_mark(self, mark: Mark) -> None:
        await self.writer.alone(lambda: self._rounds.put_mark(mark))


def _open_shared(files: Files, broker_id: int, incarnation: bytes) -> _Shared:
    lock = files.lock(LOCK)
    try:
        identity = read_identity(files)
        on_disk = _groups_on_disk(files)
        if identity is None:
            if on_disk:
                raise CorruptData("the data folder has logs, but its broker.json is gone")
            identity = Identity(broker_id, incarnation)
            marks = Marks(files, LoadedMarks({}, 0, complete=True))
            ballots = LoadedBallots({}, 0, amnesia=False)
            ballot_file = BallotFile(files, ballots)
            write_identity(files, identity)  # last: with it the folder is whole
            return _Shared(lock, identity, marks, ballot_file, ballots)
        if identity.broker_id != broker_id:
            raise WrongBroker(f"the data folder belongs to broker {identity.broker_id}, not {broker_id}")
        ballots = load_ballots(files)
        boot = files.boot_id()
        same_boot = boot != b"" and boot == read_boot(files)
        loaded = _distrusted(load_marks(files), on_disk, amnesia=ballots.amnesia, same_boot=same_boot)
        marks = Marks(files, loaded)
        return _Shared(lock, identity, marks, BallotFile(files, ballots), ballots)
    except BaseException:
        lock.close()
        raise


def _distrusted(loaded: LoadedMarks, on_disk: list[GroupId], *, amnesia: bool, same_boot: bool) -> LoadedMarks:
    """The marks with what damage elsewhere means for them. They are made durable before the ballots are written
    anew: a crash in between finds the amnesia again."""
    marks = dict(loaded.marks)
    if not loaded.complete:
        for group in on_disk:
            marks.setdefault(group, Mark(group, flags=SUSPECT))
    marks = {group: found if same_boot else after_boot(found) for group, found in marks.items()}
    if amnesia:
        marks = {group: replace(mark, count=mark.count + 1) for group, mark in marks.items()}
    return LoadedMarks(marks, loaded.number, loaded.complete)


def _groups_on_disk(files: Files) -> list[GroupId]:
    found = (group_of(topic, name) for topic in files.list(GROUPS) for name in files.list(f"{GROUPS}/{topic}"))
    return [group for group in found if group is not None]


def _recover_or_create(files: Files, mark: Mark, first: Entry, segment_bytes: int, *, listed: bool) -> Recovered:
    begun = mark.index or mark.flags & SUSPECT or not listed
    recovered = recover(files, mark, segment_bytes) if begun else None  # else nothing that is there ever counted
    if recovered is None:
        return create_log(files, mark.group, first, mark.count)
    if recovered.damage is None and recovered.segments[0].first_index == 1:
        segment = recovered.segments[0]
        try:
            found = locate(files, Span(segment.path, segment.sparse.positions[0], 1, 1), 1).header
        except CorruptData as error:  # opening reads the newest segment alone, and this may be an older one
            recovered.damage = error.message
        else:
            if found.header_crc != first.header.header_crc:
                recovered.damage = "the log begins with another first entry than its group does"
    if not listed and recovered.damage is None:
        sync_folders(files, mark.group)
    return recovered
