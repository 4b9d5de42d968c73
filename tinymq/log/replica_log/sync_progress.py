"""How much of a log its writer has written and synced."""

from __future__ import annotations


class SyncProgress:
    """Changed by the log, on the loop; its reader looks at it.

    A sync batch covers the entries that the log holds when the batch takes its operations. Entries that are appended
    meanwhile belong to the next batch, and entries that are truncated meanwhile to none.
    """

    __slots__ = ("_in_batch", "durable_index", "synced_index")

    def __init__(self, last_index: int) -> None:
        self.durable_index = last_index  # entries up to here may be acknowledged; invariant: <= the log's last index
        # Entries up to here survive a power cut. invariant: <= durable_index, and equal unless syncs are at intervals
        self.synced_index = last_index
        self._in_batch = 0  # the batch that runs covers entries up to here; invariant: <= the log's last index

    def begin(self, last_index: int) -> None:
        """A sync batch takes all operations of the log, which ends with `last_index`."""
        self._in_batch = last_index

    def cut_from(self, index: int) -> None:
        """Entries from `index` on are gone. The batch that runs must not declare their successors durable."""
        self.durable_index = min(self.durable_index, index - 1)
        self.synced_index = min(self.synced_index, index - 1)
        self._in_batch = min(self._in_batch, index - 1)

    def synced(self) -> None:
        """The batch has synced the log."""
        self.synced_index = max(self.synced_index, self._in_batch)

    def written(self) -> bool:
        """The batch has written the log, and its entries may be acknowledged. Returns True if that is more than
        before."""
        rises = self._in_batch > self.durable_index
        self.durable_index = max(self.durable_index, self._in_batch)
        return rises
