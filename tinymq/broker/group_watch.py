"""The progress of consumer groups in the partitions that one broker leads, and the obstacles that they meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.broker.coordinator.coordinator import Coordinator
from tinymq.broker.dead_letters.burials import Burials
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.lag import lag_of
from tinymq.broker.serve.messages import read_record
from tinymq.broker.state.cursor import Cursor, CursorKind
from tinymq.broker.work.windows import Blocked, Obstacle
from tinymq.broker.work.workers import Workers
from tinymq.format.entry import iter_entries

READS_MAX = 16  # concurrent reads of append times from disk
REMEMBERED_MAX = 20_000  # append times in memory


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """One group in one partition, as the partition's leader has it."""

    group: str
    kind: CursorKind
    lag: int  # committed records that are not read, or not settled
    oldest_ms: int  # since the first of them was appended; 0: there is none
    leased: int = 0  # the rest is of queue groups
    staged: int = 0  # records whose acks wait for the end of a transaction
    waiting: int = 0  # records with a failed delivery that are not settled
    burying: int = 0  # records that are given up, and not in the dead letters yet
    workers: int = 0  # attached to the leader
    blocked: tuple[Blocked, ...] = ()


class _FirstUnsettled(NamedTuple):
    offset: int
    history: int  # of the log: an offset of another one may be another record
    append_us: int


class GroupWatch:
    """One per broker. All calls on the loop."""

    def __init__(self, broker: Broker, workers: Workers, burials: Burials, coordinator: Coordinator) -> None:
        self._broker = broker
        self._workers = workers
        self._burials = burials
        self._coordinator = coordinator
        self._append_times: dict[tuple[GroupId, str], _FirstUnsettled] = {}
        self._reading: dict[tuple[GroupId, str], asyncio.Task[None]] = {}

    async def stop(self) -> None:
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def coordinated(self) -> Iterator[tuple[str, int]]:
        """The stream groups that are coordinated here, by name, and how many members each has."""
        return self._coordinator.led()

    def progress(self, partition: Partition, name: str) -> GroupProgress:
        """The progress of a group with a cursor in a partition that is led here."""
        cursor = partition.state.cursors[name]
        lag = lag_of(partition.state, name, partition.log_start)
        oldest_ms = self._oldest_ms(partition, name, cursor) if lag else 0
        group = partition.state.queue_groups.by_name.get(name)
        if group is None:
            return GroupProgress(name, CursorKind(cursor.kind), lag, oldest_ms)
        leader, place = self._workers.leader(partition.group.id, name), partition.group.id
        window = leader.blocked if leader is not None else None
        stuck = self._burials.blocked(place, name)
        return GroupProgress(
            name,
            CursorKind.QUEUE,
            lag,
            oldest_ms,
            leased=len(leader.leases.leases) if leader is not None else 0,
            staged=len(group.staged),
            waiting=len(group.failures),
            burying=len(group.burials) + self._burials.given_up(place, name),
            workers=len(leader.attachments) if leader is not None else 0,
            blocked=(
                *((window,) if window is not None else ()),
                *((Blocked(Obstacle.BURIAL_BLOCKED, stuck),) if stuck else ()),
            ),
        )

    async def key_at(self, partition: Partition, offset: int) -> bytes | None:
        """The key of a record; None: it has none, or cannot be read."""
        try:
            return (await read_record(self._broker, partition, offset)).key
        except TinymqError:
            return None

    # ---- append times

    def _oldest_ms(self, partition: Partition, name: str, cursor: Cursor) -> int:
        """The age of the first record that is not settled.

        If it is not in memory, it is read from disk for the next call. Until then the retention index says how old it
        is at least.
        """
        key, offset = (partition.group.id, name), max(cursor.position, partition.log_start)
        history = partition.state.epoch_cache.newest_term
        known = self._append_times.get(key)
        if known is None or known[:2] != (offset, history):
            known = None
            frames = partition.group.log.reader.tail_from_offset(offset, offset + 1, 0)
            if frames is not None:
                known = self._remember(key, offset, history, frames)
            elif key not in self._reading and len(self._reading) < READS_MAX:
                task = asyncio.get_running_loop().create_task(self._read(partition, key, offset, history))
                self._reading[key] = task
        appended_us = known.append_us if known is not None else partition.state.retention_index.appended_by(offset)
        return max(0, partition.group.append_time_now_us() - appended_us) // 1000

    async def _read(self, partition: Partition, key: tuple[GroupId, str], offset: int, history: int) -> None:
        try:
            frames = await partition.group.log.reader.read_from_offset(offset, offset + 1, 0)
            self._remember(key, offset, history, frames)
        except TinymqError:
            pass  # it was removed meanwhile, or its damage is reported where it was found
        finally:
            del self._reading[key]

    def _remember(
        self, key: tuple[GroupId, str], offset: int, history: int, frames: bytes | memoryview
    ) -> _FirstUnsettled | None:
        for entry in iter_entries(frames):
            if len(self._append_times) >= REMEMBERED_MAX:
                self._append_times.clear()
            self._append_times[key] = found = _FirstUnsettled(offset, history, entry.header.append_time_us)
            return found
        return None
