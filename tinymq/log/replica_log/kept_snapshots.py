"""Which applied states of a log are given, being written, and durable."""

from __future__ import annotations


class SnapshotTracker:
    """By applied index. Each goes: given → asked for, once its entries are synced → taken by a round → durable."""

    __slots__ = ("_asked", "_given", "_taken", "durable")

    def __init__(self, durable: set[int]) -> None:
        self.durable = durable
        self._given: dict[int, bytes] = {}
        self._asked: list[int] = []
        self._taken: list[int] = []

    def has(self, index: int) -> bool:
        """Whatever became of it."""
        return index in self.durable or index in self._given or index in self._asked or index in self._taken

    def give(self, index: int, packed: bytes) -> None:
        self._given[index] = packed

    def ask(self, synced_index: int) -> list[tuple[int, bytes]]:
        """What is to be written now: the entries that it includes are synced."""
        if not self._given:
            return []
        ready = [(index, self._given.pop(index)) for index in list(self._given) if index <= synced_index]
        self._asked += [index for index, _ in ready]
        return ready

    def take(self) -> None:
        """A round begins, and writes what was asked for."""
        self._taken += self._asked
        self._asked = []

    def synced(self, first_index: int) -> None:
        """What was taken is durable."""
        self.durable.update(at for at in self._taken if at >= first_index - 1)
        self._taken = []

    def cut_from(self, index: int) -> None:
        """Entries from there on are gone; no applied one is."""
        self._given = {at: state for at, state in self._given.items() if at < index}

    def cut_before(self, first_index: int) -> None:
        self.durable = {at for at in self.durable if at >= first_index - 1}
