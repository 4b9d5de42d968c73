"""A leader's decisions on delayed batches, over the applied state and its own uncommitted entries. Pure.

A delayed batch must end once: the entry that publishes it takes offsets for its records, so a second one would double
them. Every decision here is therefore made in the same call as its append. A new leader decides nothing before it has
applied every entry of earlier terms, so the ends that it has not applied are all its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tinymq.broker.state.delayed import DelayedBatch, DelayedBatches
from tinymq.broker.state.staged import NOTHING, Waiting
from tinymq.format.delayed import PUBLISHED_HEAD_SIZE


class UncommittedDelays:
    """The entries about delayed batches that a leader has appended and not applied yet; one object per term."""

    __slots__ = ("_carried", "_changes", "_copies", "_ends", "_more", "_publishing")

    def __init__(self) -> None:
        # In the order of the log: (index of the entry, what it adds to the bounds, the schedule ids that it ends).
        self._changes: deque[tuple[int, Waiting, Sequence[int]]] = deque()
        self._more = NOTHING  # invariant: the sum of what `_changes` add
        self._copies: deque[tuple[int, int]] = deque()  # (index of the entry, schedule id), in the order of the log
        self._carried: set[int] = set()  # the schedule ids of `_copies`
        self._ends: dict[int, int] = {}  # by schedule id: index of the entry that ends the batch
        self._publishing: set[int] = set()  # those of them that are published

    # ---- decisions

    def open(self, applied: DelayedBatches, schedule_id: int) -> DelayedBatch | None:
        """The batch, if an entry that ends it may be appended now; None: the batch is unknown, has ended, or will end
        by an entry of this leader."""
        return None if schedule_id in self._ends else applied.get(schedule_id)

    def movable(self, applied: DelayedBatches, schedule_id: int) -> DelayedBatch | None:
        """The batch, if a copy of it may be appended now."""
        return None if schedule_id in self._carried else self.open(applied, schedule_id)

    def end_index(self, schedule_id: int) -> int | None:
        """The index of the uncommitted entry that ends a batch; None: there is none."""
        return self._ends.get(schedule_id)

    def publishes(self, schedule_id: int) -> bool:
        """Whether an uncommitted entry publishes the batch."""
        return schedule_id in self._publishing

    def waiting(self, applied: DelayedBatches) -> Waiting:
        """The room that delayed batches take once all entries of this leader are applied."""
        size = applied.bytes + len(applied) * PUBLISHED_HEAD_SIZE
        return Waiting(len(applied), applied.records, size).plus(self._more)

    # ---- the log

    def staged(self, index: int, records: int, size: int) -> None:
        """A batch of `size` bytes is staged."""
        self._change(index, Waiting(1, records, size + PUBLISHED_HEAD_SIZE), ())

    def carried(self, index: int, schedule_id: int) -> None:
        """Note that a copy of a batch is appended."""
        self._copies.append((index, schedule_id))
        self._carried.add(schedule_id)

    def ended(self, index: int, batches: Sequence[DelayedBatch], *, published: bool) -> None:
        """An entry that ends batches is appended."""
        ids = [batch.schedule_id for batch in batches]
        size = sum(batch.bytes + PUBLISHED_HEAD_SIZE for batch in batches)
        freed = Waiting(-len(batches), -sum(batch.records for batch in batches), -size)
        self._change(index, freed, ids)
        self._ends.update(dict.fromkeys(ids, index))
        if published:
            self._publishing.update(ids)

    def _change(self, index: int, more: Waiting, ended: Sequence[int]) -> None:
        self._changes.append((index, more, ended))
        self._more = self._more.plus(more)

    def settle(self, index: int) -> None:
        """Forget the entries up to `index`, which are applied."""
        while self._changes and self._changes[0][0] <= index:
            _, more, ended = self._changes.popleft()
            self._more = self._more.minus(more)
            for schedule_id in ended:
                self._ends.pop(schedule_id, None)
                self._publishing.discard(schedule_id)
        while self._copies and self._copies[0][0] <= index:
            self._carried.discard(self._copies.popleft()[1])

    def clear(self) -> None:
        """Forget everything, because this replica stops leading."""
        self._changes.clear()
        self._more = NOTHING
        self._copies.clear()
        self._carried.clear()
        self._ends.clear()
        self._publishing.clear()
