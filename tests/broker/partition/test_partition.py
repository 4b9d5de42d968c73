"""A partition's decisions about batches, with a group that commits when the test says so."""

from __future__ import annotations

import random

import pytest

from tests.fakes.batches import checked, payload
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tinymq.base.errors import (
    Fenced,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    TinymqError,
    UnknownProducer,
    UnknownTopic,
)
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.rules import Standing


async def always_open(transaction: TransactionId, coordinator: int) -> Standing:
    """A coordinator whose transactions are all open."""
    return Standing.OPEN


class Bench:
    """A partition, its group, and the answers to its producers."""

    def __init__(self, producers_max: int = 100) -> None:
        self.clock = ManualClock()
        self.deadlines = Deadlines(self.clock)
        self.partition = self.make_partition(producers_max)
        self.group = FakeGroup(self.partition)
        self.partition.attach(self.group)
        self.answers: list[Produced | TinymqError] = []

    def make_partition(self, producers_max: int) -> Partition:
        return Partition(
            "t/0", self.deadlines, lambda call: call(), {1: "h:1", 2: "h:2"}.get, producers_max,
            ask_coordinator=always_open,
        )  # fmt: skip

    def send(self, count: int = 1, *, acks: Acks = Acks.QUORUM, timeout_s: float = 1.0, **header: int) -> None:
        self.partition.produce(*checked(payload(count, **header)), acks, timeout_s, self.answers.append)  # type: ignore[arg-type]

    @property
    def offsets(self) -> list[int]:
        return [t.base_offset for t in self.answers if isinstance(t, Produced)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_batch_is_answered_when_it_is_committed_and_not_before(bench: Bench) -> None:
    bench.send(3)
    bench.send(2)
    assert bench.answers == []
    bench.group.commit(1)
    assert bench.offsets == [0]
    bench.group.commit()
    assert bench.offsets == [0, 3]
    assert bench.partition.high_watermark == 5
    assert len(bench.deadlines) == 0


def test_a_callback_that_raises_affects_no_other(bench: Bench) -> None:
    """Hazard 9: an applied batch is applied once and stays applied, even if its waiter is gone."""
    answers: list[Produced | TinymqError] = []

    def done(outcome: Produced | TinymqError) -> None:
        answers.append(outcome)
        raise ValueError("a bug in the waiter")

    def send() -> None:
        bench.partition.produce(*checked(payload(2)), Acks.QUORUM, 1.0, done)
        bench.send(3)

    send()
    bench.group.commit()
    assert (len(answers), bench.offsets) == (1, [2])
    assert bench.partition.high_watermark == 5
    send()
    bench.group.lose_leadership(to=2)
    assert [type(outcome) for outcome in (answers[1], bench.answers[1])] == [OutcomeUnknown] * 2
    assert (len(answers), len(bench.deadlines)) == (2, 0)


def test_acks_leader_answers_after_append_and_none_never(bench: Bench) -> None:
    bench.send(acks=Acks.LEADER)
    assert bench.offsets == [0]
    bench.send(acks=Acks.NONE)
    bench.group.commit()
    assert bench.offsets == [0]
    assert bench.partition.high_watermark == 2


def test_a_follower_refuses_and_names_the_leader(bench: Bench) -> None:
    bench.group.lose_leadership(to=2)
    with pytest.raises(NotLeader) as refused:
        bench.send()
    assert refused.value.detail == {"leader": "2", "leader_address": "h:2", "leader_epoch": "2"}


def test_a_new_leader_refuses_until_it_accepts_writes() -> None:
    partition = Partition("t/0", Deadlines(ManualClock()), lambda call: call(), {}.get)
    partition.attach(FakeGroup(partition, leads=False))
    with pytest.raises(NotLeader):
        partition.produce(*checked(payload()), Acks.QUORUM, 1.0, lambda _: None)


def test_a_committed_duplicate_answers_at_once_with_the_first_offset(bench: Bench) -> None:
    bench.send(7)
    bench.send(3, producer=9, sequence=0)
    bench.group.commit()
    bench.send(3, producer=9, sequence=0)
    assert bench.offsets == [0, 7, 7]
    assert bench.answers[2].duplicate  # type: ignore[union-attr]
    assert bench.partition.high_watermark == 10


def test_an_uncommitted_duplicate_waits_for_the_first(bench: Bench) -> None:
    bench.send(3, producer=9, sequence=0)
    bench.send(2, producer=9, sequence=3)
    bench.send(3, producer=9, sequence=0)
    assert bench.answers == []
    assert len(bench.group.log.entries) == 3, "the no-op and two batches"
    bench.group.commit(1)
    assert bench.offsets == [0, 0]
    bench.group.commit()
    assert bench.offsets == [0, 0, 3]


def test_sequences_are_checked_against_uncommitted_appends(bench: Bench) -> None:
    bench.send(3, producer=9, sequence=0)
    bench.send(3, producer=9, sequence=3)
    with pytest.raises(OutOfOrderSequence) as gap:
        bench.send(3, producer=9, sequence=9)
    assert gap.value.detail == {"expected_sequence": "6"}
    bench.group.commit(1)
    bench.send(1, producer=9, sequence=6)
    bench.group.commit()
    assert bench.offsets == [0, 3, 6]


@pytest.mark.parametrize("commit", [True, False])
def test_epochs(bench: Bench, commit: bool) -> None:
    bench.send(2, producer=9, epoch=1, sequence=0)
    if commit:
        bench.group.commit()
    with pytest.raises(Fenced):
        bench.send(2, producer=9, epoch=0, sequence=2)
    with pytest.raises(OutOfOrderSequence):
        bench.send(2, producer=9, epoch=2, sequence=2)
    bench.send(2, producer=9, epoch=2, sequence=0)
    with pytest.raises(Fenced):
        bench.send(2, producer=9, epoch=1, sequence=2)
    bench.group.commit()
    assert bench.offsets == [0, 2]


def test_an_unknown_producer_starts_at_zero(bench: Bench) -> None:
    with pytest.raises(UnknownProducer):
        bench.send(producer=9, sequence=4)
    bench.send(producer=9, epoch=3, sequence=0)
    bench.group.commit()
    assert bench.offsets == [0]


def test_five_batches_are_remembered(bench: Bench) -> None:
    for sequence in range(6):
        bench.send(producer=9, sequence=sequence)
    bench.group.commit()
    for sequence in range(1, 6):
        bench.send(producer=9, sequence=sequence)
    assert bench.offsets[6:] == [1, 2, 3, 4, 5]
    with pytest.raises(OutOfOrderSequence):
        bench.send(producer=9, sequence=0)


def test_another_count_under_a_known_sequence_is_not_a_duplicate(bench: Bench) -> None:
    bench.send(3, producer=9, sequence=0)
    bench.group.commit()
    with pytest.raises(OutOfOrderSequence):
        bench.send(2, producer=9, sequence=0)


def test_the_producer_that_appended_longest_ago_is_forgotten() -> None:
    bench = Bench(producers_max=2)
    bench.send(producer=1, sequence=0)
    bench.send(producer=2, sequence=0)
    bench.send(producer=1, sequence=1)
    bench.send(producer=3, sequence=0)
    bench.group.commit()
    bench.send(producer=1, sequence=2)
    with pytest.raises(UnknownProducer):
        bench.send(producer=2, sequence=1)


def test_a_lost_leadership_leaves_outcomes_unknown_and_drops_uncommitted_producer_state(bench: Bench) -> None:
    bench.send(2, producer=9, sequence=0)
    bench.group.commit()
    bench.send(2, producer=9, sequence=2)
    bench.group.lose_leadership()
    assert bench.offsets == [0]
    assert isinstance(bench.answers[1], OutcomeUnknown)
    bench.group.win()
    bench.send(2, producer=9, sequence=2)
    bench.group.commit()
    assert bench.offsets == [0, 2]
    assert not bench.answers[2].duplicate  # type: ignore[union-attr]


def test_a_retry_after_a_change_of_leader_appends_once(bench: Bench) -> None:
    bench.send(2, producer=9, sequence=0)
    bench.group.lose_leadership(keep_tail=True)
    assert isinstance(bench.answers[0], OutcomeUnknown)
    bench.group.win()
    bench.send(2, producer=9, sequence=0)
    assert bench.offsets == [0]
    assert bench.partition.high_watermark == 2


def test_the_time_is_up(bench: Bench) -> None:
    bench.send(timeout_s=0.5)
    bench.clock.advance(0.49)
    assert bench.answers == []
    bench.clock.advance(0.04)
    assert isinstance(bench.answers[0], OutcomeUnknown)
    bench.group.commit()
    assert len(bench.answers) == 1, "answered once"


def test_a_closed_partition_tells_everyone(bench: Bench) -> None:
    bench.send()
    bench.partition.close(UnknownTopic("deleted"))
    assert isinstance(bench.answers[0], OutcomeUnknown)
    with pytest.raises(UnknownTopic):
        bench.send()


def test_replicas_of_one_log_have_equal_states_from_any_snapshot() -> None:
    rng = random.Random(7)
    leader = Bench(producers_max=5)
    sequences: dict[int, int] = {}
    for _ in range(300):
        producer, count = rng.randrange(9), rng.randrange(1, 4)
        sequence = sequences.get(producer, 0)
        try:
            leader.send(count, producer=producer, sequence=sequence)
            sequences[producer] = sequence + count
        except UnknownProducer:
            sequences[producer] = 0
        if rng.random() < 0.3:
            leader.group.commit()
    leader.group.commit()
    entries = leader.group.log.entries
    for cut in rng.sample(range(len(entries)), 5):
        early = Bench(producers_max=5).partition
        early.state = type(early.state)(5)
        for entry in entries[:cut]:
            early.apply(entry)
        late = Bench(producers_max=5).partition
        late.load(early.dump())
        for entry in entries[cut:]:
            late.apply(entry)
        assert late.dump() == leader.partition.dump()
