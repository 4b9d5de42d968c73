"""The transactions of one replica of a partition: the calls of clients and coordinators to its leader.

`LedTransactions` carries it out, one object for each term.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tinymq.base.clock import Clock
from tinymq.base.errors import BatchTooLarge, CorruptData, NotReady, OffsetOutOfRange, TinymqError, TransactionAborted
from tinymq.broker.delayed.staged_reads import read_entries
from tinymq.broker.partition.staged.log_port import LogPort
from tinymq.broker.partition.staged.term_log import TermLog
from tinymq.broker.state.staged import StagedBatch, TransactionId, Waiting
from tinymq.broker.transactions.bounds import SHOWN_BYTES_MAX, check_durable, check_transactional
from tinymq.broker.transactions.led_transactions import (
    AskCoordinator,
    HungTransaction,
    LedTransactions,
    SentAcks,
    SentBatch,
    SentOffset,
)
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.transactions.staging import Staging
from tinymq.format.batch import CheckedBatch
from tinymq.format.entry import Entry, Kind
from tinymq.format.feature_level import TRANSACTIONS_LEVEL, check
from tinymq.format.transactional import STAGED_HEAD_SIZE, is_transactional


async def no_coordinator(transaction: TransactionId, coordinator: int, *, end: bool = False) -> Standing:
    """Refuse a question of a partition without a cluster around it. Raises NotReady."""
    raise NotReady("this partition knows no coordinator")


class PartitionTransactions:
    """One object per replica. Applied state is in the partition's state; all else here is the leader's own."""

    def __init__(self, name: str, port: LogPort, clock: Clock, ask_coordinator: AskCoordinator) -> None:
        self._name = name
        self._port = port
        self._clock = clock
        self._ask = ask_coordinator
        self._counted = (0, 0)  # this replica's share in the broker's totals: (batches, bytes)
        self._led: LedTransactions | None = None  # None: this replica does not lead
        self._log: TermLog | None = None  # of the same term

    @property
    def waiting_now(self) -> Waiting:
        """The staged batches, including those that this leader has appended and not applied yet."""
        return self._port.state.staged.waiting if self._led is None else self._led.staging.waiting

    # ---- what clients and coordinators ask

    async def stage(
        self, batch: StagedBatch, coordinator: int, checked: CheckedBatch, payload: bytes, payload_crc: int
    ) -> int:
        """Store a batch that passed `admission`, and has a place in a transaction of the partition `coordinator` of
        `__coordinator`. It gets its offsets when the transaction is committed. Returns the index of its entry once a
        majority has the entry on disk, synced; for a duplicate, the index of the first copy.

        Raises, and nothing is stored: NotLeader, NotReady, InvalidRequest (the batch has a producer id, or a power cut
        may take the topic's records), UnsupportedVersion, TransactionAborted, OutOfOrderSequence, BatchTooLarge,
        QuotaExceeded, DiskFull. OutcomeUnknown: send the same batch again.
        """
        led = self._leading()
        self._port.check_groups()
        check("a batch of a transaction", TRANSACTIONS_LEVEL, self._port.group().feature_level)
        check_transactional(self._port.config(), checked.header, len(payload))
        records = checked.header.record_count
        return await led.stage(
            SentBatch(batch, coordinator, payload, records, checked.max_timestamp_us, batch_crc=payload_crc)
        )

    async def stage_offset(self, sent: SentOffset) -> None:
        """Store a commit of a stream group that moves the cursor when the transaction is committed. Returns once a
        majority has it on disk, synced. It may be sent again.

        Raises, and nothing is stored: NotLeader, NotReady, InvalidRequest, UnsupportedVersion, UnknownGroup, WrongKind,
        Fenced (the member has lost the partition, or the group was moved), OffsetOutOfRange, TransactionAborted,
        OutOfOrderSequence, QuotaExceeded. OutcomeUnknown: send the same offset again.
        """
        led, port = self._leading(), self._port
        check("an offset in a transaction", TRANSACTIONS_LEVEL, port.group().feature_level)
        check_durable(port.config())
        port.state.check_stage(sent.command, port.group().append_time_now_us())
        await led.stage(sent)
        # It was judged again when it was applied: a command before it may have given the partition to another member.
        if port.state.staged_offsets.held(sent.transaction) <= sent.number:
            port.state.check_stage(sent.command, port.group().append_time_now_us())
            raise TransactionAborted(f"{self._name}: the transaction has ended here")

    async def stage_acks(self, sent: SentAcks) -> None:
        """Store acks of a queue group's worker that settle their records when the transaction is committed. Returns
        once a majority has them on disk, synced. They may be sent again.

        Raises, and nothing is stored: NotLeader, NotReady, InvalidRequest, UnsupportedVersion, UnknownGroup, WrongKind,
        Fenced (the group was moved), LeaseLost (the worker does not hold all these jobs), TransactionAborted,
        OutOfOrderSequence, QuotaExceeded. OutcomeUnknown: send the same acks again.
        """
        led, port = self._leading(), self._port
        check("an ack in a transaction", TRANSACTIONS_LEVEL, port.group().feature_level)
        check_durable(port.config())
        await led.stage(sent)
        # They were judged again when they were applied: the applied state has the last word.
        if port.state.staged_acks.held(sent.transaction) <= sent.number:
            port.state.check_stage_acks(sent.command, port.group().append_time_now_us())
            raise TransactionAborted(f"{self._name}: the transaction has ended here")

    async def end_orphans(self, orphans: Callable[[], Sequence[TransactionId]]) -> None:
        """Have the coordinator end transactions whose workers are gone, until none is left. Open ones are rolled back.

        Raises NotReady, NotLeader, DeadlineExceeded, OutcomeUnknown: call it again.
        """
        await self._leading().settle(orphans)

    async def settle_offsets(self, group: str) -> bool:
        """Have the coordinators end the transactions that have staged offsets of a stream group. They roll open ones
        back.

        A member that has just opened the group's cursor reads on from its position after this. Returns whether there
        was one. Raises NotReady, NotLeader, DeadlineExceeded, OutcomeUnknown: call it again.
        """
        state = self._port.state
        if not state.transactions_of(group):
            return False
        await self._leading().settle(lambda: state.transactions_of(group))
        return True

    async def held(self, transaction: TransactionId, sets: Collection[int] | None = None) -> int:
        """How many batches, offsets and acks of the transaction, or of these sets in it, are stored. Raises NotLeader,
        DeadlineExceeded."""
        return await self._leading().held(transaction, sets)

    async def staged_batch(self, transaction: TransactionId) -> bytes:
        """The first batch of a transaction, as it is stored; b"" if none is.

        Raises BatchTooLarge above SHOWN_BYTES_MAX, NotLeader, DeadlineExceeded, CorruptData, StorageError.
        """
        await self._leading().held(transaction)
        reader = self._port.group().log.reader
        while (staged := self._port.state.staged.get(transaction)) is not None:
            first = staged.entries[0]
            if first.length > SHOWN_BYTES_MAX:
                raise BatchTooLarge(f"{self._name}: a staged batch of {first.length} bytes cannot be shown")
            try:
                entries = await read_entries(reader, [(first.entry_index, first.length)])
            except OffsetOutOfRange:  # it was copied meanwhile, or its transaction has ended, and its segment is gone
                if self._port.state.staged.get(transaction) is staged and staged.entries[0] == first:
                    raise
            else:
                return self._batch_of(entries[first.entry_index])
        return b""

    async def end(self, transaction: TransactionId, *, publish: bool, sets: Collection[int] | None = None) -> None:
        """Give the transaction's records their offsets, or those of these sets alone, and drop the others. Returns once
        that is committed, or it is certain that the transaction has ended here before. Raises NotLeader,
        DeadlineExceeded, QuotaExceeded (too many uncommitted bytes), OutcomeUnknown: tell it again.
        """
        await self._leading().end(transaction, publish=publish, sets=sets)

    @property
    def hung(self) -> Sequence[HungTransaction]:
        """The transactions that their coordinators do not decide, although this leader asked. Empty on a follower."""
        return () if self._led is None else self._led.hung

    # ---- copying: the copier's side

    def is_movable(self, batch: StagedBatch) -> bool:
        """Whether this replica leads, and a copy of the batch may be appended now."""
        return self._led is not None and self._led.staging.movable(batch) is not None

    def append_copy(self, batch: StagedBatch, entry: Entry) -> int:
        """Append a copy of a batch that was read from `entry`. Returns the bytes of the batch; 0: its transaction has
        ended, or it was copied, meanwhile. Raises NotLeader, CorruptData, and as `RaftGroup.propose`."""
        led, log = self._leading(), self._log
        assert log is not None, "a leader without its log"
        staging = led.staging
        found = staging.movable(batch)
        if found is None or found.entry_index != entry.index:
            return 0
        coordinator = staging.coordinator_of(batch.transaction)
        index = log.append_copy(batch, coordinator, entry.index, self._batch_of(entry))
        staging.copied(batch, entry.index, index)
        return found.length

    def _batch_of(self, entry: Entry) -> bytes:
        """The batch in a STAGED entry of a transaction. Raises CorruptData."""
        if entry.header.kind != Kind.STAGED or not is_transactional(entry.header.version):
            raise CorruptData(f"{self._name}: entry {entry.index} is no batch of a transaction", index=entry.index)
        return entry.payload[STAGED_HEAD_SIZE:]

    def _leading(self) -> LedTransactions:
        self._port.check_leading()
        assert self._led is not None, "a leader without its transactions"
        return self._led

    # ---- the log

    def applied(self, entry: Entry) -> None:
        """An entry is applied."""
        if entry.header.kind >= Kind.STAGED:  # a PUBLISH or a DISCARD, too
            self.count()
        if self._led is not None:
            self._led.staging.applied(entry.index)

    def count(self) -> None:
        """Report this replica's staged batches to the broker's totals."""
        batches, _, size = self._port.state.staged.waiting
        self._port.staged_totals.change(batches - self._counted[0], size - self._counted[1])
        self._counted = batches, size

    def forget(self) -> None:
        """Take this replica out of the broker's totals: it is closed."""
        self._port.staged_totals.change(-self._counted[0], -self._counted[1])
        self._counted = 0, 0

    def lead(self) -> None:
        state = self._port.state
        staging = Staging(state.staged, state.staged_offsets, state.staged_acks)
        self._log = TermLog(self._port, staging)
        self._led = LedTransactions(self._name, staging, self._log, self._ask, self._clock)
        self._led.start()

    def follow(self, error: Callable[[], TinymqError]) -> None:
        """Stop leading. Batches that wait for their coordinator are refused with that error."""
        if self._led is not None and self._log is not None:
            self._log.over = error()
            self._led.close(self._log.over)
        self._led = self._log = None
