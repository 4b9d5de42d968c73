"""The snapshots that a log keeps, from the state machine's dump to the disk."""

from __future__ import annotations


class SnapshotTracker:
    """Snapshots by the index of the last entry that they include.

    Each one is saved by the state machine, queued for the writer once its entries are synced, taken by a sync batch,
    and then durable:

        saved → queued → taken → durable
    """

    __slots__ = ("_queued", "_saved", "_taken", "durable")

    def __init__(self, durable: set[int]) -> None:
        self.durable = durable
        self._saved: dict[int, bytes] = {}  # packed; they wait for their entries to be synced
        self._queued: list[int] = []
        self._taken: list[int] = []

    def has(self, index: int) -> bool:
        """Whether there is a snapshot of `index`, however far it has come."""
        return index in self.durable or index in self._saved or index in self._queued or index in self._taken

    def save(self, index: int, packed: bytes) -> None:
        """Keep the packed snapshot until `queue` returns it."""
        self._saved[index] = packed

    def queue(self, synced_index: int) -> list[tuple[int, bytes]]:
        """Return the snapshots to write now: all whose entries are synced."""
        if not self._saved:
            return []
        ready = [(index, self._saved.pop(index)) for index in list(self._saved) if index <= synced_index]
        self._queued += [index for index, _ in ready]
        return ready

    def take(self) -> None:
        """A sync batch begins. It writes every queued snapshot."""
        self._taken += self._queued
        self._queued = []

    def synced(self, first_index: int) -> None:
        """Every snapshot that was taken is durable, unless the log has dropped it since."""
        self.durable.update(index for index in self._taken if index >= first_index - 1)
        self._taken = []

    def cut_from(self, index: int) -> None:
        """Entries from `index` on are gone. Their snapshots are at most saved: an entry is applied after its commit."""
        self._saved = {at: packed for at, packed in self._saved.items() if at < index}

    def cut_before(self, first_index: int) -> None:
        """The log begins with `first_index`. The snapshot right before that entry stays."""
        self.durable = {index for index in self.durable if index >= first_index - 1}
