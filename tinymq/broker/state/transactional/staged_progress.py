"""The progress of groups that waits for the ends of transactions: offsets of stream groups, and acks of queue groups.

One object per partition. It joins what is staged with the cursors and the queue groups that it will change. Pure, and
replicated.
"""

from __future__ import annotations

from typing import Any

from tinymq.broker.state.cursors import Cursors
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.broker.state.queue_groups import QueueGroups
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.transactional import staged_acks, staged_offsets
from tinymq.broker.state.transactional.staged_acks import StagedAcks
from tinymq.broker.state.transactional.staged_offsets import StagedOffsets
from tinymq.proto import partition_pb2 as pb


class StagedProgress:
    """The offsets and acks that transactions have staged in one partition."""

    __slots__ = ("_cursors", "_groups", "acks", "offsets")

    def __init__(self, cursors: Cursors, groups: QueueGroups) -> None:
        self.offsets = StagedOffsets()
        self.acks = StagedAcks()
        self._cursors = cursors
        self._groups = groups

    def apply(self, name: str, command: Any, history: int, bounds: OffsetBounds) -> None:
        """Carry out the command that pb.Command calls `name`. `history` is the term of the log's newest recovery.

        Raises if the command is refused, and then nothing has changed.
        """
        if name == "stage_offset":
            self.check_offset(command, bounds)
            self.offsets.stage(command)
        elif name == "stage_acks":
            if command.place < self.acks.held(staged_acks.name_of(command)):
                return  # it is a repeat
            self.check_acks(command, history, bounds)
            self.acks.stage(command)
            transaction, spans = staged_acks.name_of(command), staged_acks.spans_of(command)
            self._groups.stage(command.queue.group, transaction, spans)
        else:
            self.publish(staged_offsets.name_of(command), bounds)

    def check_offset(self, command: pb.StageOffset, bounds: OffsetBounds) -> None:
        """Check an offset that a transaction stages. Raises as Cursors.check_staged and StagedOffsets.check."""
        self._cursors.check_staged(command.commit, bounds)
        self.offsets.check(command)

    def check_acks(self, command: pb.StageAcks, history: int, bounds: OffsetBounds) -> None:
        """Check acks that a transaction stages. Raises as QueueGroups.check_stage and StagedAcks.check."""
        self.acks.check(command)
        cursor = self._cursors.by_name.get(command.queue.group)
        self._groups.check_stage(command, cursor, history, bounds)

    def publish(self, transaction: TransactionId, bounds: OffsetBounds) -> None:
        """The transaction is committed: move the cursors, and settle the records."""
        for commit in self.offsets.end(transaction):
            self._cursors.publish(commit, bounds.now_us)
        self._end_acks(transaction, bounds, settle=True)

    def discard(self, transaction: TransactionId, bounds: OffsetBounds) -> None:
        """The transaction is rolled back: drop the offsets, and give the records back."""
        self.offsets.end(transaction)
        self._end_acks(transaction, bounds, settle=False)

    def _end_acks(self, transaction: TransactionId, bounds: OffsetBounds, *, settle: bool) -> None:
        for acked in self.acks.end(transaction):
            cursor = self._cursors.by_name.get(acked.group)
            if cursor is None:
                continue
            position = max(cursor.position, bounds.log_start)
            after = self._groups.end_staged(acked.group, acked.generation, acked.spans, position, settle=settle)
            if after is not None:
                self._cursors.move(acked.group, after, bounds.now_us)

    def dump(self, state: pb.State) -> None:
        state.staged_offsets.extend(self.offsets.dump())
        state.staged_acks.extend(self.acks.dump())

    @classmethod
    def load(cls, state: pb.State, cursors: Cursors, groups: QueueGroups, end: int) -> StagedProgress:
        """The inverse of `dump`, for a log that ends at the offset `end`. Raises CorruptData for anything that `dump`
        cannot write."""
        loaded = cls(cursors, groups)
        loaded.offsets = StagedOffsets.load(state.staged_offsets, end)
        loaded.acks = StagedAcks.load(state.staged_acks, groups, end)
        return loaded


PROGRESS_COMMANDS = frozenset({"stage_offset", "stage_acks", "publish_offsets"})
