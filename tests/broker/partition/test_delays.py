"""What a partition's leader does with delayed batches, with a group that commits when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.fakes.batches import checked, payload
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import NOW_US, FakeGroup
from tinymq.base.config import Limits
from tinymq.base.errors import (
    BatchTooLarge,
    Closed,
    DiskFull,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    UnsupportedVersion,
)
from tinymq.base.topic_config import OnFull, Storage, TopicConfig
from tinymq.broker.delayed.bounds import Due
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.state.staged import Totals
from tinymq.format.batch import decode_batch
from tinymq.format.delayed import unpack_published
from tinymq.format.entry import Entry, Kind, NewEntry
from tinymq.raft.rules.noop import NoopNote, pack_noop

SECOND_US = 1_000_000


class Bench:
    """A partition, its group, and the answers to its callers."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.totals = Totals()
        self.partition = Partition(
            "t/0", Deadlines(self.clock), lambda call: call(), lambda _: None, limits=limits, totals=self.totals
        )
        self.group = FakeGroup(self.partition)
        self.partition.attach(self.group)
        self.answers: list[Produced | TinymqError] = []
        self.canceled: list[bool | TinymqError] = []

    def send(
        self, value: bytes = b"v", delay_s: float | None = 1.0, *, at_us: int = 0, count: int = 1,
        acks: Acks = Acks.QUORUM, message_id: bytes = b"", **header: int,
    ) -> None:  # fmt: skip
        due = Due(at_us) if at_us else Due(delay_us=int(delay_s * SECOND_US)) if delay_s is not None else None
        batch = checked(payload(count, value=value, **header))  # type: ignore[arg-type]
        self.partition.produce(*batch, acks, 60.0, self.answers.append, message_id=message_id, due=due)

    def stage(self, value: bytes = b"v", delay_s: float = 1.0, **header: int) -> int:
        """Store a batch, and return its schedule id."""
        self.send(value, delay_s, **header)  # type: ignore[arg-type]
        self.group.commit()
        last = self.answers[-1]
        assert isinstance(last, Produced)
        assert last.schedule_id
        return last.schedule_id

    def cancel(self, schedule_id: int) -> None:
        self.partition.cancel_delayed(schedule_id, 60.0, self.canceled.append)

    async def wait(self, seconds: float) -> None:
        """Let time pass, and all work be done that is due then."""
        steps = max(1, round(seconds / 0.1))
        for _ in range(steps):
            self.group.later_us += int(seconds * SECOND_US / steps)
            self.clock.advance(seconds / steps)
            for _ in range(5):
                await asyncio.sleep(0)
        # The last deadline of a bucket.
        self.clock.advance(0.02)
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def published(self) -> list[Entry]:
        return [entry for entry in self.group.log.entries if entry.header.kind == Kind.DATA]

    @property
    def values(self) -> list[bytes]:
        found: list[bytes] = []
        for entry in self.published:
            found += decode_batch(entry.batch, Limits()).column(1).to_pylist()
        return found


