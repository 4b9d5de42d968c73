"""The delayed batches of one replica of a partition: what its leader stages, publishes, cancels and copies.

The rules are elsewhere: `UncommittedDelays` says what may be appended, `DelayedBatches` what is applied. Every decision
here is made in the same turn of the loop as its append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from tinymq.base.errors import NotReady, TinymqError
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import Position
from tinymq.broker.delayed.bounds import Due, check_delayed, check_due, check_waiting
from tinymq.broker.delayed.due_times import DueTimes
from tinymq.broker.delayed.merged_batches import DueBatch, MergedBatch, merge, runs
from tinymq.broker.delayed.staged_reads import StagedPayload, read_staged, staged_payload
from tinymq.broker.delayed.uncommitted_delays import UncommittedDelays
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.pending_acks import Acks, Produced
from tinymq.broker.partition.staged.log_port import LogPort
from tinymq.broker.partition.staged.publisher import Publisher
from tinymq.broker.state.delayed import DelayedBatch, schedule_id_at
from tinymq.broker.state.staged import Waiting
from tinymq.format.batch import CheckedBatch
from tinymq.format.delayed import (
    PUBLISHED_VERSION,
    StagedHead,
    pack_discarded,
    pack_published,
    pack_staged,
)
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.format.feature_level import DELAYS_LEVEL, check

Canceled = Callable[[bool | TinymqError], None]
"""Called once, on the loop: True if the batch is dropped, False if it has ended before. Must not raise."""


class Delays:
    """One object per replica. Applied state is in the partition's state; all else here is the leader's own."""

    def __init__(self, name: str, port: LogPort, deadlines: Deadlines) -> None:
        self.uncommitted = UncommittedDelays()
        self.late_us: Callable[[int], None] = lambda late_us: None  # told how late each published batch was
        self._state = port.state
        self._group = port.group
        self._propose = port.propose
        self._pending_acks = port.pending_acks
        self._limits = port.limits
        self._totals = port.delayed_totals
        self._counted = (0, 0)  # what `totals` have of this replica: (batches, bytes)
        self._publisher = Publisher(name, deadlines, self)
        self._name = name

    @property
    def waiting_now(self) -> Waiting:
        """The batches that wait, including those that this leader has appended and not applied yet."""
        return self.uncommitted.waiting(self._state.delayed)

    # ---- staging

    def check(self, due: Due, config: TopicConfig, acks: Acks, size: int) -> None:
        """Raises UnsupportedVersion, InvalidRequest, BatchTooLarge, NotReady for a batch that cannot be delayed now."""
        check("a delayed batch", DELAYS_LEVEL, self._group().feature_level)
        check_delayed(config, size, quorum=acks is Acks.QUORUM)
        check_due(due, self._group().append_time_now_us())
        if self._state.retention_index.time_is_unknown:
            # The append clock will jump when this leader learns the time, and the batch would be early.
            raise NotReady(f"{self._name}: the leader does not know the time yet", hint="try again shortly")

    def staged_entry(self, batch: CheckedBatch, payload: bytes, due: Due) -> NewEntry:
        """The entry that stores a delayed batch. Raises QuotaExceeded if too many wait."""
        check_waiting(self._limits, self.waiting_now, self._totals, len(payload))
        head = StagedHead(0, due.deliver_at_us, due.delay_us, 0, batch.max_timestamp_us)
        return NewEntry(Kind.STAGED, pack_staged(head, payload))

    def appended(self, position: Position, batch: CheckedBatch, size: int) -> None:
        """Note that a batch is staged at `position`."""
        self.uncommitted.staged(position.index, batch.header.record_count, size)

    def place_of(self, place: int, append_time_us: int, due: Due | None, *, duplicate: bool) -> Produced:
        """The answer to a batch at a place: an offset, or the schedule id of a delayed batch."""
        term, schedule_id = self._group().term, schedule_id_at(place)
        if not schedule_id:
            return Produced(place, append_time_us, term, duplicate)
        waiting = self._state.delayed.get(schedule_id)
        deliver_at_us = 0 if due is None else due.at_us(append_time_us)
        if waiting is not None:
            deliver_at_us = waiting.deliver_at_us
        return Produced(0, append_time_us, term, duplicate, schedule_id, deliver_at_us)

    # ---- cancelling

    def cancel(self, schedule_id: int, timeout_s: float, done: Canceled) -> None:
        """Drop a delayed batch. Calls `done` once that is committed, or once it is certain that it has ended before.

        The caller has proven that this replica leads. Raises NotLeader, UnsupportedVersion, and then nothing is done.
        `done` gets OutcomeUnknown if the leadership is lost, or the time is up, before the commit.
        """
        check("a delayed batch", DELAYS_LEVEL, self._group().feature_level)
        batch, index = self.uncommitted.open(self._state.delayed, schedule_id), self.uncommitted.end_index(schedule_id)
        if batch is not None:
            index = self._propose(NewEntry(Kind.DISCARD, pack_discarded([schedule_id]))).index
            self.uncommitted.ended(index, [batch], published=False)
        if index is None:
            done(False)
            return
        canceled = not self.uncommitted.publishes(schedule_id)

        def answer(outcome: Produced | TinymqError) -> None:
            done(outcome if isinstance(outcome, TinymqError) else canceled)

        # The entry that ends the batch may still be lost with this leader, so nobody is told before it is applied.
        self._pending_acks.add(index, Produced(0, 0, self._group().term, False), timeout_s, answer)

    # ---- publishing: the publisher's side

    def now_us(self) -> int:
        return self._group().append_time_now_us()

    def waiting(self, schedule_ids: Sequence[int]) -> list[DelayedBatch]:
        found = [self.uncommitted.open(self._state.delayed, schedule_id) for schedule_id in schedule_ids]
        return [batch for batch in found if batch is not None]

    async def read(self, batches: Sequence[DelayedBatch]) -> dict[int, StagedPayload]:
        return await read_staged(self._group().log.reader, batches)

    def publish(self, schedule_ids: Sequence[int], staged: Mapping[int, StagedPayload]) -> None:
        # Some may have been canceled while their payloads were read.
        due = [DueBatch(batch, staged[batch.schedule_id]) for batch in self.waiting(schedule_ids)]
        for run in runs(due):
            merged = merge(run, self._limits)
            for each in [merged] if merged is not None else [merge([one], self._limits) for one in run]:
                assert each is not None, "a batch by itself stays as it is"
                self._publish(each)

    def _publish(self, merged: MergedBatch) -> None:
        """Append the entry that publishes delayed batches."""
        payload = pack_published(sorted(batch.schedule_id for batch in merged.waiting), merged.batch)
        data = NewEntry(Kind.DATA, payload, merged.records, merged.max_timestamp_us, version=PUBLISHED_VERSION)
        position = self._propose(data)
        self.uncommitted.ended(position.index, merged.waiting, published=True)
        for batch in merged.waiting:
            self.late_us(position.append_time_us - batch.deliver_at_us)

    # ---- copying: the copier's side

    def is_movable(self, schedule_id: int) -> bool:
        """Whether a copy of the batch may be appended now."""
        return self.uncommitted.movable(self._state.delayed, schedule_id) is not None

    def append_copy(self, schedule_id: int, entry: Entry) -> int:
        """Append a copy of a batch that was read from `entry`. Returns the bytes of the batch; 0: it has ended, or was
        copied, meanwhile. Raises CorruptData, and as `RaftGroup.propose`."""
        batch = self.uncommitted.movable(self._state.delayed, schedule_id)
        if batch is None:
            return 0
        staged = staged_payload(entry)
        head = StagedHead(
            schedule_id, batch.deliver_at_us, 0, batch.staged_at_us, staged.head.max_timestamp_us
        )  # fmt: skip
        position = self._propose(NewEntry(Kind.STAGED, pack_staged(head, staged.batch)))
        self.uncommitted.carried(position.index, schedule_id)
        return batch.bytes

    # ---- the log

    def applied(self, entry: Entry, *, leading: bool) -> None:
        """An entry is applied."""
        if entry.header.kind == Kind.STAGED or entry.header.kind == Kind.DISCARD or entry.header.version != 1:
            self.count()
        if leading:
            self.uncommitted.settle(entry.index)
            if entry.header.kind == Kind.STAGED and (batch := self._state.delayed.get(entry.index)) is not None:
                self._publisher.staged(batch)
            elif entry.header.kind == Kind.NOOP:
                self._publisher.look()  # the append clock may have jumped

    def count(self) -> None:
        """Report this replica's waiting batches to the broker's totals."""
        batches, size = len(self._state.delayed), self._state.delayed.bytes
        self._totals.change(batches - self._counted[0], size - self._counted[1])
        self._counted = batches, size

    def forget(self) -> None:
        """Take this replica out of the broker's totals: it is closed."""
        self._totals.change(-self._counted[0], -self._counted[1])
        self._counted = 0, 0

    def lead(self) -> None:
        with suppress(TinymqError):  # a leadership that has ended already
            self._publisher.lead(DueTimes(self._state.delayed, self.now_us()))

    def look(self) -> None:
        """Look at what is due now, because the broker's clock has jumped. Timers that have begun do not notice."""
        self._publisher.look()

    def follow(self) -> None:
        self.uncommitted.clear()
        self._publisher.follow()
