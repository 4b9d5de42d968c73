"""The transactions of a partition in one term of its leader: what clients and coordinators ask, carried out.

staging.py decides. Here, batches wait for the coordinator's answer, entries are appended through a port to the
partition's log, and answers wait until entries are applied. Between a decision and its append there is no `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import NamedTuple, Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import MIB
from tinymq.base.errors import NotReady, OutOfOrderSequence, QuotaExceeded, TinymqError, TransactionAborted
from tinymq.broker.state.staged import StagedBatch, StagedEntry, TransactionId, Waiting
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.transactions.staging import ACKS_WRITER, OFFSETS_WRITER, EndStep, Question, Staging, Step
from tinymq.proto import partition_pb2 as pb

ASK_EVERY_S = 5.0  # about transactions that have no end here
SETTLE_S = 3.0  # how long a group waits for the end of transactions that hold it up
SETTLE_RETRY_S = 0.05
WAITING_MAX = 1000  # batches of one partition that wait for answers of coordinators
WAITING_BYTES_MAX = 32 * MIB  # of these batches

logger = structlog.get_logger("tinymq.broker")


class AskCoordinator(Protocol):
    """Ask the partition of `__coordinator` with this number about a transaction. Raises TinymqError if the coordinator
    does not answer."""

    def __call__(self, transaction: TransactionId, coordinator: int, *, end: bool = False) -> Awaitable[Standing]:
        """`end`: roll the transaction back if it is open, and answer then."""
        ...


class SentBatch(NamedTuple):
    """A batch as its writer sent it, checked."""

    batch: StagedBatch
    coordinator: int  # number of the partition of __coordinator that has the transaction
    payload: bytes
    record_count: int
    max_timestamp_us: int
    batch_crc: int  # of the payload

    def at(self, index: int) -> StagedEntry:
        """The staged entry of this batch, once it is appended at this index."""
        return StagedEntry(index, self.record_count, len(self.payload), self.max_timestamp_us, self.batch_crc)


class SentOffset(NamedTuple):
    """A commit of a stream group as a member sent it, for a transaction."""

    transaction: TransactionId
    coordinator: int  # number of the partition of __coordinator that has the transaction
    number: int  # of the transaction's offsets in this partition, from 0
    commit: pb.Commit

    @property
    def batch(self) -> StagedBatch:
        return StagedBatch(self.transaction, OFFSETS_WRITER, self.number)

    @property
    def payload(self) -> bytes:
        return b""

    def at(self, index: int) -> StagedEntry:
        """It has no batch that an end could list."""
        return StagedEntry(index, 0, 0, 0, 0)

    @property
    def command(self) -> pb.StageOffset:
        producer_id, epoch, number = self.transaction
        return pb.StageOffset(
            producer_id=producer_id, number=number, epoch=epoch, coordinator=self.coordinator, place=self.number,
            commit=self.commit,
        )  # fmt: skip


class AckClaim(Protocol):
    """The jobs of a queue group's worker, as the leader of the group has them in memory."""

    def check(self) -> None:
        """Raise LeaseLost unless the worker may ack them all, NotReady if that is not certain yet."""
        ...

    def appended(self, index: int) -> None:
        """Note that the entry at this index stages the acks: the leases of their records end."""
        ...


class SentAcks(NamedTuple):
    """Acks of a queue group's worker, for a transaction."""

    transaction: TransactionId
    coordinator: int  # number of the partition of __coordinator that has the transaction
    number: int  # of the transaction's acks in this partition, from 0
    queue: pb.QueueRef
    session: bytes
    acked: bytes  # as in StageAcks
    claim: AckClaim

    @property
    def batch(self) -> StagedBatch:
        return StagedBatch(self.transaction, ACKS_WRITER, self.number)

    @property
    def payload(self) -> bytes:
        return self.acked

    def at(self, index: int) -> StagedEntry:
        """It has no batch that an end could list."""
        return StagedEntry(index, 0, 0, 0, 0)

    @property
    def command(self) -> pb.StageAcks:
        producer_id, epoch, number = self.transaction
        return pb.StageAcks(
            producer_id=producer_id, number=number, epoch=epoch, coordinator=self.coordinator, place=self.number,
            queue=self.queue, session=self.session, acked=self.acked,
        )  # fmt: skip


Sent = SentBatch | SentOffset | SentAcks


class Hang(Enum):
    """Why a partition still has no end of a transaction after its leader asked the coordinator."""

    UNRESOLVED = "unresolved"  # the decision may be lost with a part of the coordinator's log: an operator decides
    BEHIND = "behind"  # an operator has committed it, and an earlier one of the same producer is not resolved
    UNANSWERED = "unanswered"  # the coordinator did not answer


class HungTransaction(NamedTuple):
    """A transaction without an end in one partition."""

    transaction: TransactionId
    coordinator: int  # number of the partition of __coordinator that has the transaction
    hang: Hang
    staged: Waiting


