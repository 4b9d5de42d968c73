"""A send queue against a model of a broker: every schedule of losses, refusals and forgotten producers keeps order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymq.base.errors import (
    BatchTooLarge,
    Closed,
    DeadlineExceeded,
    NotReady,
    OutcomeUnknown,
    OutOfOrderSequence,
    TinymqError,
    UnknownProducer,
)
from tinymq.broker.state.producers import ProducerState, extend, judge
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SendQueue
from tinymq.format.batch import BatchHeader

MESSAGE = pa.py_buffer(b"")
PRODUCER = 7


def lane_of(limit: int = 5, *, numbered: bool = True) -> SendQueue:
    return SendQueue("t", b"i" * 16, 0, limit=limit, numbered=numbered)


def sealed(queue: SendQueue, count: int = 1, deadline_s: float = 1e9) -> ProducerBatch:
    batch = ProducerBatch(queue, 0.0, deadline_s)
    batch.message, batch.count = MESSAGE, count
    queue.sealed.append(batch)
    return batch


@dataclass
class Attempt:
    """A copy of a batch as it was sent."""

    batch: ProducerBatch
    header: BatchHeader
    name: int
    request_id: int = 0


@dataclass
class World:
    """A send queue, a partition of a broker, and the wire between them. Hypothesis draws the schedule."""

    rng: random.Random
    numbered: bool = True
    now_s: float = 0.0
    log: list[int] = field(default_factory=list)  # names of batches, as appended
    known: ProducerState | None = None
    wire: list[Attempt] = field(default_factory=list)  # in flight, in order
    late: list[Attempt] = field(default_factory=list)  # in flight to a former leader, which may still answer
    zombies: list[Attempt] = field(default_factory=list)  # attempts of a broken connection that may still arrive
    requests: int = 0
    names: dict[int, int] = field(default_factory=dict)  # id(batch) -> name
    ended: dict[int, TinymqError | None] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # as sealed

    def __post_init__(self) -> None:
        self.queue = lane_of(5 if self.numbered else 1, numbered=self.numbered)
        self.batches: list[ProducerBatch] = []

    def seal(self) -> None:
        deadline_s = self.now_s + self.rng.choice((0.05, 1.0, 1e9))
        batch = sealed(self.queue, self.rng.randrange(1, 4), deadline_s)
        self.batches.append(batch)
        self.names[id(batch)] = len(self.batches)
        self.order.append(len(self.batches))

    def send(self) -> None:
        while (batch := self.queue.take(self.now_s)) is not None:
            producer = PRODUCER if self.numbered else 0
            header = BatchHeader(1, 0, batch.count, producer, batch.epoch, batch.first_sequence)
            self.requests += 1
            batch.request_id = self.requests
            self.wire.append(Attempt(batch, header, self.names[id(batch)], self.requests))

    def write(self, attempt: Attempt) -> TinymqError | None:
        """Let the broker handle the next request."""
        if self.numbered:
            try:
                if judge(self.known, attempt.header) is not None:
                    return None
            except TinymqError as error:
                return error
            self.known = extend(self.known, attempt.header, len(self.log), 0)
        self.log.append(attempt.name)
        return None

    def finish(self, ended: list[tuple[ProducerBatch, TinymqError]]) -> None:
        for batch, error in ended:
            self.end(batch, error)

    def end(self, batch: ProducerBatch, error: TinymqError | None) -> None:
        name = self.names[id(batch)]
        assert name not in self.ended, "ended twice"
        self.ended[name] = error
        for attempt in [a for a in self.wire if a.batch is batch]:
            self.wire.remove(attempt)
            self.zombies.append(attempt)

    def answer(self) -> None:
        attempt = self.wire.pop(0)
        batch, queue = attempt.batch, self.queue
        refusal: TinymqError | None
        match self.rng.randrange(12):
            case 0:
                refusal = NotReady("not now")
            case 1:
                refusal = BatchTooLarge("never")
            case 2 if self.numbered and attempt.header.first_sequence > 0 and self.may_forget():
                self.known = None
                refusal = UnknownProducer("forgotten")
            case _:
                refusal = self.write(attempt)
        if refusal is None:
            queue.acknowledged(batch)
            self.end(batch, None)
        elif isinstance(refusal, OutOfOrderSequence | UnknownProducer):
            self.finish(queue.out_of_sequence(batch, self.now_s, refusal))
        elif refusal.retriable:
            queue.refused(batch, self.now_s)
        else:
            self.finish([queue.rejected(batch, refusal)])

    def may_forget(self) -> bool:
        """The broker forgets the producer, and would accept its sequence 0 again.

        This is a limit of the protocol (KIP-360). It takes 10,000 other producers at the partition to reach it.
        """
        again = [b for b in self.queue.in_flight if b.unclear and b.first_sequence == 0]
        return not again and all(z.header.first_sequence for z in (*self.zombies, *self.late))

    def move_leader(self) -> None:
        """Send the batches in flight to the new leader as well."""
        former, self.wire = self.wire, []
        for attempt in former:
            self.queue.given_up(attempt.batch, self.now_s)
        self.late += former

    def answer_late(self) -> None:
        """Let the former leader answer that it has written a batch or refuses it, or break the connection to it."""
        attempt = self.late.pop(0)
        batch, queue = attempt.batch, self.queue
        how = self.rng.randrange(3)
        error = self.write(attempt) if how == 0 else NotReady("not the leader")
        if how == 2:
            self.zombies.append(attempt)
        if batch.done or attempt.name in self.ended or attempt.request_id not in batch.unanswered:
            return
        if error is None:
            queue.acknowledged(batch)
            self.end(batch, None)
        else:
            queue.answered_late(batch, attempt.request_id, unknown=how == 2)

    def lose_stream(self) -> None:
        """Break the connection: some first requests were written, and the others may arrive later or never."""
        reached = self.rng.randrange(len(self.wire) + 1)
        lost, self.wire = self.wire, []
        for place, attempt in enumerate(lost):
            if place < reached:
                self.write(attempt)
            else:
                self.zombies.append(attempt)
        for attempt in lost:
            self.finish(self.queue.lost(attempt.batch, self.now_s, OutcomeUnknown("cut off")))

    def zombie(self) -> None:
        """Deliver a request that the client has given up."""
        place = self.rng.randrange(len(self.zombies))
        attempt = self.zombies[place]
        del self.zombies[: place + 1]  # a stream keeps order: the requests before it have arrived or are lost
        self.write(attempt)

    def step(self) -> None:
        match self.rng.randrange(12):
            case 0 | 1 | 2:
                self.seal()
            case 3 | 4 | 5 | 6 if self.wire:
                self.answer()
            case 7 if self.wire:
                self.lose_stream()
            case 8 if self.zombies and self.numbered:
                self.zombie()
            case 9 if self.numbered:
                self.move_leader()
            case 10 if self.late:
                self.answer_late()
            case _:
                self.now_s += 0.05
        self.finish(self.queue.expire(self.now_s))
        self.send()

    def settle(self) -> None:
        for _ in range(10_000):
            if self.queue.idle:
                return
            self.now_s += 0.05
            self.send()
            while self.wire:
                self.answer()
            while self.late:
                self.answer_late()
            self.finish(self.queue.expire(self.now_s))
        raise AssertionError("the send queue never came to rest")

    def check(self) -> None:
        assert set(self.ended) == set(self.order), "every batch ends"
        if self.numbered:
            assert len(set(self.log)) == len(self.log), "written twice"
        acknowledged = [n for n in self.order if self.ended[n] is None]
        assert set(acknowledged) <= set(self.log), "acknowledged and not written"
        places = [self.log.index(n) for n in acknowledged]
        assert places == sorted(places), "acknowledged batches changed places"
        for name, error in self.ended.items():
            if isinstance(error, DeadlineExceeded | BatchTooLarge):
                assert name not in self.log, f"written, and ended as {error.code}"


@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=600, deadline=None)
def test_every_schedule_keeps_the_promises(seed: int, numbered: bool) -> None:
    world = World(random.Random(seed), numbered)
    for _ in range(80):
        world.step()
    world.settle()
    world.check()


def take_all(queue: SendQueue, now_s: float = 0.0) -> list[ProducerBatch]:
    taken = []
    while (batch := queue.take(now_s)) is not None:
        taken.append(batch)
    return taken


def test_five_are_on_their_way_with_sequences_in_a_row() -> None:
    queue = lane_of()
    for _ in range(7):
        sealed(queue, 10)
    assert [b.first_sequence for b in take_all(queue)] == [0, 10, 20, 30, 40]
    queue.acknowledged(queue.in_flight[0])
    assert [b.first_sequence for b in take_all(queue)] == [50]


def test_after_a_failure_everything_on_its_way_ends_before_anything_goes_again() -> None:
    queue = lane_of()
    a, b, c = (sealed(queue) for _ in range(3))
    assert take_all(queue) == [a, b, c]
    queue.refused(a, 0.0, 0.0)
    assert take_all(queue, 1.0) == []
    queue.out_of_sequence(b, 0.0, OutOfOrderSequence(""))
    assert take_all(queue, 1.0) == []
    queue.lost(c, 0.0, OutcomeUnknown(""))
    assert take_all(queue, 1.0) == [a, b, c]
    assert [x.first_sequence for x in (a, b, c)] == [0, 1, 2]


def test_a_forgotten_producer_gets_a_new_epoch_and_unclear_batches_never_enter_it() -> None:
    queue = lane_of()
    a, b, c = (sealed(queue) for _ in range(3))
    take_all(queue)
    queue.acknowledged(a)
    queue.lost(b, 0.0, OutcomeUnknown("cut"))
    queue.refused(c, 0.0, 0.0)
    assert take_all(queue, 1.0) == [b, c]
    assert (b.epoch, b.first_sequence) == (0, 1)
    ((ended, error),) = queue.out_of_sequence(b, 1.0, UnknownProducer("who?"))
    assert ended is b
    assert isinstance(error, OutcomeUnknown)
    queue.out_of_sequence(c, 1.0, UnknownProducer("who?"))
    assert take_all(queue, 3.0) == [c]
    assert (c.epoch, c.first_sequence) == (1, 0)


def test_a_batch_whose_abandoned_attempts_were_all_refused_enters_a_new_epoch() -> None:
    """The log was lost while the batch was in flight to a former leader, so that certainly no replica has the batch."""
    queue = lane_of()
    a, b = sealed(queue), sealed(queue)
    assert queue.take(0.0) is a
    queue.acknowledged(a)
    assert queue.take(0.0) is b
    b.request_id = 7
    queue.given_up(b, 0.0)
    assert b.unclear
    assert queue.take(1.0) is b
    assert (b.epoch, b.first_sequence) == (0, 1), "under its number"
    b.request_id = 8
    assert queue.out_of_sequence(b, 1.0, UnknownProducer("who?")) == [], "the former leader may still answer"
    assert queue.take(5.0) is b
    assert (b.epoch, b.first_sequence) == (0, 1)
    queue.out_of_sequence(b, 5.0, UnknownProducer("who?"))
    queue.answered_late(b, 7, unknown=False)
    assert not b.unclear
    assert queue.take(5.0) is b
    assert (b.epoch, b.first_sequence) == (1, 0)


def test_a_batch_whose_abandoned_attempt_is_cut_off_ends_as_unknown() -> None:
    queue = lane_of()
    a, b = sealed(queue), sealed(queue)
    take_all(queue)
    queue.acknowledged(a)
    b.request_id = 7
    queue.given_up(b, 0.0)
    assert queue.take(1.0) is b
    b.request_id = 8
    queue.answered_late(b, 7, unknown=True)
    ((ended, error),) = queue.out_of_sequence(b, 1.0, UnknownProducer("who?"))
    assert ended is b
    assert isinstance(error, OutcomeUnknown)


def test_unwritten_records_end_certainly_and_possibly_written_ones_as_unknown() -> None:
    queue = lane_of()
    a, b, c = sealed(queue, 1, 5.0), sealed(queue, 1, 5.0), sealed(queue, 1, 5.0)
    take_all(queue)
    queue.refused(a, 0.0, 10.0)
    queue.lost(b, 0.0, OutcomeUnknown(""))
    ended = dict(queue.expire(5.0))
    assert isinstance(ended[a], DeadlineExceeded)
    assert isinstance(ended[b], OutcomeUnknown)
    assert isinstance(ended[c], OutcomeUnknown), "its attempt was still on its way"
    assert queue.idle


def test_without_sequences_a_lost_attempt_is_the_end() -> None:
    queue = lane_of(1, numbered=False)
    a, b = sealed(queue), sealed(queue)
    assert take_all(queue) == [a]
    ((ended, error),) = queue.lost(a, 0.0, OutcomeUnknown("cut"))
    assert ended is a
    assert isinstance(error, OutcomeUnknown)
    assert take_all(queue) == [b]
    assert b.first_sequence == -1


@pytest.mark.parametrize("failures", range(1, 12))
def test_waiting_grows_and_is_bounded(failures: int) -> None:
    queue = lane_of(1)
    batch = sealed(queue)
    now_s = waited_s = 0.0
    for _ in range(failures):
        assert queue.take(now_s) is batch
        queue.refused(batch, now_s)
        waited_s = queue.resume_s - now_s
        now_s = queue.resume_s
    assert waited_s == pytest.approx(min(1.0, 0.02 * 2 ** (failures - 1)))


def test_an_abandoned_attempt_waits_for_no_answer() -> None:
    queue = lane_of()
    batches = [sealed(queue), sealed(queue)]
    assert take_all(queue) == batches
    assert [batch for batch, _ in queue.abandon(Closed("gone"))] == batches
    assert not any(batch.sent for batch in batches), "a late answer is to nobody"


# ---- in a transaction


def staged_queue(limit: int = 5) -> SendQueue:
    return SendQueue("t", b"i" * 16, 0, limit=limit, numbered=True, staged=True)


def test_a_batch_of_a_transaction_takes_one_number() -> None:
    queue = staged_queue()
    batches = [sealed(queue, count) for count in (3, 1, 7)]
    assert [queue.take(0.0) for _ in batches] == batches
    assert [batch.first_sequence for batch in batches] == [0, 1, 2]
    queue.acknowledged(batches[0])
    assert queue.written == 1
    queue.refused(batches[1], 0.0, 0.0)
    assert queue.lost(batches[2], 0.0, OutcomeUnknown("lost")) == []
    queue.end_pause()
    assert [queue.take(0.0), queue.take(0.0)] == batches[1:], "all are sent again, first to last"
    assert [batch.first_sequence for batch in batches] == [0, 1, 2], "under their numbers"
    for batch in batches[1:]:
        queue.acknowledged(batch)
    assert queue.written == 3


def test_nothing_is_sent_behind_a_lost_batch_of_a_transaction() -> None:
    """In a new epoch the next batch would have the number of a staged one, and be answered as a duplicate of it."""
    queue = staged_queue()
    first, second = sealed(queue, deadline_s=1.0), sealed(queue)
    assert queue.take(0.0) is first
    ((ended, error),) = queue.expire(2.0)
    assert ended is first
    assert isinstance(error, OutcomeUnknown)
    assert queue.take(3.0) is None
    assert second.first_sequence == -1


def test_a_gap_in_a_transaction_ends_the_batch_behind_it() -> None:
    queue = staged_queue()
    batch = sealed(queue)
    assert queue.take(0.0) is batch
    gap = OutOfOrderSequence("an earlier batch is missing")
    assert queue.out_of_sequence(batch, 0.0, gap) == [(batch, gap)]
    assert queue.take(1.0) is None
