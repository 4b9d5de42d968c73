"""A leader's part in transactions: in which order batches are appended, who is asked when, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.errors import (
    NotLeader,
    NotReady,
    OutOfOrderSequence,
    QuotaExceeded,
    TinymqError,
    TransactionAborted,
    Unavailable,
)
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions.led_transactions import (
    ASK_EVERY_S,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    Hang,
    LedTransactions,
    SentBatch,
)
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.transactions.staging import Staging

COORDINATOR = 3  # the partition of __coordinator
T, OTHER = TransactionId(7, 0, 1), TransactionId(8, 0, 1)


def batch(number: int, transaction: TransactionId = T) -> StagedBatch:
    return StagedBatch(transaction, 0, number)


def sent(number: int, transaction: TransactionId = T, size: int = 1) -> SentBatch:
    return SentBatch(batch(number, transaction), COORDINATOR, bytes(size), 1, 0, 0)


class CountedClock(ManualClock):
    """It knows how many wait."""

    waiting = 0

    async def sleep(self, delay_s: float) -> None:
        self.waiting += 1
        await super().sleep(delay_s)
        self.waiting -= 1


class Leader:
    """A leader whose log applies when a test says so, and a coordinator that answers then, too."""

    def __init__(self) -> None:
        self.state = StagedTransactions()
        self.entries: list[tuple[TransactionId, StagedBatch | None, bool]] = []
        self.count = 0  # of entries that are applied
        self.changed = asyncio.Event()
        self.refusing: TinymqError | None = None
        self.deposed: TinymqError | None = None
        self.asked: list[tuple[TransactionId, asyncio.Future[Standing]]] = []
        self.coordinators = set[int]()  # that were asked
        self.ended: list[int] = []  # indexes of the entries that the newest end names
        self.clock = CountedClock()
        self.led = LedTransactions("p", Staging(self.state), self, self._ask, self.clock)

    def append(self, sent: SentBatch) -> int:
        if self.refusing is not None:
            raise self.refusing
        self.entries.append((sent.batch.transaction, sent.batch, False))
        return len(self.entries)

    def append_end(self, transaction: TransactionId, entries: Sequence[StagedEntry], *, publish: bool) -> int:
        self.ended = [entry.entry_index for entry in entries]
        self.entries.append((transaction, None, publish))
        return len(self.entries)

    async def applied(self, index: int) -> None:
        while self.count < index:
            self.changed.clear()
            await self.changed.wait()

    async def confirm(self) -> None:
        if self.deposed is not None:
            raise self.deposed

    def _ask(self, transaction: TransactionId, coordinator: int) -> asyncio.Future[Standing]:
        self.coordinators.add(coordinator)
        answer: asyncio.Future[Standing] = asyncio.get_running_loop().create_future()
        self.asked.append((transaction, answer))
        return answer

    async def answer(self, standing: Standing | TinymqError) -> None:
        """Answer the oldest question."""
        assert self.coordinators == {COORDINATOR}
        _, answer = self.asked.pop(0)
        answer.set_exception(standing) if isinstance(standing, TinymqError) else answer.set_result(standing)
        await turns()

    async def apply(self) -> None:
        while self.count < len(self.entries):
            transaction, batch, _ = self.entries[self.count]
            self.count += 1
            if batch is None:
                self.state.end(transaction)
            else:
                self.state.stage(batch, StagedEntry(self.count, 1, 1, 0, 0), COORDINATOR)
            self.led.staging.applied(self.count)
        self.changed.set()
        await turns()

    async def stage(self, *numbers: int, transaction: TransactionId = T) -> list[asyncio.Task[int]]:
        tasks = [asyncio.ensure_future(self.led.stage(sent(number, transaction))) for number in numbers]
        await turns()
        return tasks

    async def staged(self) -> None:
        """Have batch 0 applied."""
        (task,) = await self.stage(0)
        await self.answer(Standing.OPEN)
        await self.apply()
        assert await task == 1

    @property
    def log(self) -> list[int | str]:
        """The numbers of batches, and the ends."""
        return [entry[1].number if entry[1] is not None else ("discard", "publish")[entry[2]] for entry in self.entries]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def story(tell: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        leader = Leader()
        leader.led.start()
        await tell(leader)
        leader.led.close(NotLeader("over"))
        await turns()

    asyncio.run(main())


def test_batches_wait_for_one_answer_and_are_appended_in_their_order() -> None:
    async def tell(leader: Leader) -> None:
        tasks = await leader.stage(0, 1, 2)
        assert [transaction for transaction, _ in leader.asked] == [T]
        assert leader.log == []
        await leader.answer(Standing.OPEN)
        assert leader.log == [0, 1, 2]
        assert not any(task.done() for task in tasks), "nothing is applied yet"
        await leader.apply()
        assert [task.result() for task in tasks] == [1, 2, 3]
        (again,) = await leader.stage(1)
        assert again.result() == 2
        assert leader.log == [0, 1, 2]
        assert leader.asked == []

    story(tell)


@pytest.mark.parametrize("standing", set(Standing) - {Standing.OPEN})
def test_what_is_not_open_is_refused(standing: Standing) -> None:
    async def tell(leader: Leader) -> None:
        (task,) = await leader.stage(0)
        await leader.answer(standing)
        with pytest.raises(TransactionAborted):
            await task
        assert leader.log == []

    story(tell)


def test_a_coordinator_that_does_not_answer_is_asked_again_by_the_next_batch() -> None:
    async def tell(leader: Leader) -> None:
        (task,) = await leader.stage(0)
        await leader.answer(Unavailable("nobody leads"))
        with pytest.raises(NotReady):
            await task
        (again,) = await leader.stage(0)
        await leader.answer(Standing.OPEN)
        await leader.apply()
        assert await again == 1

    story(tell)


def test_an_end_while_a_question_is_under_way_makes_the_batch_ask_again() -> None:
    async def tell(leader: Leader) -> None:
        (task,) = await leader.stage(0)
        await leader.led.end(T, publish=False)  # nothing is staged: it is confirmed
        await leader.answer(Standing.OPEN)
        assert leader.log == [], "the answer is older than the end"
        await leader.answer(Standing.DISCARD)
        with pytest.raises(TransactionAborted):
            await task

    story(tell)


def test_an_end_is_appended_once_and_confirmed_when_it_is_applied() -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        ends = [asyncio.ensure_future(leader.led.end(T, publish=True)) for _ in range(2)]
        await turns()
        assert leader.log == [0, "publish"]
        assert not any(end.done() for end in ends)
        (late,) = await leader.stage(1)
        with pytest.raises(TransactionAborted):
            await late
        await leader.apply()
        await asyncio.gather(*ends)
        assert await leader.led.held(T) == 0

    story(tell)


def test_a_leader_that_may_be_deposed_neither_counts_nor_ends() -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        assert await leader.led.held(T) == 1
        leader.deposed = NotLeader("no majority confirmed")
        for call in (leader.led.held(T), leader.led.end(T, publish=True)):
            with pytest.raises(NotLeader):
                await call
        assert leader.log == [0]

    story(tell)


def test_a_batch_that_the_log_refuses_leaves_no_gap() -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        leader.refusing = QuotaExceeded("full")
        (full,) = await leader.stage(1)
        leader.refusing = None
        (behind,) = await leader.stage(2)
        with pytest.raises(QuotaExceeded):
            await full
        with pytest.raises(OutOfOrderSequence):
            await behind
        assert leader.log == [0]

    story(tell)


def test_what_waits_is_refused_when_the_leadership_ends_and_is_bounded() -> None:
    async def tell(leader: Leader) -> None:
        tasks = await leader.stage(*range(WAITING_MAX + 1))
        with pytest.raises(QuotaExceeded):
            await tasks[-1]
        leader.led.close(NotLeader("another leader took over"))
        for task in tasks[:-1]:
            with pytest.raises(NotLeader):
                await task
        with pytest.raises(NotLeader):
            await leader.led.stage(sent(0, OTHER))
        assert leader.log == []

    story(tell)


@pytest.mark.parametrize(
    ("standing", "log"),
    [
        (Standing.PUBLISH, [0, "publish"]),
        (Standing.DISCARD, [0, "discard"]),
        (Standing.OPEN, [0]),
        (Standing.LATER, [0]),
        (Standing.UNRESOLVED, [0]),
    ],
)
def test_a_leader_asks_about_what_has_no_end(standing: Standing, log: list[int | str]) -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        leader.clock.advance(ASK_EVERY_S)
        await turns()
        assert leader.asked == [], "most transactions are short: it asks about none that came since it looked"
        leader.clock.advance(ASK_EVERY_S)
        await turns()
        await leader.answer(standing)
        assert leader.log == log
        await leader.apply()
        leader.clock.advance(ASK_EVERY_S)
        await turns()
        assert len(leader.asked) == (len(log) == 1), "it asks again until there is an end"

    story(tell)


def test_a_new_leader_asks_about_what_it_found() -> None:
    async def tell(leader: Leader) -> None:
        leader.state.stage(batch(0), StagedEntry(1, 1, 1, 0, 0), COORDINATOR)
        leader.led.start()
        await turns()
        leader.clock.advance(ASK_EVERY_S)
        await turns()
        await leader.answer(Standing.DISCARD)
        assert leader.log == ["discard"]

    story(tell)


def test_a_coordinator_that_does_not_answer_is_asked_once_for_all() -> None:
    async def tell(leader: Leader) -> None:
        for index in range(3):
            transaction = TransactionId(index, 0, 1)
            leader.state.stage(batch(0, transaction), StagedEntry(index, 1, 1, 0, 0), COORDINATOR)
        leader.led.start()
        for _ in range(2):
            await turns()
            leader.clock.advance(ASK_EVERY_S)
            await turns()
            assert len(leader.asked) == 1
            await leader.answer(Unavailable("nobody leads"))

    story(tell)


def hung(leader: Leader) -> dict[TransactionId, Hang]:
    assert all(each.coordinator == COORDINATOR and each.staged.batches == 1 for each in leader.led.hung)
    return {each.transaction: each.hang for each in leader.led.hung}


def test_a_transaction_hangs_while_its_coordinator_decides_nothing() -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        leader.clock.advance(ASK_EVERY_S)
        await turns()
        assert hung(leader) == {}
        answers: list[tuple[Standing | TinymqError, dict[TransactionId, Hang]]] = [
            (Unavailable("nobody leads"), {T: Hang.UNANSWERED}),
            (Standing.UNRESOLVED, {T: Hang.UNRESOLVED}),
            (Standing.OPEN, {}),
            (Standing.UNRESOLVED, {T: Hang.UNRESOLVED}),
            (Standing.PUBLISH, {}),
        ]
        for answer, expected in answers:
            leader.clock.advance(ASK_EVERY_S)
            await turns()
            await leader.answer(answer)
            assert hung(leader) == expected
        await leader.apply()
        assert leader.log == [0, "publish"]

    story(tell)


def test_what_is_resolved_waits_for_the_earlier_one_of_the_same_producer() -> None:
    first, second = T, T._replace(number=2)

    async def tell(leader: Leader) -> None:
        for index, transaction in ((1, second), (2, first)):
            leader.state.stage(batch(0, transaction), StagedEntry(index, 1, 1, 0, 0), COORDINATOR)
            leader.entries.append((transaction, batch(0, transaction), False))
        leader.count = 2
        leader.led.start()
        await turns()
        for answers in ((Standing.UNRESOLVED, Standing.PUBLISH), (Standing.DISCARD, Standing.PUBLISH)):
            assert leader.log == [0, 0]
            leader.clock.advance(ASK_EVERY_S)
            await turns()
            for answer in answers:
                await leader.answer(answer)
                await leader.apply()
            expected = {first: Hang.UNRESOLVED, second: Hang.BEHIND} if answers[0] is Standing.UNRESOLVED else {}
            assert hung(leader) == expected
        assert leader.entries[2:] == [(first, None, False), (second, None, True)]

    story(tell)


def test_a_leader_at_rest_has_no_timer() -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        end = asyncio.ensure_future(leader.led.end(T, publish=False))
        await turns()
        await leader.apply()
        await end
        assert leader.clock.waiting == 1
        leader.clock.advance(ASK_EVERY_S)
        await turns()
        assert leader.clock.waiting == 0

    story(tell)


def test_an_end_names_the_batches_that_are_not_applied_yet_too() -> None:
    async def tell(leader: Leader) -> None:
        await leader.staged()
        (second,) = await leader.stage(1)
        end = asyncio.ensure_future(leader.led.end(T, publish=True))
        await turns()
        assert leader.ended == [1, 2]
        await leader.apply()
        await asyncio.gather(second, end)
        assert leader.led.staging.is_idle

    story(tell)


@pytest.mark.parametrize(("sets", "named", "publishes"), [((0, 2), [1, 3], True), ((5,), [], False)])
def test_an_end_publishes_some_sets_and_drops_the_others(
    sets: tuple[int, ...], named: list[int], publishes: bool
) -> None:
    """A partition to which none of them wrote drops all that it has."""

    async def tell(leader: Leader) -> None:
        await leader.staged()
        for writer in (1, 2):
            stored = SentBatch(StagedBatch(T, writer, 0), COORDINATOR, b"x", 1, 0, 0)
            task = asyncio.ensure_future(leader.led.stage(stored))
            await turns()
            await leader.apply()
            await task
        assert (await leader.led.held(T), await leader.led.held(T, sets)) == (3, len(named))
        end = asyncio.ensure_future(leader.led.end(T, publish=True, sets=sets))
        await turns()
        assert leader.ended == named
        await leader.apply()
        await end
        assert leader.entries[3:] == [(T, None, publishes)]
        assert leader.led.staging.is_idle

    story(tell)


def test_batches_that_wait_are_bounded_in_bytes() -> None:
    async def tell(leader: Leader) -> None:
        half = WAITING_BYTES_MAX // 2
        tasks = [asyncio.ensure_future(leader.led.stage(sent(number, size=half))) for number in range(3)]
        await turns()
        with pytest.raises(QuotaExceeded):
            await tasks[2]
        await leader.answer(Standing.OPEN)
        assert leader.log == [0, 1]
        await leader.apply()
        await asyncio.gather(*tasks[:2])

    story(tell)
