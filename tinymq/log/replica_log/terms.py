"""The terms of a log's entries, as runs: one pair per leader, however many entries it wrote."""

from __future__ import annotations

from bisect import bisect_right


class TermRuns:
    """(first index, term) of each run, in order. Indexes and terms both rise."""

    __slots__ = ("_firsts", "_terms")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._terms: list[int] = []

    def note(self, index: int, term: int) -> None:
        """Add the term of an entry that is appended."""
        if not self._terms or term != self._terms[-1]:
            self._firsts.append(index)
            self._terms.append(term)

    def at(self, index: int) -> int | None:
        """Term of the run that includes `index`; None below the first run."""
        run = bisect_right(self._firsts, index) - 1
        return self._terms[run] if run >= 0 else None

    def cut_from(self, index: int) -> None:
        """Forget the entries from `index` on."""
        while self._firsts and self._firsts[-1] >= index:
            self._firsts.pop()
            self._terms.pop()

    def cut_before(self, index: int) -> None:
        """Forget the entries before `index`."""
        run = bisect_right(self._firsts, index) - 1
        if run > 0:
            del self._firsts[:run]
            del self._terms[:run]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], index)

    def between(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """The runs of the entries `first` to `last`, both included. The first run begins with `first`."""
        start = max(0, bisect_right(self._firsts, first) - 1)
        end = bisect_right(self._firsts, last)
        pairs = zip(self._firsts[start:end], self._terms[start:end], strict=True)
        return tuple((max(index, first), term) for index, term in pairs)
