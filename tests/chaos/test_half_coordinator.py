"""What a coordinator of half messages does in virtual time: its schedule, with checkers that answer and that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import pytest

from tests.chaos.raft_model import COORDINATOR
from tests.chaos.transaction_lives import TOPIC, TransactionLife, TransactionWorld
from tinymq.base.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    QuotaExceeded,
    TransactionAborted,
    UnknownPartition,
)
from tinymq.base.meter import Unmetered
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion
from tinymq.broker.half_messages.check_turns import MEMBERS_MAX
from tinymq.broker.half_messages.half_coordinator import CHECKS_BYTES_MAX, Check, HalfCoordinator
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half import half_message
from tinymq.broker.transactions.half.half_message import HalfMessage
from tinymq.broker.transactions.rules import Standing
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually

GROUP = "checkout"
A = PartitionId(TOPIC, 0)
FIRST_US = 6_000_000
OPEN_S = 1200.0
POLL_S = 5.0
ME, OTHER = b"m" * 16, b"o" * 16


class Partitions:
    """The leaders of partitions, which hold, show and confirm what a test says."""

    def __init__(self) -> None:
        self.batches: dict[TransactionId, bytes] = {}
        self.answering = True
        self.ended: list[tuple[TransactionId, bool]] = []

    async def held(self, transaction: TransactionId, places: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        held = int(transaction in self.batches)
        return dict.fromkeys(places, held) if self.answering else {}

    async def staged(self, transaction: TransactionId, place: PartitionId) -> bytes | None:
        return self.batches.get(transaction, b"") if self.answering else None

    async def end(
        self, transaction: TransactionId, places: Collection[PartitionId], *, publish: bool
    ) -> Collection[PartitionId]:
        if not self.answering:
            return []
        self.ended.append((transaction, publish))
        self.batches.pop(transaction, None)
        return places


class Counts(Unmetered):
    def __init__(self) -> None:
        self.decided: list[str] = []
        self.unknown = 0

    def half_decided(self, how: str) -> None:
        self.decided.append(how)

    def half_checked(self) -> None:
        self.unknown += 1


class Story:
    """Three brokers, of which broker 1 leads, and no half messages."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.world = world = TransactionWorld(TransactionLife(1), loop)
        self.partitions = Partitions()
        self.counts = Counts()
        self.coordinators: dict[int, HalfCoordinator] = {}
        for raft in world.rafts:
            registry: Any = world.registry
            own = {(COORDINATOR.topic_id, 0): raft.machine}
            partitions = world.coordinators[raft.number]
            made = HalfCoordinator(
                registry=registry,
                partitions=partitions,
                replicas=partial(dict, own),
                producer_ids=registry,
                leaders=self.partitions,
                clock=world.clock,
                meter=self.counts,
            )
            raft.machine.on_half, raft.machine.on_role = made.on_changed, made.on_role
            self.coordinators[raft.number] = made

    @property
    def at(self) -> HalfCoordinator:
        """The coordinator on the broker that leads."""
        return self.coordinators[self.world.ruler]

    @property
    def now_s(self) -> float:
        return self.world.clock.monotonic()

    @property
    def halves(self) -> Mapping[TransactionId, HalfMessage]:
        return self.world.rafts[self.world.ruler - 1].machine.transactional_ids.half_messages.halves

    async def begin(
        self, *, staged: bool = True, batch: bytes = b"batch", context: bytes = b"order 42"
    ) -> TransactionId:
        transaction = await self.at.begin(GROUP, A, context, FIRST_US)
        if staged:
            self.partitions.batches[transaction] = batch
        return transaction

    async def sleep(self, seconds: float) -> None:
        await self.world.clock.sleep(seconds)

    async def lead(self, broker: int) -> None:
        self.world.elect(broker)
        await self.sleep(1.0)

    async def poll(self, member: bytes = ME, most: int = 10, wait_s: float = POLL_S) -> list[Check]:
        return await self.at.checks(GROUP, member, most, wait_s)

    async def checked(self, member: bytes = ME) -> Check:
        """The next check. A member asks again and again."""
        while not (found := await self.poll(member)):
            pass
        (check,) = found
        return check

    async def ends(self, transaction: TransactionId) -> None:
        while transaction in self.halves:
            await self.sleep(0.1)


