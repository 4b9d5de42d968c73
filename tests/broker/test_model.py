"""A partition against a plain model, in random runs that Hypothesis shrinks. The model is a list of batches, committed
and not. Each time it computes from that list what a producer may send, so it shares neither the incremental state nor
the uncommitted producer state of the code under test.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.broker.partition.test_partition import Bench
from tests.fakes.batches import TIME_US, checked, payload
from tinymq.base.errors import (
    Fenced,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    TinymqError,
    UnknownProducer,
    UnknownTopic,
)
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.serve.offsets import EARLIEST, END, OF_MAX_TIMESTAMP, find_offset
from tinymq.broker.state.state import PartitionState
from tinymq.log.files.runner import InlineRunner

PRODUCERS_MAX = 2  # so that one of three is forgotten
REMEMBERED = 5  # batches of a producer that are told apart
TIMEOUT_S = 1.0


class Batch(NamedTuple):
    """A batch that was appended."""

    index: int
    producer: int  # 0: none
    epoch: int
    sequence: int
    offset: int
    times: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.times)


@dataclass
class Call:
    """A produce request that was accepted."""

    acks: Acks
    index: int  # of the entry that it waits for; 0: it waits for none
    offset: int
    duplicate: bool
    answers: list[Produced | TinymqError] = field(default_factory=list)
    over: bool = False  # answered, or never to be answered


@dataclass
class Model:
    """The log as a list, and the state that follows from it."""

    committed: list[Batch] = field(default_factory=list)
    tail: list[Batch] = field(default_factory=list)  # appended, not committed
    own: list[Batch] = field(default_factory=list)  # of the tail, by the present leader
    before: dict[int, list[Batch]] = field(default_factory=dict)  # known of a producer before those of it in `own`

    @property
    def batches(self) -> list[Batch]:
        return [*self.committed, *self.tail]

    def append(self, batch: Batch) -> None:
        if batch.producer and not any(b.producer == batch.producer for b in self.own):
            self.before[batch.producer] = self.from_log(batch.producer)
        self.tail.append(batch)
        self.own.append(batch)

    def apply_upto(self, index: int) -> None:
        self.committed += [b for b in self.tail if b.index <= index]
        self.tail = [b for b in self.tail if b.index > index]
        for batch in self.own:
            if batch.index <= index and batch.producer:
                self.before[batch.producer] = self.newest([*self.before[batch.producer], batch])
        self.own = [b for b in self.own if b.index > index]

    def lose(self, keep: bool) -> None:
        self.own = []
        self.tail = self.tail if keep else []

    def from_log(self, producer: int) -> list[Batch]:
        """The batches of a producer that all replicas remember: the newest of its newest epoch, unless too many other
        producers appended since.
        """
        order: list[int] = []
        known: dict[int, list[Batch]] = {}
        for batch in self.committed:
            if batch.producer:
                order = [p for p in order if p != batch.producer] + [batch.producer]
                known[batch.producer] = self.newest([*known.get(batch.producer, []), batch])
                for forgotten in order[:-PRODUCERS_MAX]:
                    del known[forgotten]
                order = order[-PRODUCERS_MAX:]
        return known.get(producer, [])

    @staticmethod
    def newest(batches: list[Batch]) -> list[Batch]:
        return [b for b in batches if b.epoch == batches[-1].epoch][-REMEMBERED:]

    def known(self, producer: int) -> list[Batch]:
        """The batches by which the leader decides: the log, and its own appends."""
        own = [b for b in self.own if b.producer == producer]
        if not own:
            return self.from_log(producer)
        return self.newest([*self.before[producer], *own])

    def verdict(self, producer: int, epoch: int, sequence: int, count: int) -> Batch | type[TinymqError] | None:
        """None means append, a batch means a duplicate of it, and an error refuses the request."""
        known = self.known(producer)
        if not known:
            return None if sequence == 0 else UnknownProducer
        newest = known[-1]
        if epoch < newest.epoch:
            return Fenced
        if epoch > newest.epoch:
            return None if sequence == 0 else OutOfOrderSequence
        if sequence == newest.sequence + newest.count:
            return None
        same = [b for b in known if (b.sequence, b.count) == (sequence, count)]
        return same[0] if same else OutOfOrderSequence


class PartitionLife(RuleBasedStateMachine):
    """One replica that leads, loses its leadership and restarts, with three producers that send right and wrong
    sequences.
    """

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(PRODUCERS_MAX)
        self.model = Model()
        self.calls: list[Call] = []
        self.leading = True
        self.applied = 1  # entries, the first NOOP included

    @property
    def partition(self) -> Partition:
        return self.bench.partition

    # ---- steps --------------------------------------------------------------------------------------------

    acks = st.sampled_from([Acks.QUORUM, Acks.QUORUM, Acks.LEADER, Acks.NONE])
    times = st.integers(0, 40)

    @rule(count=st.integers(1, 3), acks=acks, time=times)
    def plain(self, count: int, acks: Acks, time: int) -> None:
        self.produce(0, 0, -1, count, acks, time, verdict=None)

    @rule(producer=st.integers(1, 3), count=st.integers(1, 3), acks=acks, time=times)
    def next_one(self, producer: int, count: int, acks: Acks, time: int) -> None:
        """Send as a producer that has received every answer."""
        known = self.model.known(producer)
        epoch = known[-1].epoch if known else 0
        self.numbered(producer, epoch, known[-1].sequence + known[-1].count if known else 0, count, acks, time)

    @rule(producer=st.integers(1, 3), batches=st.integers(4, 7))
    def several(self, producer: int, batches: int) -> None:
        """Send many batches, sometimes more than are remembered."""
        for _ in range(batches):
            self.next_one(producer, 1, Acks.QUORUM, 0)

    @rule(producer=st.integers(1, 3), step=st.sampled_from([1, 1, -1]), sequence=st.sampled_from([0, 0, 1]), acks=acks)
    def another_epoch(self, producer: int, step: int, sequence: int, acks: Acks) -> None:
        """Send as a restarted producer, or as one that does not know of its newer epoch."""
        known = self.model.known(producer)
        self.numbered(producer, max(0, (known[-1].epoch if known else 0) + step), sequence, 1, acks, 0)

    @precondition(lambda self: self.leading)
    @rule(producer=st.integers(1, 3), oldest=st.booleans(), more=st.sampled_from([0, 0, 1]), acks=acks)
    def resend_what_is_remembered(self, producer: int, oldest: bool, more: int, acks: Acks) -> None:
        """With `more` records than the original, another batch reuses its sequence."""
        known = self.model.known(producer)
        if known:
            batch = known[0 if oldest else -1]
            self.numbered(producer, batch.epoch, batch.sequence, batch.count + more, acks, batch.times[0] - TIME_US)

    @rule(producer=st.integers(1, 3), back=st.integers(0, 5), acks=acks)
    def resend(self, producer: int, back: int, acks: Acks) -> None:
        """Repeat an earlier batch, remembered or not, kept or not."""
        sent = [b for b in self.model.batches if b.producer == producer]
        if sent:
            batch = sent[-1 - back % len(sent)]
            self.numbered(producer, batch.epoch, batch.sequence, batch.count, acks, batch.times[0] - TIME_US)

    @rule(
        producer=st.integers(1, 3),
        epoch=st.integers(0, 2),
        sequence=st.integers(0, 9),
        count=st.integers(1, 3),
        acks=acks,
    )
    def mistaken(self, producer: int, epoch: int, sequence: int, count: int, acks: Acks) -> None:
        self.numbered(producer, epoch, sequence, count, acks, 0)

    def numbered(self, producer: int, epoch: int, sequence: int, count: int, acks: Acks, time: int) -> None:
        verdict = self.model.verdict(producer, epoch, sequence, count)
        self.produce(producer, epoch, sequence, count, acks, time, verdict=verdict)

    def produce(
        self, producer: int, epoch: int, sequence: int, count: int, acks: Acks, time: int,
        verdict: Batch | type[TinymqError] | None,
    ) -> None:  # fmt: skip
        call = Call(acks, 0, 0, False)
        data = payload(count, producer=producer, epoch=epoch, sequence=sequence, time_us=TIME_US + time)
        length = len(self.bench.group.log.entries)
        refused: TinymqError | None = None
        try:
            self.partition.produce(*checked(data), acks, TIMEOUT_S, call.answers.append)
        except TinymqError as error:
            refused = error
        if refused is not None:
            assert type(refused) is (verdict if self.leading else NotLeader), (refused, verdict)
            assert call.answers == []
            assert len(self.bench.group.log.entries) == length
            return
        assert self.leading
        assert verdict is None or isinstance(verdict, Batch), f"accepted, but expected {verdict}"
        if isinstance(verdict, Batch):
            assert len(self.bench.group.log.entries) == length, "a duplicate is appended"
            waits = acks is Acks.QUORUM and verdict in self.model.own
            call.index, call.offset, call.duplicate = verdict.index if waits else 0, verdict.offset, True
        else:
            end = self.model.batches[-1:]
            offset = end[0].offset + end[0].count if end else 0
            times = tuple(TIME_US + time + n for n in range(count))
            batch = Batch(length + 1, producer, epoch, sequence, offset, times)
            self.model.append(batch)
            call.index, call.offset = length + 1 if acks is Acks.QUORUM else 0, offset
        self.calls.append(call)
        if not call.index:
            self.ended(call, acks is not Acks.NONE)

    def ended(self, call: Call, produced: bool) -> None:
        """Check that the waiter got the right answer just now, once."""
        call.over = True
        if call.acks is Acks.NONE:
            assert call.answers == []
        elif produced:
            (answer,) = call.answers
            assert isinstance(answer, Produced)
            assert (answer.base_offset, answer.duplicate) == (call.offset, call.duplicate)
        else:
            assert [type(answer) for answer in call.answers] == [OutcomeUnknown]

    @rule(count=st.integers(1, 4))
    def commit(self, count: int) -> None:
        count = min(count, len(self.bench.group.log.entries) - self.applied)
        self.bench.group.commit(count)
        self.apply_upto(self.applied + count)

    def apply_upto(self, index: int) -> None:
        self.applied = index
        self.model.apply_upto(index)
        for call in self.calls:
            if not call.over and call.index <= index:
                self.ended(call, True)

    @precondition(lambda self: self.leading and self.model.tail)
    @rule(keep=st.booleans())
    def lose(self, keep: bool) -> None:
        """Another leader keeps the tail, or truncates it."""
        self.bench.group.lose_leadership(keep_tail=keep)
        self.leading = False
        self.model.lose(keep)
        for call in self.calls:
            if not call.over:
                self.ended(call, False)

    @precondition(lambda self: not self.leading)
    @rule()
    def win(self) -> None:
        self.bench.group.win()
        self.leading = True
        self.apply_upto(len(self.bench.group.log.entries))

    @rule()
    def time_is_up(self) -> None:
        self.bench.clock.advance(TIMEOUT_S + 1)
        for call in self.calls:
            if not call.over:
                self.ended(call, False)

    @precondition(lambda self: not self.leading)
    @rule()
    def start_again(self) -> None:
        """Restart from the last dump."""
        bench, before = self.bench, self.partition
        bench.partition = Partition("t/0", bench.deadlines, lambda call: call(), {1: "h:1"}.get, PRODUCERS_MAX)
        bench.partition.load(before.dump())
        bench.partition.attach(bench.group)
        bench.group.machine = bench.partition

    @rule(time=st.one_of(times, st.sampled_from([-100, 1000])), leader_only=st.booleans())
    def look_for_a_time(self, time: int, leader_only: bool) -> None:
        rows = [(b.offset + n, time_us) for b in self.model.committed for n, time_us in enumerate(b.times)]
        end = (len(rows), -1)
        greatest = max((time_us for _, time_us in rows), default=0)
        expected = {
            END: end,
            EARLIEST: (0, -1),
            OF_MAX_TIMESTAMP: next((row for row in rows if row[1] == greatest), end),
            TIME_US + time: next((row for row in rows if row[1] >= TIME_US + time), end),
        }
        for asked, answer in expected.items():
            try:
                found = asyncio.run(find_offset(self.partition, asked, leader_only, InlineRunner()))
            except NotLeader:
                assert leader_only
                assert not self.leading
            else:
                assert (found.offset, found.timestamp_us, found.high_watermark) == (*answer, len(rows))

    # ---- invariants ------------------------------------------------------------------------------------------

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "bench"):
            return
        assert self.partition.high_watermark == sum(b.count for b in self.model.committed)
        assert self.partition.leading == self.leading
        assert len(self.bench.deadlines) == sum(not call.over for call in self.calls)
        assert all(not call.answers for call in self.calls if not call.over)

    @invariant()
    def nothing_is_written_twice(self) -> None:
        """In the log itself, a sequence follows the previous one or starts an epoch, whatever was answered. A forgotten
        producer starts again.
        """
        if not hasattr(self, "bench"):
            return
        for producer in (1, 2, 3):
            batches = [b for b in self.model.batches if b.producer == producer]
            for one, two in pairwise(batches):
                follows = two.epoch == one.epoch and two.sequence == one.sequence + one.count
                assert follows or two.sequence == 0, (one, two)

    def teardown(self) -> None:
        """Every replica of this log has the same bytes, and every waiter gets an answer when it closes."""
        if not hasattr(self, "bench"):
            return
        replica = PartitionState(PRODUCERS_MAX)
        for entry in self.bench.group.log.entries[: self.applied]:
            replica.apply(entry)
            copy = PartitionState(PRODUCERS_MAX)
            copy.load(replica.dump())
            replica = copy
        assert replica.dump() == self.partition.dump()
        self.partition.close(UnknownTopic("deleted"))
        for call in self.calls:
            if not call.over:
                self.ended(call, False)
        assert all(len(call.answers) == (call.acks is not Acks.NONE) for call in self.calls)


TestPartitionLife = PartitionLife.TestCase
TestPartitionLife.settings = settings(
    max_examples=80, stateful_step_count=40, derandomize=True, database=None, deadline=None
)
