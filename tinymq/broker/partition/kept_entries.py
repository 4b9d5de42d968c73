"""The first entry that a replica keeps for batches without offsets. Pure.

Entries that a replica has applied may not be synced on its own disk: in a topic that is synced at intervals, or while
the disk is slow. Suppose that such an entry publishes a batch, that the segment with the batch goes, and that a power
cut takes the entry: then the batch waits again, and is gone. So segments go only as far as a state allows whose entries
are all synced.
"""

from __future__ import annotations


class KeptEntries:
    """One object per replica."""

    def __init__(self) -> None:
        self._keep_from = 1  # as the newest state needs whose entries are all synced
        self._unsynced: tuple[int, int] | None = None  # (applied index, first entry to keep) of a later state

    def keep_from(self, applied_index: int, lowest_kept_index: int | None, synced_index: int) -> int | None:
        """The first entry to keep, for a state that is applied up to `applied_index` and needs the entries from
        `lowest_kept_index` on. None: the state is synced, and needs none. Called at each check of retention."""
        kept = applied_index + 1 if lowest_kept_index is None else lowest_kept_index
        if applied_index <= synced_index:
            self._keep_from, self._unsynced = kept, None
            return lowest_kept_index
        if self._unsynced is not None and self._unsynced[0] <= synced_index:
            self._keep_from, self._unsynced = self._unsynced[1], None
        if self._unsynced is None:
            self._unsynced = applied_index, kept
        return self._keep_from
