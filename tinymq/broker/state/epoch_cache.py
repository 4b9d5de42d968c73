"""Leader-epoch cache: the offsets from which on a partition may have lost acknowledged records.

A loss-of-quorum recovery, ordered by an operator or automatic, raises the recovery epoch in a CONFIG entry. Records
behind that entry can take offsets that other records had before. The cache names such a point by the term of the entry,
because recovery epochs of a log in memory start again and terms never do. A reader sends the term with its offset, and
learns from which offset on its records are gone.
"""

from __future__ import annotations

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry
from tinymq.proto import partition_pb2 as pb
from tinymq.raft.rules.membership import parse_membership

EPOCHS_MAX = 8


class EpochCache:
    """The newest recoveries of a log, oldest first. Invariant: terms rise, and offsets never fall."""

    __slots__ = ("_epochs", "_recovery_epoch", "newest_term")

    def __init__(self) -> None:
        self.newest_term = 0  # of the last recovery; 0: there was none
        self._recovery_epoch = 0
        self._epochs: list[tuple[int, int]] = []  # (term, start)

    def note(self, entry: Entry) -> None:
        """Note a committed CONFIG entry, if it is a recovery. Never raises."""
        try:
            recovery_epoch = parse_membership(entry.payload).recovery_epoch
        except CorruptData:  # a committed entry that no build could read means nothing, on every replica
            return
        if recovery_epoch > self._recovery_epoch and entry.term > self.newest_term:
            self._recovery_epoch, self.newest_term = recovery_epoch, entry.term
            self._epochs.append((entry.term, entry.header.base_offset))
            # Above the bound, merge the two oldest into one with the lower offset: a reader of either may then be told
            # that too much is gone, and never too little.
            if len(self._epochs) > EPOCHS_MAX:
                (_, start), (term, _), *rest = self._epochs
                self._epochs = [(term, start), *rest]

    def divergence_offset(self, recovery_term: int) -> int | None:
        """The offset from which on records may be gone that were read when `recovery_term` was the newest; None: no
        record is gone."""
        return next((start for term, start in self._epochs if term > recovery_term), None)

    def dump(self, state: pb.State) -> None:
        state.recoveries.extend(pb.Recovery(term=term, start=start) for term, start in self._epochs)
        state.recovery_epoch = self._recovery_epoch

    @classmethod
    def load(cls, state: pb.State, high_watermark: int) -> EpochCache:
        """The inverse of `dump`. Raises CorruptData for anything that `dump` cannot write."""
        cache = cls()
        for epoch in state.recoveries:
            if (
                epoch.term <= cache.newest_term
                or not (cache._epochs[-1][1] if cache._epochs else 0) <= epoch.start <= high_watermark
            ):
                raise CorruptData("a partition's applied state has recoveries out of order")
            cache._epochs.append((epoch.term, epoch.start))
            cache.newest_term = epoch.term
        if len(cache._epochs) > EPOCHS_MAX or bool(cache._epochs) != bool(state.recovery_epoch):
            raise CorruptData("a partition's applied state has too many recoveries, or none of its recovery epoch")
        cache._recovery_epoch = state.recovery_epoch
        return cache
