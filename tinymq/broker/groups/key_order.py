"""The order of a queue group's records by key: which record of each key is the first that is not settled. Pure.

Only that one is granted. So two workers never have records of one key, a later record is never settled before an
earlier one, and a deposed leader, which grants by what it has applied, cannot break this either. Records without a key
have no order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence


class KeyOrder:
    """The records of one group that are not settled, by key, as far as the leader has looked."""

    def __init__(self, start: int) -> None:
        self.held = 0  # records that wait for an earlier one of their key
        self._lines: dict[int, deque[int]] = {}  # offsets by hash of the key, in order
        self._ahead: dict[int, int | None] = {}  # the hashes of records that were not entered yet, by offset
        self._hashes: dict[int, int] = {}  # of the entered ones
        self.known_end = start  # the keys of all records below are known

    @property
    def read_ahead(self) -> int:
        """How many keys are known beyond the records that have been entered."""
        return len(self._ahead)

    def learn(self, base_offset: int, hashes: Sequence[int | None]) -> None:
        """Note the keys of a batch's records, by their hashes; None: no key. Two keys of one hash wait for each
        other."""
        for offset, key in enumerate(hashes, base_offset):
            if offset >= self.known_end:
                self._ahead[offset] = key
        self.known_end = max(self.known_end, base_offset + len(hashes))

    def enter(self, offset: int, waits: bool) -> None:
        """Look at a record, each in the order of offsets. A settled one takes no place in its line."""
        key = self._ahead.pop(offset, None)
        if key is None or not waits:
            return
        line = self._lines.setdefault(key, deque())
        self.held += bool(line)
        line.append(offset)
        self._hashes[offset] = key

    def is_first(self, offset: int) -> bool:
        """Whether no earlier record of its key waits."""
        key = self._hashes.get(offset)
        return key is None or self._lines[key][0] == offset

    def longest(self) -> tuple[int, int]:
        """The first record of the key that holds back most, and how many records of the key are not settled."""
        line = max(self._lines.values(), key=len)
        return line[0], len(line)

    def settled(self, offset: int) -> int | None:
        """Take a settled record out of its line. Returns the next one of the key, if it may now be granted."""
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
        """Take out what was settled by others, such as burials. Returns the records that may now be granted."""
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
