"""AsyncTransaction: records in several partitions that become visible together, or never.

A producer of its own stages the records (tinymq/client/produce): each batch is on a majority of disks, and has no
offsets yet. `commit` tells the coordinator how many batches each partition must have. The coordinator decides, and the
partitions show the records. A transaction that has lost a batch is rolled back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, NoReturn, Self

import pyarrow as pa

from tinymq.base.errors import (
    Closed,
    Denied,
    Fenced,
    InvalidRequest,
    NotDelivered,
    OutcomeUnknown,
    TinymqError,
    TransactionAborted,
)
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.transaction_descriptions import TransactionalIdDescription
from tinymq.client.cluster.transactional_id_calls import Place
from tinymq.client.common import forks
from tinymq.client.common.argument_checks import WAIT_S_MIN, check_wait
from tinymq.client.common.traces import untraced
from tinymq.client.common.transaction_config import TransactionConfig, producer_config
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.group.consumer import ConsumerCore
from tinymq.client.produce.delivery import BatchDelivery, Delivery, StagedDelivery, staged_delivery_of
from tinymq.client.produce.producer import LEAVING_IN_ERROR_S, ProducerCore
from tinymq.client.transaction.added_partitions import AddedPartitions
from tinymq.client.transaction.committed_progress import CommittedProgress
from tinymq.client.transaction.owner import Begun, Owner
from tinymq.client.transaction.refusals import aborted_by, check_plain
from tinymq.client.transaction.state import TransactionState
from tinymq.client.work.job import Job

LOG = logging.getLogger("tinymq.client")

Wait = Literal["visible", "decided"]

UNKNOWN_HINT = "call commit again, or read back before you send again: the next transaction of this id ends this one"


class TransactionCore:
    """A transaction. Made by AsyncClient.transaction(); use it in `async with`, which commits at the end, and rolls
    back if an exception leaves the block.

        async with mq.transaction("billing-1") as tx:
            await tx.send("orders", b"...", key=b"42")
            await tx.send("emails", b"...")

    For one task at a time.
    """

    transactional_id: str
    """The name under which the transaction was begun."""
    number: int = 0
    """The place of the transaction among those of its id, once it has begun; 0 before that."""

    def __init__(
        self, cluster: Cluster, owner: Owner, config: TransactionConfig, wake: Callable[[Callable[[], None]], None]
    ) -> None:
        """`wake` makes a call on the loop, soon, from any thread."""
        self.config = config
        self.transactional_id = owner.name
        # The synchronous half of send, which the facade's threads call. It refuses unless the transaction is open.
        self.append: Callable[..., Delivery | None] = self._refuse
        self._cluster = cluster
        self._owner = owner
        self._wake = wake
        self._state = TransactionState.NEW
        self._visible = False
        self._failure: TinymqError | None = None  # why an open transaction cannot be committed any more
        self._left: Closed | None = None  # raised at the end of the block: the client was closed meanwhile
        self._begun: Begun | None = None
        self._partitions: AddedPartitions | None = None
        self._progress: CommittedProgress | None = None
        self._producer: ProducerCore | None = None
        self._batches: Mapping[Place, int] = {}  # the staged batches; set by the first call of `commit`
        forks.in_child(self, TransactionCore._forked)

    def _forked(self) -> None:
        self.append = forks.refuse

    def __repr__(self) -> str:
        return f"<AsyncTransaction of {self.transactional_id!r}, {self._state.value}>"

    @property
    def visible(self) -> bool:
        """Do all partitions show the records? False before the commit, and where `commit` did not wait for it."""
        return self._visible

    @property
    def closed(self) -> bool:
        """Is the transaction over, as far as this client can say?"""
        return self._state in (TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.UNKNOWN)

    # ---- the beginning -------------------------------------------------------------------------------

    async def take_id(self, *, timeout: float | None = None) -> TransactionalIdDescription:
        """Take the transactional id before the first transaction, and return what its coordinator knows.

        Programs that used the id are fenced, and their open transaction is rolled back. So `decided_number` and
        `committed` tell the outcome of the newest transaction to programs that keep its `number` elsewhere, as
        tinymq.outbox does. `timeout` is in seconds (request_timeout_ms, if None). Raises InvalidRequest (a transaction
        of the id is open here), Fenced (another program took the id at the same time), Denied, QuotaExceeded,
        DeadlineExceeded, OutcomeUnknown: take it again.
        """
        self._cluster.check_loop()
        return await self._owner.take(self._timeout_s(timeout))

    async def begin(self, *, timeout: float | None = None) -> None:
        """Begin. `with` does this. The first transaction of an id in this client registers the id: another program
        that uses it is fenced, and its open transaction is rolled back.

        `timeout` in seconds; request_timeout_ms if not given. Raises InvalidRequest (a transaction of this id is open
        here), Fenced, UnsupportedVersion, DeadlineExceeded,
        OutcomeUnknown: it may have begun, and then the next one ends it, or its time-out.
        """
        self._cluster.check_loop()
        if self._state is not TransactionState.NEW:
            raise InvalidRequest("this transaction has begun before", hint="make another one: mq.transaction(...)")
        timeout_s = self._timeout_s(timeout)
        self._state = TransactionState.ABORTED  # unless it begins
        self._begun = await self._owner.begin(self.config.transaction_timeout_ms, timeout_s)
        self.number = self._begun.transaction.number
        request_s = self._cluster.config.request_timeout_ms / 1000
        self._partitions = AddedPartitions(self._owner.calls, self._begun, request_s, self._failed)
        self._producer = ProducerCore(self._cluster, producer_config(self.config), self._wake, self._partitions)
        self._progress = CommittedProgress(self._cluster, self._owner.calls, self._begun)
        self._state = TransactionState.OPEN
        self.append = self._producer.append

    # ---- records -------------------------------------------------------------------------------------

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: None = None, delay: None = None,
        deliver_at: None = None,
    ) -> StagedDelivery:  # fmt: skip
        """Append one record to the transaction's buffer. Waits for room up to block_ms_max, then raises BufferFull.

        The delivery ends when the record is staged: on a majority of disks, without an offset. Nobody need wait for it,
        because `commit` does. A message_id, a delay and deliver_at are refused. Raises TransactionAborted, Fenced,
        UnknownTopic, InvalidRequest, BatchTooLarge.
        """
        self._cluster.check_loop()
        check_plain(message_id, delay, deliver_at)
        delivery = self.append(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            producer = self._open_producer()
            try:
                delivery = await producer.send(
                    topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
                )
            except Closed:  # the transaction has failed or ended while the record waited for room
                self._refuse()
        return staged_delivery_of(delivery)

    async def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> BatchDelivery:
        """Send a whole table, as AsyncProducer.send_batch does. In the result, `base_offset` is -1."""
        self._cluster.check_loop()
        producer = self._open_producer()
        try:
            return await producer.send_batch(topic, data, partition=partition)
        except Closed:  # as above
            self._refuse()

    # ---- what was read -------------------------------------------------------------------------------

    async def commit_offsets(self, consumer: ConsumerCore) -> None:
        """Commit, with the transaction, everything that a consumer will have handed out by then.

        Call it at the beginning of the block, before anything can fail. If the transaction is not committed, the
        consumer hands out the same messages again, to this member or to another. The consumer is made with a group and
        auto_commit=False. Raises InvalidRequest, TransactionAborted, and what joining the group raises.
        """
        self._cluster.check_loop()
        self._open_producer()
        assert self._progress is not None, "an open transaction has begun"
        self._progress.offsets.add(await consumer.transactional(self._cluster))

    def ack(self, *jobs: Job) -> None:
        """Ack jobs of a worker with the transaction: they are settled exactly if it is committed. Waits for nothing.

        If it is rolled back before `commit` has staged the acks, the jobs are in hand again; afterwards any worker gets
        them, uncharged. Raises LeaseLost, InvalidRequest (settled already, of another client), Closed: none is acked.

            async with mq.worker("emails", group="mailer") as worker:
                for job in await worker.poll(timeout=5.0):
                    async with mq.transaction("mailer-1") as tx:
                        tx.ack(job)
                        await tx.send("orders", job.value)
        """
        self._open_producer()
        assert self._progress is not None, "an open transaction has begun"
        self._progress.jobs.add(jobs)

    # ---- the end -------------------------------------------------------------------------------------

    async def commit(self, wait: Wait = "visible", *, timeout: float | None = None) -> bool:
        """Commit, and return whether all partitions show the records already.

        Waits until everything sent is staged, and until the decision is on a majority of disks: from then on it is
        irrevocable. With wait="visible" it also waits until all partitions show the records. If the time is up before
        that, it returns False, and the partitions show them later. `timeout` in seconds; request_timeout_ms if not
        given.

        Raises TransactionAborted, Fenced, or the error that refused a record: nothing will ever be visible.
        OutcomeUnknown: no coordinator has answered; `commit` may be called again.
        """
        self._cluster.check_loop()
        if wait not in ("visible", "decided"):
            raise InvalidRequest(f"wait={wait!r}", hint="one of 'visible', 'decided'")
        left = self._cluster.countdown(self._timeout_s(timeout))
        if self._state not in (TransactionState.OPEN, TransactionState.UNKNOWN):
            if self._state is TransactionState.COMMITTED:
                return self._visible
            self._refuse()
        asked = staged = self._state is TransactionState.UNKNOWN  # by an earlier call
        self._state, self.append = TransactionState.COMMITTING, self._refuse
        try:
            if not staged:
                self._batches = await self._staged(left)
                staged = True
            self._visible = await self._decided(wait, left, asked)
        except OutcomeUnknown as error:
            self._end(TransactionState.UNKNOWN, error)
            raise
        except TinymqError as error:
            self._end(TransactionState.ABORTED, error)
            raise
        except BaseException:  # interrupted; once all is staged, the coordinator may have been asked
            self._end(TransactionState.UNKNOWN if staged else TransactionState.ABORTED)
            raise
        self._end(TransactionState.COMMITTED)
        return self._visible

    async def abort(self, *, timeout: float | None = None) -> None:
        """Roll back: nothing that was sent will ever be visible. A second call does nothing.

        `timeout` in seconds; request_timeout_ms if not given. Raises InvalidRequest if the transaction is committed,
        and Fenced if the outcome of its commit was unknown and another program has taken the id: it stays unknown.
        After another error nothing is committed: the brokers roll the transaction back when its time is up.
        """
        self._cluster.check_loop()
        timeout_s = self._timeout_s(timeout)
        if self._state is TransactionState.ABORTED:
            return
        if self._state in (TransactionState.COMMITTED, TransactionState.COMMITTING):
            raise InvalidRequest(f"the transaction is {self._state.value}", hint="begin another one")
        if self._state is TransactionState.NEW:
            self._end(TransactionState.ABORTED)
            return
        unknown, self._state = self._state is TransactionState.UNKNOWN, TransactionState.ABORTED
        assert self._begun is not None, "only a transaction that has begun is rolled back"
        self._drop(TransactionAborted("the transaction was rolled back by its program"))
        try:
            await self._owner.calls.abort(self._begun.transaction, timeout_s)
        except Fenced as error:
            self._end(TransactionState.ABORTED, error)
            if unknown:  # the other owner may have found it committed
                raise
        except TinymqError as error:
            self._end(TransactionState.UNKNOWN if unknown else TransactionState.ABORTED, error)
            raise
        else:
            self._end(TransactionState.ABORTED)

    async def leave(self) -> None:
        """Roll an open transaction back, because its client is closed."""
        if self._state is not TransactionState.OPEN:
            return
        LOG.warning("a transaction of %r was open when its client was closed: it is rolled back", self.transactional_id)
        try:
            await self.abort(timeout=LEAVING_IN_ERROR_S)
        except TinymqError as error:
            LOG.warning("%r is rolled back when its time is up: %s", self.transactional_id, error)
        self._left = Closed("the client was closed, and the transaction was rolled back")

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._state is TransactionState.OPEN:
                await self.commit()
            elif self._left is not None:
                raise untraced(self._left)
        elif self._state is TransactionState.OPEN:
            try:
                await self.abort(timeout=LEAVING_IN_ERROR_S)
            except TinymqError as late:
                error.add_note(f"and the transaction is rolled back only when its time is up: {late}")

    # ---- the steps -----------------------------------------------------------------------------------

    async def _staged(self, left: Callable[[], float]) -> Mapping[Place, int]:
        """Wait until everything is staged, and return the number of batches, offsets and acks in each partition."""
        assert self._producer is not None, "only a transaction that has begun is committed"
        assert self._progress is not None, "as above"
        await asyncio.gather(self._flush(self._producer, left()), self._progress.stage(left(), self._failed))
        if self._failure is not None:
            await self._roll_back(self._failure, left())
        return self._progress.with_batches(self._producer.written)

    async def _flush(self, producer: ProducerCore, timeout_s: float) -> None:
        try:
            await producer.flush(timeout_s)
        except NotDelivered:
            pass  # `_failed` was told of the first error
        except TimeoutError as error:
            self._failed(TransactionAborted(f"not everything was staged in time: {error}"))

    async def _roll_back(self, failure: TinymqError, left_s: float) -> NoReturn:
        """Roll back what cannot be committed.

        Raises the reason. With no time left, tell the coordinator without waiting for its answer.
        """
        assert self._begun is not None, "only a transaction that has begun fails"
        self._drop(failure)
        try:
            await self._owner.calls.abort(self._begun.transaction, min(left_s, LEAVING_IN_ERROR_S))
        except Fenced as error:
            raise error from failure
        except TinymqError as error:
            LOG.info("%r is rolled back when its time is up, if not before: %s", self.transactional_id, error)
        raise failure

    async def _decided(self, wait: Wait, left: Callable[[], float], asked: bool) -> bool:
        """Commit. `asked`: an earlier call has asked the coordinator, and got no answer."""
        assert self._begun is not None, "only a transaction that has begun is committed"
        transaction, visible = self._begun.transaction, wait == "visible"
        try:
            return await self._owner.calls.commit(transaction, self._batches, left(), visible=visible)
        except TransactionAborted:
            raise
        except OutcomeUnknown as error:
            raise OutcomeUnknown(error.message, hint=UNKNOWN_HINT, **error.detail) from error
        except TinymqError as error:
            if asked or "unclear" in error.detail:  # an earlier attempt may have committed it
                raise OutcomeUnknown(error.message, hint=UNKNOWN_HINT, **error.detail) from error
            if isinstance(error, Fenced | Denied):
                raise
            await self._roll_back(aborted_by(error), left())

    def _failed(self, error: TinymqError) -> None:
        """Something has failed: the transaction cannot be committed, and takes no further records."""
        if self._failure is None and self._state in (TransactionState.OPEN, TransactionState.COMMITTING):
            self._failure = aborted_by(error)
            self.append = self._refuse
            self._cluster.loop.call_soon(self._drop, self._failure)  # later: the sender may be ending batches now

    def _drop(self, reason: TinymqError) -> None:
        """Send nothing more, and end the records that are not staged yet."""
        self.append = self._refuse
        if self._partitions is not None:
            self._partitions.close()
        if self._producer is not None:
            self._producer.abandon(reason)

    def _end(self, state: TransactionState, error: TinymqError | None = None) -> None:
        self._state = state
        self._drop(error or Closed(f"the transaction is {state.value}"))
        if self._progress is not None:
            self._progress.ended(state)
        if self._begun is not None:
            self._owner.ended(self._begun, error)

    def _open_producer(self) -> ProducerCore:
        if (
            self._state not in (TransactionState.OPEN, TransactionState.COMMITTING)
            or self._producer is None
            or self._failure is not None
        ):
            self._refuse()
        return self._producer

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Stand in for `append` while the transaction takes no records. Raises the reason."""
        if self._failure is not None:
            raise untraced(self._failure)
        if self._state is TransactionState.NEW:
            raise InvalidRequest("the transaction has not begun", hint="use it in `with`, or call begin")
        raise Closed(f"the transaction is {self._state.value}", hint="begin another one: mq.transaction(...)")

    def _timeout_s(self, timeout: float | None) -> float:
        check_wait(timeout, least_s=WAIT_S_MIN)
        return self._cluster.config.request_timeout_ms / 1000 if timeout is None else timeout
