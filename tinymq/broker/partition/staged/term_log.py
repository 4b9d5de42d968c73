"""The log of a partition, as the transactions of one term of its leader use it: bounds, and the bytes of entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.broker.partition.pending_acks import Produced
from tinymq.broker.partition.staged.log_port import LogPort
from tinymq.broker.state.staged import StagedBatch, StagedEntry, TransactionId
from tinymq.broker.transactions.bounds import check_staged, check_transaction
from tinymq.broker.transactions.led_transactions import Sent, SentAcks, SentOffset
from tinymq.broker.transactions.staging import Staging
from tinymq.format.entry import Kind, NewEntry
from tinymq.format.transactional import (
    COPIED_VERSION,
    TRANSACTIONAL_VERSION,
    CopiedHead,
    TransactionalHead,
    TransactionName,
    items_of,
    pack_copied,
    pack_discard,
    pack_publish,
    pack_transactional,
    publish_version,
)
from tinymq.proto import partition_pb2 as pb

CONFIRM_S = 2.0  # until a majority has confirmed the leadership
COMMIT_S = 30.0  # until an entry is committed


class TermLog:
    """One object per term (StagingLog)."""

    def __init__(self, port: LogPort, staging: Staging) -> None:
        self.over: TinymqError | None = None  # why the term has ended; the replica may lead in another one since
        self._port = port
        self._staging = staging
        self._term = port.group().term

    def append(self, sent: Sent) -> int:
        self._check()
        if isinstance(sent, SentOffset):
            return self._port.propose_commands([pb.Command(stage_offset=sent.command)]).index
        if isinstance(sent, SentAcks):
            sent.claim.check()
            index = self._port.propose_commands([pb.Command(stage_acks=sent.command)]).index
            sent.claim.appended(index)
            return index
        port, staging, size = self._port, self._staging, len(sent.payload)
        transaction, writer, number = sent.batch
        check_transaction(port.limits, staging.waiting_of(transaction), sent.record_count)
        check_staged(port.limits, staging.waiting, port.staged_totals, size)
        port.make_room(sent.record_count, size)
        head = TransactionalHead(
            producer_id=transaction.producer_id,
            number=transaction.number,
            epoch=transaction.epoch,
            coordinator=sent.coordinator,
            writer=writer,
            batch_number=number,
            max_timestamp_us=sent.max_timestamp_us,
        )
        payload = pack_transactional(head, sent.payload)
        return port.propose(NewEntry(Kind.STAGED, payload, version=TRANSACTIONAL_VERSION), 0).index

    def append_copy(self, batch: StagedBatch, coordinator: int, replaced_index: int, payload: bytes) -> int:
        """Append a STAGED entry that takes the place of an earlier one, and return its index.

        It asks for no room: its batch has had it since it was staged. Raises NotLeader, QuotaExceeded (too much is not
        committed yet), DiskFull.
        """
        self._check()
        transaction = batch.transaction
        head = CopiedHead(
            producer_id=transaction.producer_id,
            number=transaction.number,
            epoch=transaction.epoch,
            coordinator=coordinator,
            writer=batch.writer,
            batch_number=batch.number,
            replaced_index=replaced_index,
        )
        return self._port.propose(NewEntry(Kind.STAGED, pack_copied(head, payload), version=COPIED_VERSION), 0).index

    def append_end(self, transaction: TransactionId, entries: Sequence[StagedEntry], *, publish: bool) -> int:
        self._check()
        propose = self._port.propose
        name = TransactionName(transaction.producer_id, transaction.number, transaction.epoch)
        if not publish:
            return propose(NewEntry(Kind.DISCARD, pack_discard(name), version=TRANSACTIONAL_VERSION), 0).index
        if not entries:
            publish_offsets = pb.PublishOffsets(
                producer_id=transaction.producer_id, number=transaction.number, epoch=transaction.epoch
            )
            return self._port.propose_commands([pb.Command(publish_offsets=publish_offsets)]).index
        # The records have had their room since they were staged, so nothing here refuses them.
        records, size = sum(entry.record_count for entry in entries), sum(entry.length for entry in entries)
        latest_us = max(entry.max_timestamp_us for entry in entries)
        items = items_of(entries)
        new = NewEntry(Kind.PUBLISH, pack_publish(name, items), records, latest_us, version=publish_version(items))
        return propose(new, size).index

    async def applied(self, index: int) -> None:
        if self.over is not None:
            raise OutcomeUnknown(f"{self.over.message}; the outcome of entry {index} is unknown")
        if index <= self._port.state.applied_index:
            return
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answer(outcome: Produced | TinymqError) -> None:
            if not applied.done():
                applied.set_exception(outcome) if isinstance(outcome, TinymqError) else applied.set_result(None)

        produced = Produced(base_offset=0, append_time_us=0, leader_epoch=self._term, duplicate=False)
        self._port.pending_acks.add(index, produced, COMMIT_S, answer)
        await applied

    async def confirm(self) -> None:
        self._check()
        await self._port.group().read_index(CONFIRM_S)
        self._check()

    def _check(self) -> None:
        if self.over is not None:
            raise self.over
