"""A fake Raft host for ReplicaHost: opens fake groups, and remembers which have data."""

from __future__ import annotations

import asyncio

from tests.fakes.raft_group import FakeGroup
from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log import LogConfig


class FakeGroups:
    """`on_disk` survives; `open` does not."""

    def __init__(self) -> None:
        self.open: dict[GroupId, FakeGroup] = {}
        self.on_disk: dict[GroupId, Entry] = {}
        self.configs: dict[GroupId, LogConfig] = {}
        self.refuse: TinymqError | None = None
        self.gate = asyncio.Event()  # openings and deletions wait for this event
        self.gate.set()

    async def open_group(self, group_id: GroupId, first_entry: Entry, machine: object, config: LogConfig) -> FakeGroup:
        await self.gate.wait()
        if self.refuse is not None:
            raise self.refuse
        assert group_id not in self.open
        self.on_disk[group_id] = first_entry
        self.configs[group_id] = config
        group = self.open[group_id] = FakeGroup(machine, group_id)
        return group

    def configure_group(self, group_id: GroupId, config: LogConfig) -> None:
        self.configs[group_id] = config

    async def close_group(self, group_id: GroupId) -> None:
        del self.open[group_id]

    async def delete_group(self, group_id: GroupId) -> None:
        await self.gate.wait()
        self.open.pop(group_id, None)
        self.on_disk.pop(group_id, None)
