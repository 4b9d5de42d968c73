"""The transactions of a partition in one term of its leader: what clients and coordinators ask, carried out.

staging.py decides. Here, batches wait for the coordinator's answer, entries are appended through a port to the
partition's log, and answers wait until entries are applied. Between a decision and its append there is no `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import NotReady, OutOfOrderSequence, QuotaExceeded, TinymqError, TransactionAborted
from tinymq.broker.state.staged import StagedBatch, StagedTransactions, TransactionId
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step

ASK_EVERY_S = 5.0  # about transactions that have no end here
WAITING_MAX = 1000  # batches of one partition that wait for answers of coordinators

logger = structlog.get_logger("tinymq.broker")

AskCoordinator = Callable[[TransactionId], Awaitable[Standing]]
"""Ask the coordinator about a transaction. Raises TinymqError if it does not answer."""


class StagingLog(Protocol):
    """The log of the partition, as this leader's transactions use it."""

    def append(self, batch: StagedBatch, payload: bytes) -> int:
        """Append a STAGED entry, in memory, and return its index. Raises NotLeader, QuotaExceeded, DiskFull."""
        ...

    def append_end(self, transaction: TransactionId, *, publish: bool) -> int:
        """Append a PUBLISH or DISCARD entry. Raises as `append`."""
        ...

    async def applied(self, index: int) -> None:
        """Return once the entry is applied. Raises OutcomeUnknown if the leadership is lost before."""
        ...

    async def confirm(self) -> None:
        """Return once a majority has confirmed, since this call, that this leader leads, and everything that was
        committed before the call is applied. Raises NotLeader, DeadlineExceeded."""
        ...


@dataclass(slots=True)
class _Arrived:
    """A batch that is not judged yet."""

    batch: StagedBatch
    payload: bytes
    answer: asyncio.Future[int]  # gets the index of its entry, or the error that refuses it


class LedTransactions:
    """One object per term of a leader, from its first applied entry to `close`. `applied` is the partition's state, and
    goes on changing."""

    def __init__(
        self, name: str, applied: StagedTransactions, log: StagingLog, ask: AskCoordinator, clock: Clock
    ) -> None:
        self.staging = Staging(applied)  # the partition tells it of applied entries
        self._name = name
        self._log = log
        self._ask = ask
        self._clock = clock
        self._waiting: dict[TransactionId, list[_Arrived]] = {}  # for an answer of the coordinator, in their order
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: TinymqError | None = None

    def start(self) -> None:
        """Ask about transactions without an end, now and then, until `close`."""
        self._spawn(self._end_undecided())

    def close(self, error: TinymqError) -> None:
        """Stop, because the leadership is lost. What waits was not appended, and is refused with `error`."""
        self._closed = error
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting = self._waiting, {}
        for arrived in (each for some in waiting.values() for each in some):
            _refuse(arrived, error)

    # ---- what others ask -------------------------------------------------------------------------------------------

    async def stage(self, batch: StagedBatch, payload: bytes) -> int:
        """Store a batch of a transaction. Returns the index of its entry once that is applied; a duplicate waits, too.

        Raises TransactionAborted (it has ended here, or is not open with this partition in it), OutOfOrderSequence,
        NotLeader, NotReady (the coordinator did not answer), QuotaExceeded, and OutcomeUnknown: send the batch again.
        """
        if self._closed is not None:
            raise self._closed
        arrived = _Arrived(batch, payload, asyncio.get_running_loop().create_future())
        self._judge(arrived)
        index = await arrived.answer
        await self._log.applied(index)
        return index

    async def held(self, transaction: TransactionId) -> int:
        """How many entries of the transaction are applied. Raises NotLeader, DeadlineExceeded."""
        await self._log.confirm()
        return self.staging.held(transaction)

    async def end(self, transaction: TransactionId, *, publish: bool) -> None:
        """Carry out the decision on a transaction. Returns once that is applied, or nothing of it is staged here.

        Raises NotLeader, DeadlineExceeded, OutcomeUnknown: tell it again.
        """
        await self._log.confirm()
        while (step := self.staging.judge_end(transaction)) is not EndStep.CONFIRM:
            if step is EndStep.APPEND:
                index = self._log.append_end(transaction, publish=publish)
                self.staging.end_appended(index, transaction)
            index = self.staging.end_index(transaction)
            await self._log.applied(index)

    # ---- batches ---------------------------------------------------------------------------------------------------

    def _judge(self, arrived: _Arrived, answer: Question | None = None, *, is_open: bool = False) -> None:
        batch = arrived.batch
        match self.staging.judge(batch, answer, is_open=is_open):
            case Step.ASK:
                self._wait(arrived)
                self._spawn(self._ask_about(self.staging.ask(batch.transaction)))
            case Step.WAIT:
                self._wait(arrived)
            case Step.APPEND:
                self._append(arrived)
            case Step.DUPLICATE:
                _answer(arrived, self.staging.index_of(batch))
            case Step.ENDED:
                _refuse(arrived, TransactionAborted(f"{self._name}: the transaction is not open here"))
            case Step.GAP:
                _refuse(arrived, OutOfOrderSequence(f"{self._name}: an earlier batch of the transaction is missing"))

    def _append(self, arrived: _Arrived) -> None:
        try:
            index = self._log.append(arrived.batch, arrived.payload)
        except TinymqError as error:
            _refuse(arrived, error)
            return
        self.staging.appended(index, arrived.batch)
        _answer(arrived, index)

    def _wait(self, arrived: _Arrived) -> None:
        if sum(map(len, self._waiting.values())) >= WAITING_MAX:
            _refuse(arrived, QuotaExceeded(f"{self._name}: too many batches wait for coordinators"))
        else:
            self._waiting.setdefault(arrived.batch.transaction, []).append(arrived)

    async def _ask_about(self, question: Question) -> None:
        """Ask whether a transaction is open, and judge the batches that wait for the answer."""
        failure: TinymqError | None = None
        standing = Standing.UNRESOLVED
        try:
            standing = await self._ask(question.transaction)
        except TinymqError as error:
            failure = NotReady(f"{self._name}: the coordinator did not answer: {error.message}")
        for arrived in self._waiting.pop(question.transaction, []):
            if failure is not None:
                _refuse(arrived, failure)
            else:
                self._judge(arrived, question, is_open=standing is Standing.OPEN)
        self.staging.answered(question)

    # ---- ends that nobody told -------------------------------------------------------------------------------------

    async def _end_undecided(self) -> None:
        while True:
            await self._clock.sleep(ASK_EVERY_S)
            for transaction in self.staging.undecided():
                try:
                    standing = await self._ask(transaction)
                    if standing in (Standing.PUBLISH, Standing.DISCARD):
                        await self.end(transaction, publish=standing is Standing.PUBLISH)
                    elif standing is Standing.UNRESOLVED:
                        logger.warning("transaction_unresolved", partition=self._name, transaction=tuple(transaction))
                except TinymqError as error:
                    logger.info("transaction_waits", partition=self._name, error=error.code, reason=error.message)

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _answer(arrived: _Arrived, index: int | None) -> None:
    assert index is not None, "a duplicate of a batch that is not here"
    if not arrived.answer.done():
        arrived.answer.set_result(index)


def _refuse(arrived: _Arrived, error: TinymqError) -> None:
    if not arrived.answer.done():
        arrived.answer.set_exception(error)
