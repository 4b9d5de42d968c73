"""Where the logs of Raft groups lie, and the contract of every engine.

tests/log/engine/test_storage_engine_contract.py holds the engines to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tinymq.base.errors import CorruptData
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.replica_log.log import Log
from tinymq.log.replica_log.log_config import LogConfig
from tinymq.log.segment.snapshot_files import Snapshot


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log, and what the state machine goes on from: `snapshot` includes all up to `applied_index` (0 and None: it
    begins with entry 1). With `damage`, nothing was changed on disk: the log ends before what is damaged, takes
    nothing, and must neither vote nor count unless `tail_intact`."""

    log: Log
    applied_index: int
    snapshot: bytes | None
    count: int  # incarnations of this group here: raised when it may have lost what it acknowledged
    damage: str | None
    tail_intact: bool


class StorageEngine(Protocol):
    """One broker's logs of one kind of storage. On the loop; raises StorageError.

    A log keeps its incarnation count until the engine may have lost what the log acknowledged: then the next opening
    has a higher one, durable on the disk before anything is answered under it (hazard 22).
    """

    outlives: bool  # logs survive the end of the process; else each process begins them anew, under another count

    async def open(self, group: GroupId, first_entry: Entry, config: LogConfig) -> OpenedLog:
        """Open the group's log, which is not open; where none is, begin one with `first_entry` (index 1). When it
        returns, what counts is as durable as it is going to be. Raises UnsupportedVersion, too."""
        ...

    def configure(self, log: Log, config: LogConfig) -> None:
        """From now on; `storage` stays as it is."""
        ...

    async def mark_damaged(self, log: Log, error: CorruptData) -> None:
        """A read found damage: `log` takes nothing more, and is found damaged when it is opened again. Durable."""
        ...

    async def raise_count(self, log: Log, count: int) -> None:
        """Close the log; opened again it has this incarnation count, and what it held. Durable."""
        ...

    async def quarantine(self, group: GroupId) -> None:
        """Close the group's log, which is damaged; nothing in it counts any more, and what is opened next begins with
        the first entry, under a higher count. Durable."""
        ...

    async def remove_quarantined(self, group: GroupId, commit: int) -> bool:
        """Remove what is kept of an earlier log of the group, unless that was known to be committed beyond `commit`.
        False when it still is there."""
        ...

    def has_quarantined(self, group: GroupId) -> bool:
        """Whether an earlier, damaged log of the group is kept. Blocks for a moment."""
        ...

    async def install(self, log: Log, applied: Snapshot) -> OpenedLog:
        """Replace the log by an empty one that begins behind `applied`; durable. The old one is closed, and nothing of
        it at or above `applied.index` may ever have been committed; a crash leaves the one or the other. When it
        raises the group has no open log, and opening finds the old one, or the new one."""
        ...

    async def close(self, log: Log) -> None:
        """Write what is left to write, and let go of the log."""
        ...

    async def delete(self, group: GroupId) -> None:
        """The group is gone for good, and all that was kept of it here; durable."""
        ...
