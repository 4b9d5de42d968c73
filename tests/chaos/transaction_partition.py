"""A partition of the random lives of transactions: a log, and a leader with the decisions that ship (Staging)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tinymq.base.errors import NotLeader, OutcomeUnknown, OutOfOrderSequence, TinymqError, TransactionAborted
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step

if TYPE_CHECKING:
    from tests.chaos.transaction_lives import TransactionWorld

ASK_EVERY_S = 3.0  # a leader asks the coordinator about staged batches that have no end


class Item(NamedTuple):
    """An entry of the partition's log."""

    transaction: TransactionId
    batch: StagedBatch | None  # None: the end
    publish: bool = False


class PartitionModel:
    """The committed log, its readers, and the present leader's tail and decisions."""

    def __init__(self, world: TransactionWorld, place: PartitionId) -> None:
        self.world, self.place = world, place
        self.log: list[Item] = []
        self.staged = StagedTransactions()
        self.visible: list[StagedBatch] = []
        self.term = 0
        self.elect()

    def elect(self) -> None:
        """Let another broker lead. It keeps some of the entries that were not committed yet."""
        tail = list(self.tail) if self.term else []
        kept = self.world.rng.randint(0, len(tail))
        self.term += 1
        self.tail: list[Item] = []
        for item in tail[:kept]:
            self._apply(item)
        self.staging = Staging(self.staged)
        self.answers: dict[TransactionId, asyncio.Future[tuple[Question, bool] | None]] = {}

    # ---- what clients and the coordinator ask

    async def stage(self, batch: StagedBatch) -> None:
        """Return once the batch is committed. Raises TransactionAborted, OutOfOrderSequence, OutcomeUnknown."""
        term, answer, is_open = self.term, None, False
        while True:
            step = self.staging.judge(batch, answer, is_open=is_open)
            if step is Step.ASK:
                self._ask(batch.transaction)
            if step not in (Step.ASK, Step.WAIT):
                break
            answered = await asyncio.shield(self.answers[batch.transaction])
            self._check_term(term)
            if answered is None:
                raise NotLeader("the coordinator did not answer")
            answer, is_open = answered
        if step is Step.GAP:
            raise OutOfOrderSequence("a batch is missing")
        if step is Step.ENDED:
            raise TransactionAborted("it has ended")
        if step is Step.APPEND:
            self.staging.appended(self._append(Item(batch.transaction, batch)), batch)
        index = self.staging.index_of(batch)
        while index is not None and index > len(self.log):
            await self.world.clock.sleep(0.002)
            self._check_term(term)

    async def held(self, transaction: TransactionId) -> int:
        return self.staging.held(transaction)

    async def end(self, transaction: TransactionId, *, publish: bool) -> None:
        """Return once the end is applied. Raises OutcomeUnknown."""
        term = self.term
        while (step := self.staging.judge_end(transaction)) is not EndStep.CONFIRM:
            if step is EndStep.APPEND:
                self.staging.end_appended(self._append(Item(transaction, None, publish)), transaction)
            await self.world.clock.sleep(0.002)
            self._check_term(term)

    # ---- what it asks

    def _ask(self, transaction: TransactionId) -> None:
        question, term = self.staging.ask(transaction), self.term
        answer: asyncio.Future[tuple[Question, bool] | None] = asyncio.get_running_loop().create_future()
        self.answers[transaction] = answer

        async def ask() -> None:
            standing = await self.world.ask_coordinator(transaction, self.place)
            answer.set_result(None if standing is None else (question, standing is Standing.OPEN))
            await asyncio.sleep(0)  # the batches that waited are judged
            await asyncio.sleep(0)
            if self.term == term:
                self.staging.answered(question)

        self.world.serve(ask())

    async def ask_about_undecided(self) -> None:
        """End what the coordinator has decided, and did not tell."""
        while not self.world.over:
            await self.world.clock.sleep(ASK_EVERY_S)
            for transaction in self.staging.undecided():
                standing = await self.world.ask_coordinator(transaction, self.place)
                if standing in (Standing.PUBLISH, Standing.DISCARD):
                    with suppress(TinymqError):  # another leader asks
                        await self.end(transaction, publish=standing is Standing.PUBLISH)

    # ---- the log

    def _append(self, item: Item) -> int:
        self.tail.append(item)
        index, term = len(self.log) + len(self.tail), self.term
        self.world.later(self.world.delay(), lambda: self._commit(index, term))
        return index

    def _commit(self, index: int, term: int) -> None:
        while term == self.term and len(self.log) < index:
            self._apply(self.tail.pop(0))
            self.staging.applied(len(self.log))

    def _apply(self, item: Item) -> None:
        self.log.append(item)
        if item.batch is not None:
            self.staged.stage(item.batch, StagedEntry(len(self.log), 1, 100, 0, 0))
            return
        ended = self.staged.end(item.transaction)
        if item.publish and ended:
            batches = {index: each.batch for index, each in enumerate(self.log, 1)}
            self.visible += [batch for entry in ended if (batch := batches[entry.entry_index]) is not None]
            self.world.published(self, item.transaction)

    def _check_term(self, term: int) -> None:
        if term != self.term:
            raise OutcomeUnknown("another leader took over")
