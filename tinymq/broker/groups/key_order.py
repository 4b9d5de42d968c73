"""The order of a queue group's records by key: which record of each key is the first that is not settled. Pure.

A leader grants only the first unsettled record of a key. Two workers therefore never hold records of the same key at
the same time, and a later record is never settled before an earlier one. A deposed leader cannot break this either,
because it grants by the state that it has applied. Records without a key have no order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence


class KeyOrder:
    """The unsettled records of one group by key, up to the last record that the leader has entered."""

    def __init__(self, start: int) -> None:
        self.held = 0  # records that wait for an earlier one of their key
        self._lines: dict[int, deque[int]] = {}  # rising offsets of unsettled records, by key hash
        self._ahead: dict[int, int | None] = {}  # key hash by offset, of records that are not entered yet
        self._hashes: dict[int, int] = {}  # key hash by offset, of records that stand in a line
        self.known_end = start  # the keys of all records below this offset are known

    @property
    def read_ahead(self) -> int:
        """The number of records whose keys are known and which have not been entered yet."""
        return len(self._ahead)

    def learn(self, base_offset: int, hashes: Sequence[int | None]) -> None:
        """Note the key hashes of a batch's records; None: no key. Two keys with the same hash count as one key."""
        for offset, key in enumerate(hashes, base_offset):
            if offset >= self.known_end:
                self._ahead[offset] = key
        self.known_end = max(self.known_end, base_offset + len(hashes))

    def enter(self, offset: int, waits: bool) -> None:
        """Enter the next record into the line of its key, in the order of offsets. `waits` is False if it is settled:
        then it takes no place."""
        key = self._ahead.pop(offset, None)
        if key is None or not waits:
            return
        line = self._lines.setdefault(key, deque())
        self.held += bool(line)
        line.append(offset)
        self._hashes[offset] = key

    def is_first(self, offset: int) -> bool:
        """Whether no earlier record with the same key is unsettled."""
        key = self._hashes.get(offset)
        return key is None or self._lines[key][0] == offset

    def longest(self) -> tuple[int, int]:
        """The first offset and the length of the longest line: the key that holds back the most records."""
        line = max(self._lines.values(), key=len)
        return line[0], len(line)

    def settled(self, offset: int) -> int | None:
        """Take a settled record out of its line. Returns the next record of the key, if that may now be granted."""
        key = self._hashes.pop(offset, None)
        if key is None:
            return None
        line = self._lines[key]
        first = line[0] == offset
        line.remove(offset)
        self.held -= bool(line)
        if not line:
            del self._lines[key]
            return None
        return line[0] if first else None

    def sweep(self, is_settled: Callable[[int], bool]) -> list[int]:
        """Take out records that were settled without a call of `settled`, such as buried ones.

        Returns the records that may now be granted.
        """
        found = []
        for line in [line for line in self._lines.values() if len(line) > 1]:
            following: int | None = line[0]
            while following is not None and is_settled(following):
                following = self.settled(following)
                if following is not None and not is_settled(following):
                    found.append(following)
        for key in [key for key, line in self._lines.items() if len(line) == 1 and is_settled(line[0])]:
            del self._hashes[self._lines.pop(key)[0]]
        return found
