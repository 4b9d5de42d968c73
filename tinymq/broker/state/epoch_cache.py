"""Where a partition went on with less than it had acknowledged: which of the offsets that a reader knows still hold.

A take-over (by an operator, or of a group that came back by itself) raises the generation in CONFIG. What lies behind
that entry takes offsets that other records had before. A history is named by the entry's term, for generations begin
again with a log in memory, and terms never do.
"""

from __future__ import annotations

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.membership import parse_membership

EPOCHS_MAX = 8


class EpochCache:
    """The newest ones of a log, oldest first; terms rise, starts do not go down."""

    __slots__ = ("_generation", "_known", "newest_term")

    def __init__(self) -> None:
        self.newest_term = 0  # term of the last one; 0: nothing was ever lost
        self._generation = 0
        self._known: list[tuple[int, int]] = []  # (term, start)

    def note(self, entry: Entry) -> None:
        """A committed CONFIG entry: does it begin a history? Never raises."""
        try:
            generation = parse_membership(entry.payload).recovery_epoch
        except CorruptData:  # committed all the same: it means nothing, on every replica
            return
        if generation > self._generation and entry.term > self.newest_term:
            self._generation, self.newest_term = generation, entry.term
            self._known.append((entry.term, entry.header.base_offset))
            if len(self._known) > EPOCHS_MAX:  # the first two become one that began no later than either
                (_, start), (term, _), *rest = self._known
                self._known = [(term, start), *rest]

    def divergence_offset(self, known: int) -> int | None:
        """From where on what was read in the history `known` may be gone; None: nothing is."""
        return next((start for term, start in self._known if term > known), None)

    def dump(self, state: pb.State) -> None:
        state.histories.extend(pb.History(term=term, start=start) for term, start in self._known)
        state.generation = self._generation

    @classmethod
    def load(cls, state: pb.State, high_watermark: int) -> EpochCache:
        """Raises CorruptData for what `dump` does not write."""
        made = cls()
        for said in state.histories:
            if (
                said.term <= made.newest_term
                or not (made._known[-1][1] if made._known else 0) <= said.start <= high_watermark
            ):
                raise CorruptData("a partition's applied state has histories out of order")
            made._known.append((said.term, said.start))
            made.newest_term = said.term
        if len(made._known) > EPOCHS_MAX or bool(made._known) != bool(state.generation):
            raise CorruptData("a partition's applied state has too many histories, or none of its generation")
        made._generation = state.generation
        return made
