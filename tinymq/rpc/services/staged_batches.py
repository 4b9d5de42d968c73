"""Batches of transactions on a produce stream: their places in the transaction, and the wait until one is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinymq.base.errors import InvalidRequest, OutcomeUnknown, TinymqError
from tinymq.base.value import value
from tinymq.broker.groups.groups import COORDINATORS
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.format.batch import CheckedBatch
from tinymq.format.feature_level import TRANSACTIONS_LEVEL, check
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.common.presence import require

NUMBER_MAX = (1 << 63) - 1  # as it is stored


def transaction_of(ref: pb.TransactionRef) -> TransactionId:
    """The transaction that a request names. Raises InvalidRequest."""
    require(ref, "producer_id", "epoch", "number")
    if max(ref.producer_id, ref.number) > NUMBER_MAX:
        raise InvalidRequest("no transaction has such a number", hint="take it from the answer to BeginTransaction")
    return TransactionId(ref.producer_id, ref.epoch, ref.number)


def place_of(said: pb.BatchTransaction) -> TransactionId:
    """The transaction of a batch or an offset whose place in it is complete. Raises InvalidRequest."""
    transaction = transaction_of(said.transaction)
    require(said, "coordinator", "number")
    if said.coordinator >= COORDINATORS:
        raise InvalidRequest(f"no coordinator has the number {said.coordinator}", hint="RegisterOwner answers it")
    return transaction


@value
class StagedPlace:
    """The place of a batch in a transaction, and that transaction's coordinator."""

    batch: StagedBatch
    coordinator: int


def parse_staged(batch: pb.ProduceBatch, checked: CheckedBatch, acks: Acks) -> StagedPlace:
    """The place of a batch in its transaction. Raises InvalidRequest for a batch that cannot be in one."""
    said = batch.transaction
    transaction = place_of(said)
    if acks is not Acks.QUORUM:
        raise InvalidRequest("a batch of a transaction needs acks of a quorum")
    if checked.header.producer_id:
        raise InvalidRequest("a batch of a transaction has no producer id", hint="its writer and number stand for it")
    if batch.message_id:
        raise InvalidRequest("a batch of a transaction has no message id")
    if batch.HasField("deliver_at_us") or batch.HasField("delay_us"):
        raise InvalidRequest("a batch of a transaction cannot be delayed")
    return StagedPlace(StagedBatch(transaction, said.writer, said.number), said.coordinator)


class StagingWait:
    """A batch on its way into the log of its partition, from `begin` to the one call of `done`."""

    def __init__(
        self,
        partition: Partition,
        place: StagedPlace,
        checked: CheckedBatch,
        payload: bytes,
        payload_crc: int,
        done: Callable[[Produced | TinymqError], None],
    ) -> None:
        self._partition = partition
        self._place = place
        self._checked = checked
        self._payload = payload
        self._payload_crc = payload_crc
        self._done = done
        self._expired = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, deadlines: Deadlines, timeout_s: float) -> None:
        """Stage the batch, behind those for which this was called before. Raises UnsupportedVersion, NotLeader."""
        self._partition.check_leading()
        check("a batch of a transaction", TRANSACTIONS_LEVEL, self._partition.group.feature_level)
        self._task = asyncio.get_running_loop().create_task(self._stage(deadlines, timeout_s))

    def expire(self) -> None:
        """The time is up (Deadlines)."""
        self._expired = True
        assert self._task is not None, "its deadline begins with it"
        self._task.cancel()

    async def _stage(self, deadlines: Deadlines, timeout_s: float) -> None:
        partition, place = self._partition, self._place
        ticket = deadlines.add(self, timeout_s)
        try:
            await partition.transactions.stage(
                place.batch, place.coordinator, self._checked, self._payload, self._payload_crc
            )
        except TinymqError as error:
            self._done(error)
        except asyncio.CancelledError:
            if not self._expired:
                raise
            self._done(OutcomeUnknown(f"{partition}: the batch was not on a majority of disks in time"))
        else:
            self._done(Produced(0, 0, leader_epoch=partition.group.term, duplicate=False))
        finally:
            deadlines.drop(ticket)
