"""How far a log is known to be committed, in memory and on its disk.

A commit index reaches the disk with the durability marks, whenever a batch writes them: after a restart the leader
tells it anyway. Sometimes a decision rests on it (docs/adr/0022). Then it is written and synced at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from tinymq.base.types import GroupId


class CommitProgress:
    """Commit indexes of one log. The replica raises `known`, the writer `durable`."""

    __slots__ = ("_required", "durable", "known")

    def __init__(self, recovered: int) -> None:
        self.known = recovered
        self.durable = recovered  # known after a crash or power cut, too; invariant: <= known
        self._required = 0  # the disk has to know this index as soon as the log does

    def advance(self, index: int) -> bool:
        """The log learns of a commit. Returns True if that is news."""
        rises = index > self.known
        self.known = max(self.known, index)
        return rises

    def require(self, index: int) -> None:
        """Make the commit of `index` urgent, once it is known."""
        self._required = max(self._required, index)

    def synced(self, index: int) -> bool:
        """Note that the commit index is on the disk. Returns True if that is news."""
        rises = index > self.durable
        self.durable = max(self.durable, index)
        return rises

    @property
    def urgent(self) -> bool:
        """Whether the disk has to know more than it does, and the log knows it."""
        return self.durable < self._required <= self.known


class CommitStorage(Protocol):
    """The part of a log that UrgentCommits needs."""

    group: GroupId
    commit: CommitProgress

    def commit_synced(self, index: int) -> None:
        """The log's disk knows that everything up to `index` is committed."""
        ...


class UrgentCommits:
    """The logs whose disk has to know of a commit soon. The writer owns it.

    A sync batch may be too early for one of them, or the disk may have no room for new marks. The log stays listed, and
    the next batch tries again.
    """

    def __init__(self) -> None:
        self.due = False  # a sync batch has to run for them
        self._logs: dict[GroupId, CommitStorage] = {}

    def __bool__(self) -> bool:
        return bool(self._logs)

    def __iter__(self) -> Iterator[CommitStorage]:
        return iter(self._logs.values())

    def add(self, log: CommitStorage) -> None:
        """List the log if its commit is urgent."""
        if log.commit.urgent:
            self._logs[log.group] = log
            self.due = True

    def drop(self, log: CommitStorage) -> None:
        """Forget a log that is closed."""
        if self._logs.get(log.group) is log:
            del self._logs[log.group]

    def take(self) -> dict[GroupId, int]:
        """A sync batch begins. Returns the commit indexes that its marks have to say."""
        self.due = False
        return {group: log.commit.known for group, log in self._logs.items()}

    def ended(self, durable: Mapping[GroupId, int], synced: Collection[CommitStorage]) -> None:
        """The sync batch has ended. `durable` has the commit indexes in the marks on the disk, and `synced` the logs
        that the batch synced.
        """
        for group, log in list(self._logs.items()):
            log.commit_synced(durable.get(group, 0))
            if not log.commit.urgent:
                self._logs.pop(group, None)
            elif log in synced:
                # A mark says no commit above its own index. The batch has raised what the next mark may say.
                self.due = True