def story(tell: Callable[[Story], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        told = Story(loop)
        told.world.loses = False
        for coordinator in told.coordinators.values():
            coordinator.start()
        await told.lead(1)
        await tell(told)
        for coordinator in told.coordinators.values():
            await coordinator.stop()

    run_virtually(main)


# ---- the schedule ------------------------------------------------------------------------------------------------


def test_a_half_message_that_nobody_knows_is_checked_15_times_and_given_up() -> None:
    async def tell(told: Story) -> None:
        transaction, begun_s = await told.begin(), told.now_s
        at_s = []
        for number in range(15):
            check = await told.checked()
            at_s.append(told.now_s - begun_s)
            assert (check.half.transaction, check.half.checks, check.batch) == (transaction, number, b"batch")
            if number == 7:
                await told.lead(2)
            await told.at.count(GROUP, transaction, number)
        for number, seconds in enumerate(at_s):
            assert 6 + 30 * number <= seconds < 6 + 30 * number + 2 * (1 + number), at_s
        assert await told.poll(wait_s=25.0) == [], "the sender may still decide"
        await told.ends(transaction)
        assert told.partitions.ended == [(transaction, False)]
        assert told.counts.decided == ["given_up"]
        assert told.counts.unknown == 15

    story(tell)


def test_a_check_without_an_answer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, a half message is given up after twenty minutes, and not after a day."""
    monkeypatch.setattr(half_message, "OPEN_US_MAX", int(OPEN_S * 1e6))

    async def tell(told: Story) -> None:
        transaction, begun_s = await told.begin(), told.now_s
        first = await told.checked()
        again_s = told.now_s
        second = await told.checked()
        assert second == first, "no answer came, so it is the same check"
        assert told.now_s - again_s >= 30
        await told.sleep(OPEN_S - 120 - (told.now_s - begun_s))
        assert told.at.unfinished()[:3] == (1, 0, 1)
        assert transaction in told.halves, "however long there was no member"
        assert (await told.checked()).half.checks == 0
        await told.sleep(125)
        assert transaction not in told.halves
        assert told.counts.decided == ["given_up"]

    story(tell)


def test_what_was_never_staged_is_dropped_and_nobody_is_asked() -> None:
    async def tell(told: Story) -> None:
        kept, dropped = await told.begin(), await told.begin(staged=False)
        assert [check.half.transaction for check in await told.poll(wait_s=10.0)] == [kept]
        await told.sleep(100)
        assert dropped in told.halves
        told.partitions.answering = False
        await told.sleep(60)
        assert dropped in told.halves, "nobody has said that nothing is staged"
        told.partitions.answering = True
        await told.sleep(5)
        assert list(told.halves) == [kept]
        assert told.counts.decided == ["unstaged"]
        with pytest.raises(TransactionAborted):
            await told.at.end(GROUP, dropped, commit=True, decide_s=1.0)

    story(tell)


# ---- members -----------------------------------------------------------------------------------------------------


def test_a_half_message_is_one_member_s_turn_at_a_time() -> None:
    async def tell(told: Story) -> None:
        transactions = {await told.begin() for _ in range(3)}
        await told.sleep(7)
        first = await told.poll(most=2)
        second = await told.poll(OTHER)
        assert (len(first), len(second)) == (2, 1)
        assert {check.half.transaction for check in first + second} == transactions
        assert await told.poll() == []
        assert told.at.checkers(0, GROUP) == 2
        assert told.at.checkers(0, "another") == 0
        await told.sleep(61)
        assert told.at.checkers(0, GROUP) == 0

    story(tell)


def test_a_member_that_waits_is_woken() -> None:
    async def tell(told: Story) -> None:
        await told.begin()
        begun_s = told.now_s
        assert len(await told.poll(wait_s=10.0)) == 1
        assert 6 <= told.now_s - begun_s < 8

    story(tell)


def test_another_member_is_asked_when_one_does_not_answer_and_both_answers_are_one() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin()
        await told.checked()
        await told.checked(OTHER)
        await told.at.count(GROUP, transaction, 0)
        await told.at.count(GROUP, transaction, 0)
        assert told.halves[transaction].checks == 1
        await told.at.end(GROUP, transaction, commit=True, decide_s=1.0)
        await told.ends(transaction)
        await told.at.count(GROUP, transaction, 1)
        for _ in range(2):
            await told.at.end(GROUP, transaction, commit=True, decide_s=1.0)
        with pytest.raises(InvalidRequest, match="committed already"):
            await told.at.end(GROUP, transaction, commit=False, decide_s=1.0)
        with pytest.raises(OutcomeUnknown):
            await told.at.end("another", TransactionId(999, 0, 1), commit=True, decide_s=1.0)
        assert told.partitions.ended == [(transaction, True)]

    story(tell)


def test_a_failover_asks_again_and_takes_the_answer_to_the_one_before() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin()
        check = await told.checked()
        waiting = asyncio.ensure_future(told.at.checks(GROUP, OTHER, 1, 600.0))
        await told.sleep(1.0)
        await told.lead(2)
        with pytest.raises(NotLeader):
            await waiting
        assert (await told.poll(wait_s=10.0))[0] == check, "at once: the new coordinator does not know of it"
        await told.at.count(GROUP, transaction, 0)
        assert told.halves[transaction].checks == 1

    story(tell)


def test_a_deposed_coordinator_hands_out_nothing() -> None:
    async def tell(told: Story) -> None:
        await told.begin()
        await told.sleep(7)
        deposed, told.world.ruler = told.at, 2  # a majority follows broker 2, and broker 1 does not know it
        with pytest.raises(DeadlineExceeded):
            await deposed.checks(GROUP, ME, 1, 1.0)
        with pytest.raises(DeadlineExceeded):
            await deposed.halves(0)

    story(tell)


def test_what_cannot_be_shown_now_is_shown_later() -> None:
    async def tell(told: Story) -> None:
        large = CHECKS_BYTES_MAX // 8 + 1
        for _ in range(20):
            await told.begin(batch=b"x" * large)
        await told.sleep(7)
        told.partitions.answering = False
        assert await told.poll(most=64) == []
        told.partitions.answering = True
        await told.sleep(5)
        found = [len(await told.poll(most=64, wait_s=0.0)) for _ in range(3)]
        assert found == [8, 8, 4]

    story(tell)


def test_members_are_bounded() -> None:
    async def tell(told: Story) -> None:
        for number in range(MEMBERS_MAX):
            await told.poll(number.to_bytes(16), wait_s=0.0)
        with pytest.raises(QuotaExceeded):
            await told.poll(ME, wait_s=0.0)
        await told.poll((0).to_bytes(16), wait_s=0.0)
        await told.sleep(62)
        await told.poll(ME, wait_s=0.0)

    story(tell)


# ---- senders -----------------------------------------------------------------------------------------------------


def test_a_decision_reaches_its_partition_whatever_happens() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin()
        told.partitions.answering = False
        with pytest.raises(DeadlineExceeded):
            await told.at.end(GROUP, transaction, commit=True, decide_s=1.0)
        assert told.halves[transaction].is_open
        told.partitions.answering = True
        end = asyncio.ensure_future(told.at.end(GROUP, transaction, commit=True, decide_s=1.0))
        await told.sleep(0.0)
        await end
        assert await told.at.wait_over(GROUP, transaction, 1.0)
        another = await told.begin()
        await told.at.end(GROUP, another, commit=False, decide_s=1.0)
        await told.lead(3)
        await told.ends(another)
        assert list(dict.fromkeys(told.partitions.ended)) == [(transaction, True), (another, False)]

    story(tell)


def test_a_visible_commit_waits_for_the_partition() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin()

        async def silent(*which: Any, publish: bool) -> Collection[PartitionId]:
            return []

        end, told.partitions.end = told.partitions.end, silent  # type: ignore[method-assign]
        await told.at.end(GROUP, transaction, commit=True, decide_s=1.0)
        assert not await told.at.wait_over(GROUP, transaction, 3.0)
        assert told.at.unfinished()[:2] == (0, 1)
        told.partitions.end = end  # type: ignore[method-assign]
        assert await told.at.wait_over(GROUP, transaction, 3.0)

    story(tell)


def test_what_cannot_begin_is_refused() -> None:
    async def tell(told: Story) -> None:
        with pytest.raises(UnknownPartition):
            await told.at.begin(GROUP, PartitionId(TOPIC, 99), b"", FIRST_US)
        with pytest.raises(InvalidRequest, match="context"):
            await told.at.begin(GROUP, A, b"x" * 5000, FIRST_US)
        for check_after_us in (999_999, 3_600_000_001):
            with pytest.raises(InvalidRequest, match="check"):
                await told.at.begin(GROUP, A, b"", check_after_us)
        with pytest.raises(NotLeader):
            await told.coordinators[2].begin(GROUP, A, b"", FIRST_US)

    story(tell)


def test_a_partition_asks_about_a_half_message_and_has_it_ended() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin()
        transactions = told.world.coordinators[1]
        assert await transactions.standing(0, [StandingQuestion(transaction, A)]) == [Standing.OPEN]
        assert await transactions.standing(0, [StandingQuestion(transaction, A, end=True)]) == [Standing.DISCARD]
        with pytest.raises(TransactionAborted):
            await told.at.end(GROUP, transaction, commit=True, decide_s=1.0)

    story(tell)