class StagingLog(Protocol):
    """The log of the partition, as this leader's transactions use it."""

    def append(self, sent: Sent) -> int:
        """Append a STAGED entry, or the command that stages an offset or acks, in memory, and return its index. Raises
        NotLeader, QuotaExceeded, BatchTooLarge, DiskFull; for acks LeaseLost, NotReady."""
        ...

    def append_end(self, transaction: TransactionId, entries: Sequence[StagedEntry], *, publish: bool) -> int:
        """Append a PUBLISH or DISCARD entry. `entries` are the staged ones to publish, in the order of the log.

        If there are none, append the command that publishes the offsets. Raises NotLeader, QuotaExceeded (too much is
        not committed yet).
        """
        ...

    async def applied(self, index: int) -> None:
        """Return once the entry is applied. Raises OutcomeUnknown if the leadership is lost before."""
        ...

    async def confirm(self) -> None:
        """Return when a majority has confirmed, after this call, that this leader leads, and the leader has applied
        everything that was committed before the call. Raises NotLeader, DeadlineExceeded.
        """
        ...


@dataclass(slots=True)
class _Arrived:
    """A batch, an offset or an ack that is not judged yet."""

    sent: Sent
    answer: asyncio.Future[int]  # gets the index of its entry, or the error that refuses it


