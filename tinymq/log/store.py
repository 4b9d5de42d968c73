"""A broker's data folder: whose it is, its ballots, and the logs of its Raft groups.

Opening decides what survived: see recovery.py for one log, marks.py and ballots.py for what all of them share.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tinymq.clock import Clock
from tinymq.config import Limits
from tinymq.entry import Entry
from tinymq.errors import CorruptData, WrongBroker, WrongCluster
from tinymq.log.ballots import BallotFile, Ballots, LoadedBallots, load_ballots
from tinymq.log.files import Files, Lock
from tinymq.log.identity import Identity, read_identity, write_identity
from tinymq.log.layout import GROUPS, LOCK, SEGMENT, group_folder, group_of, in_group, topic_folder
from tinymq.log.log import Log
from tinymq.log.marks import DELETING, FORGOTTEN, SUSPECT, TAIL_LOST, LoadedMarks, Mark, Marks, load_marks
from tinymq.log.reads import Span, locate
from tinymq.log.recovery import Recovered, recover
from tinymq.log.runner import Runner
from tinymq.log.segment import Segment, SegmentHeader, pack_segment_header
from tinymq.log.writer import Rounds, Writer
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

    async def open_log(self, group: GroupId, first_entry: Entry) -> OpenedLog:
        """Open the group's log; where none ever was, or its folder was lost, begin one with `first_entry` (index 1).
        When it returns, what counts is durable. Raises StorageError, UnsupportedVersion."""
        assert group not in self._logs, group
        assert first_entry.index == 1, first_entry
        mark = self._marks.get(group)
        if mark is not None and mark.flags & DELETING:
            await self._runner.run(lambda: self._files.remove_tree(group_folder(group)))
        if mark is not None and mark.index and not self._files.exists(group_folder(group)):
            mark = Mark(group, count=mark.count + 1)
            await self._put_mark(mark)  # durable before a new log exists that could be taken for the lost one
        before = mark or Mark(group)
        segment_bytes = self._limits.segment_bytes
        recovered = await self._runner.run(
            lambda: _recover_or_create(self._files, before, first_entry, segment_bytes, listed=mark is not None)
        )
        count = before.count
        if recovered.damage is not None and not recovered.tail_intact and not before.flags & TAIL_LOST:
            count += 1
            await self._put_mark(replace(before, count=count, flags=before.flags | TAIL_LOST))
        log = Log(
            group, self._files, self._runner, self.writer, recovered, count=count, commit=before.commit,
            segment_bytes=segment_bytes, tail_bytes_max=self._limits.tail_cache_bytes_max,
        )  # fmt: skip
        if recovered.damage is None:
            if (after := log.mark()) != before or mark is None:
                await self._put_mark(after)
        else:
            log.failed = CorruptData(recovered.damage)
        self._logs[group] = log
        return OpenedLog(
            log, recovered.applied_index, recovered.state, count, recovered.damage, recovered.tail_intact
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
        if (log := self._logs.pop(group, None)) is not None:
            log.close()
            self.writer.drop(log)

        def delete() -> None:
            self._rounds.forget(group_folder(group))
            mark = self._marks.get(group)
            if mark is not None:  # first: a crash in the middle of the removal is no damage
                self._marks.write([replace(mark, flags=mark.flags | DELETING)])
                self._marks.sync()
            self._files.remove_tree(group_folder(group))
            if self._files.exists(topic_folder(group)):
                self._files.sync_folder(topic_folder(group))
                if not self._files.list(topic_folder(group)):
                    self._files.remove_tree(topic_folder(group))
                    self._files.sync_folder(GROUPS)
            if mark is not None:
                self._marks.write([Mark(group, flags=FORGOTTEN)])
                self._marks.sync()

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
        def put() -> None:
            self._marks.write([mark])
            self._marks.sync()

        await self.writer.alone(put)


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
        marks = Marks(files, _distrusted(load_marks(files), on_disk, ballots.amnesia))
        return _Shared(lock, identity, marks, BallotFile(files, ballots), ballots)
    except BaseException:
        lock.close()
        raise


def _distrusted(loaded: LoadedMarks, on_disk: list[GroupId], amnesia: bool) -> LoadedMarks:
    """The marks with what damage elsewhere means for them. They are made durable before the ballots are written
    anew: a crash in between finds the amnesia again."""
    marks = dict(loaded.marks)
    if not loaded.complete:
        for group in on_disk:
            marks.setdefault(group, Mark(group, flags=SUSPECT))
    if amnesia:
        marks = {group: replace(mark, count=mark.count + 1) for group, mark in marks.items()}
    return LoadedMarks(marks, loaded.number, loaded.complete)


def _groups_on_disk(files: Files) -> list[GroupId]:
    found = (group_of(topic, name) for topic in files.list(GROUPS) for name in files.list(f"{GROUPS}/{topic}"))
    return [group for group in found if group is not None]


def _recover_or_create(files: Files, mark: Mark, first: Entry, segment_bytes: int, *, listed: bool) -> Recovered:
    recovered = recover(files, mark, segment_bytes)
    created = recovered is None
    if recovered is None:
        return _create(files, mark.group, first)
    if recovered.damage is None and recovered.segments[0].first_index == 1:
        segment = recovered.segments[0]
        found = locate(files, Span(segment.path, segment.sparse.positions[0], 1, 1), 1).header
        if found.header_crc != first.header.header_crc:
            recovered.damage = "the log begins with another first entry than its group does"
    if (created or not listed) and recovered.damage is None:
        _sync_folders(files, mark.group)
    return recovered


def _create(files: Files, group: GroupId, first: Entry) -> Recovered:
    """A log that holds `first` alone; durable."""
    folder = group_folder(group)
    files.remove_tree(folder)  # of a creation that was cut short, before anything was answered
    files.make_folder(folder)
    header = SegmentHeader(group, 1, first.header.base_offset, 0, 0)
    segment = Segment(header, in_group(folder, 1, SEGMENT))
    file = files.open(segment.path, create=True)
    try:
        file.write(0, [pack_segment_header(header), first.head, first.payload])
        files.sync([file])
    finally:
        file.close()
    _sync_folders(files, group)
    segment.append(first.header)
    recovered = Recovered(segments=[segment])
    recovered.runs.note(first.index, first.term)
    return recovered


def _sync_folders(files: Files, group: GroupId) -> None:
    for folder in (group_folder(group), topic_folder(group), GROUPS, ""):
        files.sync_folder(folder)
