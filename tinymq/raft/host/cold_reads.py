"""Reads from disk for followers, beside the loop: entries that are not in memory, and snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from tinymq.base.errors import OffsetOutOfRange
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.segment.snapshot_files import Snapshot
from tinymq.raft.host.replicas import Replicas
from tinymq.raft.host.tick_schedule import TickSchedule
from tinymq.raft.replica.group import Group
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.roles.replication import APPEND_BYTES


class ColdReads:
    """The cold reads of all groups. A read that fails ends the replica, unless its log was replaced meanwhile."""

    def __init__(self, groups: Mapping[GroupId, Group], schedule: TickSchedule, replicas: Replicas) -> None:
        self._groups = groups
        self._schedule = schedule
        self._replicas = replicas

    def read(self, group: Group, peer: int, index: int) -> None:
        """Read entries from `index` on, for `peer`."""
        term = group.replica.current.leading_term
        assert term is not None
        self._schedule.spawn(self._read(group, group.replica, term, peer, index))

    async def _read(self, group: Group, replica: RaftReplica, term: int, peer: int, index: int) -> None:
        entries: list[Entry] = []
        try:
            entries = await group.log.reader.read(index, APPEND_BYTES)
        except OffsetOutOfRange:
            pass  # the head of the log was removed meanwhile: the follower gets the snapshot instead
        except Exception as error:
            self._failed(group, replica, error)
        if self._groups.get(group.id) is group:
            self._replicas.guarded(group, lambda: replica.entries_read(term, peer, index, entries))

    def read_snapshot(self, group: Group, peer: int) -> None:
        """Read the snapshot before the log's first entry, for `peer`."""
        term = group.replica.current.leading_term
        assert term is not None
        self._schedule.spawn(self._read_snapshot(group, group.replica, term, peer))

    async def _read_snapshot(self, group: Group, replica: RaftReplica, term: int, peer: int) -> None:
        state: Snapshot | None = None
        try:
            state = await group.log.reader.read_base_snapshot()
        except Exception as error:
            self._failed(group, replica, error)
        if self._groups.get(group.id) is group:
            self._replicas.guarded(group, lambda: replica.snapshot_read(term, state))

    def _failed(self, group: Group, replica: RaftReplica, error: Exception) -> None:
        if group.replica is replica:  # otherwise another log has taken its place, and that one is not damaged
            self._replicas.fail(group, error)
