"""The contract of a storage engine: it opens, replaces and removes the logs of one kind of storage.

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
    """A log, and the snapshot from which the state machine continues.

    The snapshot includes everything up to `applied_index`. Without one (None and 0) the state machine begins with entry
    1. With `damage`, nothing was changed on disk: the log ends before the damage and accepts nothing, and the replica
    must neither vote nor count unless `tail_intact`.
    """

    log: Log
    applied_index: int
    snapshot: bytes | None
    count: int  # incarnations of this group here: raised when it may have lost acknowledged entries
    damage: str | None
    tail_intact: bool


class StorageEngine(Protocol):
    """One broker's logs of one kind of storage. On the loop; every method may raise StorageError.

    A log keeps its incarnation count as long as no acknowledged entry can be lost. If one may be lost, the next opening
    has a higher count, which is durable on the disk before any answer is given under it (hazard 22).
    """

    outlives: bool  # logs survive the end of the process; False: each process begins with new ones, under new counts

    async def open(self, group: GroupId, first_entry: Entry, config: LogConfig) -> OpenedLog:
        """Open the group's log, or begin one with `first_entry` (index 1) if there is none. The log must not be open.

        When this returns, every entry of the log is as durable as its storage makes it. Raises UnsupportedVersion, too.
        """
        ...

    def configure(self, log: Log, config: LogConfig) -> None:
        """Use `config` from now on. `storage` is as before."""
        ...

    async def mark_damaged(self, log: Log, error: CorruptData) -> None:
        """Stop `log`, in which a read found damage. Its next opening finds it damaged, too. Durable."""
        ...

    async def raise_count(self, log: Log, count: int) -> None:
        """Close the log, and give it this incarnation count. Its next opening finds the same entries. Durable."""
        ...

    async def quarantine(self, group: GroupId) -> None:
        """Close the group's log, which is damaged, and move its files to quarantine. The log that is opened next begins
        with the first entry, under a higher count. Durable."""
        ...

    async def remove_quarantined(self, group: GroupId, commit: int) -> bool:
        """Remove an earlier log of the group from quarantine. Returns False, and keeps the log, if it was known to be
        committed beyond `commit`."""
        ...

    def has_quarantined(self, group: GroupId) -> bool:
        """Whether an earlier, damaged log of the group is in quarantine. Blocks for a moment."""
        ...

    async def install(self, log: Log, snapshot: Snapshot) -> OpenedLog:
        """Replace the log by an empty one that begins behind `snapshot`; durable.

        The old log is closed. None of its entries at or above the snapshot's index may ever have been committed. A
        crash leaves the old log or the new one. If this raises, the group has no open log, and opening finds one of the
        two.
        """
        ...

    async def close(self, log: Log) -> None:
        """Write the log's queued operations, and close it."""
        ...

    async def delete(self, group: GroupId) -> None:
        """Remove everything that is stored of the group, for good; durable."""
        ...