class LedTransactions:
    """One object per term of a leader, from its first applied entry to `close`."""

    def __init__(self, name: str, staging: Staging, log: StagingLog, ask: AskCoordinator, clock: Clock) -> None:
        self.staging = staging  # the partition tells it of applied entries
        self._name = name
        self._log = log
        self._ask = ask
        self._clock = clock
        self._waiting: dict[TransactionId, list[_Arrived]] = {}  # until the coordinator answers; in order of arrival
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order: a replay cancels them in the same order
        self._watching = False  # the coordinators are asked about transactions without an end
        self._hung: dict[TransactionId, Hang] = {}  # by the newest answers
        self._closed: TinymqError | None = None

    def start(self) -> None:
        """Find out the ends of transactions that earlier leaders have left."""
        if not self.staging.is_idle:
            self._watch()

    def close(self, error: TinymqError) -> None:
        """Stop, because the leadership is lost. Batches that wait were not appended, and are refused with `error`."""
        self._closed = error
        for task in list(self._tasks):
            task.cancel()
        waiting, self._waiting = self._waiting, {}
        for arrived in (each for some in waiting.values() for each in some):
            _refuse(arrived, error)

    # ---- what others ask -------------------------------------------------------------------------------------------

    async def stage(self, sent: Sent) -> int:
        """Store what belongs to a transaction. Returns the index of its entry once that is applied; a duplicate
        waits, too.

        Raises TransactionAborted (it has ended here, or is not open with this partition in it), OutOfOrderSequence,
        NotLeader, NotReady (the coordinator did not answer), QuotaExceeded, BatchTooLarge (the transaction is too
        large), DiskFull, and OutcomeUnknown: send the batch again.
        """
        if self._closed is not None:
            raise self._closed
        arrived = _Arrived(sent, asyncio.get_running_loop().create_future())
        self._judge(arrived)
        index = await arrived.answer
        await self._log.applied(index)
        return index

    async def held(self, transaction: TransactionId, sets: Collection[int] | None = None) -> int:
        """How many entries of the transaction, or of these sets in it, are applied. Raises NotLeader,
        DeadlineExceeded."""
        await self._confirm()
        return self.staging.held(transaction, sets)

    async def end(self, transaction: TransactionId, *, publish: bool, sets: Collection[int] | None = None) -> None:
        """Carry out the decision on a transaction: publish all of it, or these sets and nothing else, or nothing.
        Returns when the end is applied, or at once if nothing of the transaction is staged here.

        Raises NotLeader, DeadlineExceeded, OutcomeUnknown: tell it again.
        """
        await self._confirm()
        while (step := self.staging.judge_end(transaction)) is not EndStep.CONFIRM:
            if step is EndStep.APPEND:
                entries = self.staging.entries_of(transaction, sets)
                # None of the sets has a batch here: other attempts at their tasks wrote to this partition.
                publishes = publish and (sets is None or bool(entries))
                index = self._log.append_end(transaction, entries, publish=publishes)
                self.staging.end_appended(index, transaction)
            index = self.staging.end_index(transaction)
            await self._log.applied(index)

    async def settle(self, staged: Callable[[], Sequence[TransactionId]]) -> None:
        """Return when `staged` returns nothing more. Of the transactions that it returns, open ones are rolled back,
        and the decisions on the others are carried out here.

        Raises NotReady: a coordinator did not answer in time; NotLeader, DeadlineExceeded, OutcomeUnknown.
        """
        until_s = self._clock.monotonic() + SETTLE_S
        while transactions := staged():
            for transaction in transactions:
                try:
                    standing = await self._ask(transaction, self.staging.coordinator_of(transaction), end=True)
                except TinymqError as error:
                    raise NotReady(f"{self._name}: the coordinator did not answer: {error.message}") from error
                publish = standing is Standing.PUBLISH
                if standing is Standing.DISCARD or (publish and not self.staging.is_behind(transaction)):
                    await self.end(transaction, publish=publish)
            if self._closed is not None:
                raise self._closed
            if staged():  # LATER: an earlier transaction of the producer comes first
                if self._clock.monotonic() >= until_s:
                    raise NotReady(f"{self._name}: transactions with offsets of the group are not over")
                await self._clock.sleep(SETTLE_RETRY_S)

    @property
    def hung(self) -> list[HungTransaction]:
        """The transactions without an end about which the coordinator was asked, and that it does not decide."""
        staging = self.staging
        return [
            HungTransaction(transaction, staging.coordinator_of(transaction), hang, staging.waiting_of(transaction))
            for transaction, hang in self._hung.items()
            if staging.held(transaction)
        ]

    async def _confirm(self) -> None:
        await self._log.confirm()
        if self._closed is not None:
            raise self._closed

    # ---- batches ---------------------------------------------------------------------------------------------------

    def _judge(self, arrived: _Arrived, answer: Question | None = None, *, is_open: bool = False) -> None:
        batch = arrived.sent.batch
        match self.staging.judge(batch, answer, is_open=is_open):
            case Step.ASK:
                self._wait(arrived)
                self._spawn(self._ask_about(self.staging.ask(batch.transaction), arrived.sent.coordinator))
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
            index = self._log.append(arrived.sent)
        except TinymqError as error:
            _refuse(arrived, error)
            return
        self.staging.appended(arrived.sent.batch, arrived.sent.at(index))
        self._watch()
        _answer(arrived, index)

    def _wait(self, arrived: _Arrived) -> None:
        waiting = [len(each.sent.payload) for some in self._waiting.values() for each in some]
        if len(waiting) >= WAITING_MAX or sum(waiting) + len(arrived.sent.payload) > WAITING_BYTES_MAX:
            _refuse(arrived, QuotaExceeded(f"{self._name}: too many batches wait for coordinators"))
        else:
            self._waiting.setdefault(arrived.sent.batch.transaction, []).append(arrived)

    async def _ask_about(self, question: Question, coordinator: int) -> None:
        """Ask whether a transaction is open, and judge the batches that wait for the answer."""
        failure: TinymqError | None = None
        standing = Standing.UNRESOLVED
        try:
            standing = await self._ask(question.transaction, coordinator)
        except TinymqError as error:
            failure = NotReady(f"{self._name}: the coordinator did not answer: {error.message}")
        for arrived in self._waiting.pop(question.transaction, []):
            if failure is not None:
                _refuse(arrived, failure)
            else:
                self._judge(arrived, question, is_open=standing is Standing.OPEN)
        self.staging.answered(question)

    # ---- ends that nobody told -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Ask about transactions without an end, now and then, while there are any."""
        if not self._watching:
            self._watching = True
            self._spawn(self._end_undecided())

    async def _end_undecided(self) -> None:
        seen = set(self.staging.undecided())
        while not self.staging.is_idle:
            await self._clock.sleep(ASK_EVERY_S)
            undecided = self.staging.undecided()
            # Most transactions are shorter than the pause, so ask only about those that were open before it.
            late = sorted(each for each in undecided if each in seen)  # those of a producer in their order
            late.sort(key=self.staging.coordinator_of)
            self._hung = {each: self._hung[each] for each in late if each in self._hung}
            for coordinator, some in groupby(late, key=self.staging.coordinator_of):
                await self._end_some(list(some), coordinator)
            seen = set(undecided)
        self._watching = False
        self._hung.clear()

    async def _end_some(self, transactions: Sequence[TransactionId], coordinator: int) -> None:
        """Ask a coordinator about transactions, and carry out what it has decided."""
        for number, transaction in enumerate(transactions):
            try:
                standing = await self._ask(transaction, coordinator)
                self._hung.pop(transaction, None)
                if standing is Standing.UNRESOLVED:
                    self._hung[transaction] = Hang.UNRESOLVED
                    logger.warning("transaction_unresolved", partition=self._name, transaction=tuple(transaction))
                elif standing is Standing.PUBLISH and self.staging.is_behind(transaction):
                    self._hung[transaction] = Hang.BEHIND
                elif standing in (Standing.PUBLISH, Standing.DISCARD):
                    await self.end(transaction, publish=standing is Standing.PUBLISH)
            except TinymqError as error:
                logger.info("transactions_wait", partition=self._name, error=error.code, reason=error.message)
                # To the others, the coordinator would probably give the same answer.
                self._hung |= dict.fromkeys(transactions[number:], Hang.UNANSWERED)
                return

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def _answer(arrived: _Arrived, index: int | None) -> None:
    assert index is not None, "a duplicate of a batch that is not here"
    if not arrived.answer.done():
        arrived.answer.set_result(index)


def _refuse(arrived: _Arrived, error: TinymqError) -> None:
    if not arrived.answer.done():
        arrived.answer.set_exception(error)
