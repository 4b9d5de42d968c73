"""How far a log is known to be committed: as it was told, and as its disk knows it; and which disks are to know soon.

A commit index goes to disk with the marks, whenever these do: a restart learns it from its leader, too. Now and then
something rests on it (docs/adr/0022): then it is written and synced at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from tinymq.base.types import GroupId


class CommitProgress:
    """Of one log. invariant: durable <= known"""

    __slots__ = ("_wanted", "durable", "known")

    def __init__(self, recovered: int) -> None:
        self.known = recovered
        self.durable = recovered  # at least so much is known after a crash, a power cut's too
        self._wanted = 0

    def learn(self, index: int) -> bool:
        """True when that is news."""
        news = index > self.known
        self.known = max(self.known, index)
        return news

    def want(self, index: int) -> None:
        """The disk is to know of `index` as soon as that is known at all."""
        self._wanted = max(self._wanted, index)

    def keep(self, index: int) -> bool:
        """The disk knows. True when that is news."""
        news = index > self.durable
        self.durable = max(self.durable, index)
        return news

    @property
    def pressing(self) -> bool:
        return self.durable < self._wanted <= self.known


class CommitStorage(Protocol):
    """What this room needs of a log."""

    group: GroupId
    commit: CommitProgress

    def kept(self, commit: int) -> None:
        """Its disk knows that all up to there is committed."""
        ...


class UrgentCommits:
    """Logs whose disk is to know of a commit soon, for the writer. A round may come too early for one of them, and a
    disk without room for new marks puts it off: the next round tries again."""

    def __init__(self) -> None:
        self.due = False  # a round is wanted for them
        self._logs: dict[GroupId, CommitStorage] = {}

    def __bool__(self) -> bool:
        return bool(self._logs)

    def __iter__(self) -> Iterator[CommitStorage]:
        return iter(self._logs.values())

    def add(self, log: CommitStorage) -> None:
        if log.commit.pressing:
            self._logs[log.group] = log
            self.due = True

    def drop(self, log: CommitStorage) -> None:
        """It is of no more interest."""
        if self._logs.get(log.group) is log:
            del self._logs[log.group]

    def take(self) -> dict[GroupId, int]:
        """A round begins: what marks are to say."""
        self.due = False
        return {group: log.commit.known for group, log in self._logs.items()}

    def ended(self, kept: Mapping[GroupId, int], synced: Collection[CommitStorage]) -> None:
        """It ended: what marks say now, on the disk. Who was synced by it has a higher mark to say it with."""
        for group, log in list(self._logs.items()):
            log.kept(kept.get(group, 0))
            if not log.commit.pressing:
                self._logs.pop(group, None)
            elif log in synced:
                self.due = True
