"""The local copy of a registry's state in ZooKeeper: it follows change by change, and reads everything after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from tinymq.base.errors import CorruptData
from tinymq.base.types import TopicId
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.state.codec import pack
from tinymq.registry.state.effects import Effect, Reloaded, TopicDeleted
from tinymq.registry.state.state import RegistryState
from tinymq.registry.zookeeper import tree
from tinymq.registry.zookeeper.session import Disconnected, ZookeeperSession
from tinymq.registry.zookeeper.tree import StoredChange

FOLLOWED_MAX = 256  # missing changes that are applied one by one; after more, everything is read
READS_MAX = 64  # reads under way at once
READINGS_MAX = 20  # attempts to read everything while other brokers change it

T = TypeVar("T")

logger = structlog.get_logger("tinymq.registry")


class StoredState:
    """`state`, and its place in ZooKeeper. All changes of the state go through this object."""

    def __init__(
        self, session: ZookeeperSession, state: RegistryState, on_effects: Callable[[Sequence[Effect]], None]
    ) -> None:
        self.state = state
        self.loaded = False  # everything was read at least once
        self.deleted: dict[TopicId, str] = {}  # names of nodes below /deleted, oldest first
        self._session = session
        self._on_effects = on_effects
        self._ahead = 0  # version of the node /version minus that of the state
        self._reading = asyncio.Lock()

    @property
    def node_version(self) -> int:
        """The version of the node /version at which its content matches `state`."""
        return self.state.version + self._ahead

    def apply(self, change: StoredChange) -> bool:
        """Apply a change. Returns False if the outcome differs from the stored one: then the states differ, too."""
        reply, effects = self.state.apply(change.command)
        for effect in effects:
            if isinstance(effect, TopicDeleted):
                self.deleted[effect.topic.topic_id] = tree.deleted_name(self.state.version, effect.topic.topic_id)
        while len(self.deleted) > len(self.state.deleted):
            del self.deleted[next(iter(self.deleted))]
        self._on_effects(effects)
        return reply == change.reply

    # The methods below raise Disconnected, Denied, CorruptData.

    async def refresh(self) -> None:
        """Bring `state` up to date with every write before this call."""
        await self._session.sync()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Bring `state` up to date with the connected server, and watch for more changes."""
        async with self._reading:
            base, node_version = await self._read_version()
            if base.version - self.state.version > FOLLOWED_MAX or not await self._follow(base.version):
                await self._load()
            elif base.version == self.state.version:
                self._ahead = node_version - base.version

    async def load(self) -> None:
        """Read the whole state."""
        async with self._reading:
            await self._load()

    async def _read_version(self) -> tuple[pb.State, int]:
        node = await self._session.get(tree.VERSION, watch=True)
        if node is None:
            raise CorruptData(f"{tree.VERSION} is gone from ZooKeeper", hint="restore it: the registry was removed")
        base = tree.unpack_version(node.data)
        if base.version < self.state.version:
            older = f"the registry in ZooKeeper is at version {base.version}, this broker at {self.state.version}"
            raise CorruptData(older, hint="an older registry was put in its place: restart the brokers on it")
        return base, node.version

    async def _follow(self, version: int) -> bool:
        """Apply the changes up to `version`. Returns False if one is missing, or has another outcome here."""
        missing = range(self.state.version + 1, version + 1)
        for start in range(0, len(missing), READS_MAX):
            some = missing[start : start + READS_MAX]
            nodes = await asyncio.gather(*(self._session.get(tree.change_path(each)) for each in some))
            for each, node in zip(some, nodes, strict=True):
                if node is None:
                    return False
                if not self.apply(tree.unpack_change(tree.change_name(each), node.data)):
                    logger.warning("registry_differs", version=self.state.version)
                    return False
        return True

    async def _load(self) -> None:
        for _ in range(READINGS_MAX):
            base, node_version = await self._read_version()
            topics = await self._read_all(tree.TOPICS, tree.unpack_topic)
            consumers = await self._read_all(tree.CONSUMERS, tree.unpack_consumers)
            changes = await self._read_all(tree.CHANGES, tree.unpack_change)
            records = await self._read_all(tree.RECORDS, tree.unpack_record)
            deleted = tree.deleted_names(await self._session.children(tree.DELETED))
            again, _ = await self._read_version()
            # The nodes were read one by one. They belong together only if no change was made meanwhile.
            if again.version != base.version or self.state.version > base.version:
                continue
            assigned = [each for some in consumers for each in some]
            self.state.load(pack(tree.contents_of(base, topics, assigned, deleted, changes, records)))
            self.loaded, self.deleted, self._ahead = True, deleted, node_version - base.version
            self._on_effects([Reloaded()])
            return
        raise Disconnected("the registry changes faster than it can be read", sent=False)

    async def _read_all(self, parent: str, unpack: Callable[[str, bytes], T]) -> list[T]:
        """The nodes below `parent`, by name. A node that goes meanwhile is left out; the version shows that."""

        async def read(name: str) -> T | None:  # unpacked one by one, so that other work gets its turn
            node = await self._session.get(f"{parent}/{name}")
            return unpack(name, node.data) if node is not None else None

        nodes = []
        names = await self._session.children(parent)
        for start in range(0, len(names), READS_MAX):
            nodes += await asyncio.gather(*map(read, names[start : start + READS_MAX]))
        return [each for each in nodes if each is not None]