def run(scenario: Callable[[Bench], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        await scenario(Bench(limits))

    asyncio.run(main())


# ---- publishing ----------------------------------------------------------------------------------------------------


def test_a_batch_is_published_when_it_is_due_and_not_before() -> None:
    async def scenario(b: Bench) -> None:
        schedule_id = b.stage(b"later", 2.0)
        await b.wait(1.9)
        assert not b.published
        await b.wait(0.2)
        (entry,) = b.published
        assert b.values == [b"later0"]
        assert unpack_published(entry.payload)[0] == (schedule_id,)
        assert b.partition.high_watermark == 0
        b.group.commit()
        assert b.partition.high_watermark == 1
        await b.wait(60)
        assert len(b.published) == 1

    run(scenario)


def test_batches_come_in_the_order_of_their_due_times_and_small_ones_together() -> None:
    async def scenario(b: Bench) -> None:
        b.stage(b"c", 3.0)
        b.stage(b"a", 1.0)
        b.stage(b"b", 2.0, count=2)
        b.stage(b"x" * 20_000, 2.0)
        b.stage(b"d", 2.0)
        await b.wait(2.5)
        assert [len(entry.batch) > 16_384 for entry in b.published] == [False, False, True, False]
        b.group.commit()
        await b.wait(1)
        assert b.values == [b"a0", b"b0", b"b1", b"x" * 20_000 + b"0", b"d0", b"c0"]

    run(scenario)


def test_many_that_are_due_at_once_are_few_entries() -> None:
    async def scenario(b: Bench) -> None:
        ids = [b.stage(b"%d-" % number, 5.0 - number / 10_000) for number in range(300)]
        await b.wait(6)
        assert len(b.published) == 2
        assert [i for e in b.published for i in unpack_published(e.payload)[0]] == sorted(ids[44:]) + sorted(ids[:44])
        assert b.values == [b"%d-0" % number for number in reversed(range(300))]

    run(scenario)


def test_a_time_that_has_passed_is_due_at_once() -> None:
    async def scenario(b: Bench) -> None:
        b.send(at_us=NOW_US - 5)
        b.group.commit()
        await b.wait(0.1)
        assert len(b.published) == 1

    run(scenario)


def test_what_is_due_in_days_needs_no_timer_in_between() -> None:
    """The timer sleeps for most of the time that is left: the append clock may be 1 % faster than the monotonic one."""

    async def scenario(b: Bench) -> None:
        b.stage(b"later", 20 * 24 * 3600.0)
        woken = 0
        now_us = b.group.append_time_now_us

        def counted() -> int:
            nonlocal woken
            woken += 1
            return now_us()

        b.group.append_time_now_us = counted  # type: ignore[method-assign]
        for _ in range(200):
            b.group.later_us += 3 * 3600 * SECOND_US
            b.clock.advance(3 * 3600.0)
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(b.published) == 1
        assert woken < 50

    run(scenario)


def test_a_failure_is_tried_again() -> None:
    async def scenario(b: Bench) -> None:
        b.stage(b"a")
        b.stage(b"b")
        propose, failures = b.group.propose, 3

        def refuse(new: NewEntry, *, raises_level: bool = False) -> object:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise DiskFull("no room")
            return propose(new)

        b.group.propose = refuse  # type: ignore[method-assign, assignment]
        await b.wait(1.1)
        assert not b.published
        await b.wait(1)
        assert b.values == [b"a0", b"b0"]

    run(scenario)


# ---- leaders -------------------------------------------------------------------------------------------------------


def test_the_next_leader_publishes_what_waits() -> None:
    async def scenario(b: Bench) -> None:
        b.stage(b"a")
        b.send(b"lost")
        b.group.lose_leadership()
        assert isinstance(b.answers[-1], OutcomeUnknown)
        await b.wait(2)
        assert not b.published
        b.group.win()
        await b.wait(0.1)
        assert b.values == [b"a0"]

    run(scenario)


@pytest.mark.parametrize("keep", [False, True])
def test_what_a_lost_leader_published_is_published_once(keep: bool) -> None:
    async def scenario(b: Bench) -> None:
        b.stage(b"a")
        await b.wait(1.1)
        assert len(b.published) == 1
        b.group.lose_leadership(keep_tail=keep)
        b.group.win()
        await b.wait(1)
        b.group.commit()
        assert b.values == [b"a0"]
        assert b.partition.high_watermark == 1

    run(scenario)


def test_a_leader_that_loses_its_leadership_while_it_reads_publishes_nothing() -> None:
    async def scenario(b: Bench) -> None:
        b.stage(b"a")
        gate = asyncio.Event()
        read = b.group.log.read

        async def slow(index: int, bytes_max: int) -> list[Entry]:
            await gate.wait()
            return await read(index, bytes_max)

        b.group.log.read = slow  # type: ignore[method-assign]
        await b.wait(1.1)
        b.group.lose_leadership()
        gate.set()
        await b.wait(0.1)
        assert not b.published

    run(scenario)


# ---- cancelling ----------------------------------------------------------------------------------------------------


def test_a_cancel_is_answered_when_it_is_applied() -> None:
    async def scenario(b: Bench) -> None:
        first, second = b.stage(b"a"), b.stage(b"b")
        b.cancel(first)
        b.cancel(first)
        assert b.canceled == []
        b.group.commit()
        assert b.canceled == [True, True]
        b.cancel(first)
        b.cancel(99)
        assert b.canceled == [True, True, False, False]
        await b.wait(2)
        assert b.values == [b"b0"]
        b.cancel(second)
        assert len(b.canceled) == 4, "the entry that publishes it may still be lost"
        b.group.commit()
        assert b.canceled[4:] == [False]

    run(scenario)


def test_a_cancel_whose_leader_is_lost_has_an_unknown_outcome() -> None:
    async def scenario(b: Bench) -> None:
        schedule_id = b.stage(b"a")
        b.cancel(schedule_id)
        b.group.lose_leadership()
        assert isinstance(b.canceled[0], OutcomeUnknown)
        with pytest.raises(NotLeader):
            b.cancel(schedule_id)
        b.group.win()
        await b.wait(1.1)
        assert b.values == [b"a0"]

    run(scenario)


def test_what_is_canceled_while_it_is_read_is_not_published() -> None:
    async def scenario(b: Bench) -> None:
        schedule_id = b.stage(b"a")
        b.stage(b"b")
        read = b.group.log.read

        async def canceled(index: int, bytes_max: int) -> list[Entry]:
            b.cancel(schedule_id)
            return await read(index, bytes_max)

        b.group.log.read = canceled  # type: ignore[method-assign]
        await b.wait(1.1)
        assert b.values == [b"b0"]

    run(scenario)


# ---- duplicates ----------------------------------------------------------------------------------------------------


def test_a_producers_batch_is_judged_when_it_is_staged() -> None:
    async def scenario(b: Bench) -> None:
        schedule_id = b.stage(b"a", producer=5, sequence=0)
        b.send(b"a", producer=5, sequence=0)
        b.send(b"now", None, producer=5, sequence=1)
        b.group.commit()
        _, again, now = b.answers
        assert isinstance(again, Produced)
        assert isinstance(now, Produced)
        assert (again.schedule_id, again.duplicate, again.base_offset) == (schedule_id, True, 0)
        assert again.deliver_at_us == b.answers[0].deliver_at_us  # type: ignore[union-attr]
        await b.wait(1.1)
        b.group.commit()
        b.send(b"next", None, producer=5, sequence=2)
        b.send(b"a", producer=5, sequence=0)
        b.group.commit()
        assert b.values == [b"now0", b"a0", b"next0"]
        assert again in b.answers[-2:]

    run(scenario)


def test_an_uncommitted_duplicate_waits_for_the_first() -> None:
    async def scenario(b: Bench) -> None:
        b.send(b"a", producer=5, sequence=0)
        b.send(b"a", producer=5, sequence=0)
        assert b.answers == []
        b.group.commit()
        first, second = b.answers
        assert isinstance(first, Produced)
        assert second == replace(first, duplicate=True)

    run(scenario)


def test_a_message_id_counts_when_its_record_is_staged() -> None:
    async def scenario(b: Bench) -> None:
        b.partition.configure(TopicConfig(dedupe_window_ms=3_600_000))
        b.send(b"a", message_id=b"id")
        b.send(b"a", message_id=b"id", producer=5, sequence=0)
        b.group.commit()
        b.send(b"a", None, message_id=b"id")
        b.send(b"a", None, producer=5, sequence=1)
        b.group.commit()
        first, second, third, _ = b.answers
        assert isinstance(first, Produced)
        assert second == replace(first, duplicate=True)
        assert third == replace(first, duplicate=True)
        await b.wait(1.1)
        assert b.values == [b"a0", b"a0"]

    run(scenario)


# ---- bounds --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_delayed_is_refused() -> None:
    async def scenario(b: Bench) -> None:
        for refused in (
            Due(delay_us=SECOND_US - 1),
            Due(delay_us=30 * 86400 * SECOND_US + 1),
            Due(NOW_US + 31 * 86400 * SECOND_US),
        ):
            with pytest.raises(InvalidRequest):
                b.partition.produce(*checked(payload()), Acks.QUORUM, 1.0, b.answers.append, due=refused)
        for acks in (Acks.LEADER, Acks.NONE):
            with pytest.raises(InvalidRequest, match="quorum"):
                b.send(acks=acks)
        b.group.propose(NewEntry(Kind.NOOP, pack_noop(NoopNote(False, 0))))
        b.group.commit()
        with pytest.raises(NotReady, match="time"):
            b.send()
        b.group.propose(NewEntry(Kind.NOOP, pack_noop(NoopNote(True, 5))))
        b.group.commit()
        b.partition.configure(TopicConfig(storage=Storage.MEMORY, max_bytes=1 << 20))
        with pytest.raises(InvalidRequest, match="memory"):
            b.send()
        b.partition.configure(TopicConfig())
        b.group.feature_level = 2
        with pytest.raises(UnsupportedVersion):
            b.send()
        with pytest.raises(UnsupportedVersion):
            b.cancel(1)
        assert not len(b.partition.state.delayed)

    run(scenario)


def test_partitions_and_brokers_have_a_bound() -> None:
    async def scenario(b: Bench) -> None:
        b.send()
        b.send()
        with pytest.raises(QuotaExceeded, match="in the partition"):
            b.send()
        b.group.commit()
        assert b.totals.batches == 2
        await b.wait(1.1)
        b.send()
        b.group.commit()
        assert (b.totals.batches, len(b.partition.state.delayed)) == (1, 1)
        b.totals.change(4, 0)
        with pytest.raises(QuotaExceeded, match="on this broker"):
            b.send()
        b.partition.close(Closed("the end"))
        assert (b.totals.batches, b.totals.bytes) == (4, 0)

    run(scenario, Limits(delayed_batches_max=2, broker_delayed_batches_max=5))


@pytest.mark.parametrize("on_full", [OnFull.REJECT, OnFull.DROP_OLDEST])
def test_a_bounded_topic_gives_room_when_a_batch_is_staged(on_full: OnFull) -> None:
    async def scenario(b: Bench) -> None:
        b.partition.configure(TopicConfig(max_records=5, on_full=on_full))
        b.send(b"a", None, count=2)
        b.stage(b"b", count=3)
        if on_full is OnFull.REJECT:
            with pytest.raises(QuotaExceeded):
                b.send(b"c", None)
            await b.wait(1.1)
        else:
            b.send(b"c", None, count=1)
            b.group.commit()
            assert (b.partition.log_start, b.partition.high_watermark) == (1, 3)
            b.send(b"d", None, count=2)
            with pytest.raises(QuotaExceeded, match="delayed batches"):
                b.send(b"e", None, count=3)
            await b.wait(1.1)
        b.group.commit()
        kept = b.partition.high_watermark - b.partition.log_start
        assert kept == 5
        with pytest.raises(BatchTooLarge):
            b.send(count=6)

    run(scenario)


# ---- space ---------------------------------------------------------------------------------------------------------


def test_mostly_empty_segments_let_go_of_what_waits_in_them() -> None:
    async def scenario(b: Bench) -> None:
        first, second = b.stage(b"a", 100.0), b.stage(b"b", 200.0)
        staged = b.partition.state.delayed.get(first)
        kept: list[int | None] = []
        b.group.log.remove_before_offset = lambda offset, keep_from=None: kept.append(keep_from)  # type: ignore[method-assign]
        b.partition.retain()
        assert kept == [first]
        size = len(b.group.log.entries[first - 1].payload) + 64
        b.group.log.closed_below = lambda offset: [(1, second, 4 * size)]  # type: ignore[method-assign]
        b.partition.retain()
        await b.wait(0)
        assert len(b.group.log.entries) == second, "they take no more than twice what waits"
        b.group.log.closed_below = lambda offset: [(1, second, 5 * size)]  # type: ignore[method-assign]
        b.partition.retain()
        await b.wait(0)
        b.partition.retain()
        await b.wait(0)
        assert [e.header.kind for e in b.group.log.entries[second:]] == [Kind.STAGED] * 2, "each is copied once"
        b.cancel(second)
        b.group.commit()
        assert staged is not None
        assert list(b.partition.state.delayed) == [staged._replace(entry_index=second + 1)]
        await b.wait(101)
        assert b.values == [b"a0"]

    run(scenario)
