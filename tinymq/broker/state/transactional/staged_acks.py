"""The acks that transactions have staged for queue groups, in one partition. Pure, and replicated.

A worker takes a job, writes its results in a transaction, and acks the job with it: the record is settled exactly if
the transaction is committed. While the ack is staged, the record belongs to the transaction alone. It is in no lease,
every other settlement of it is refused, and so is a second staged ack: two workers may have had the job, one after the
other, and only one of them may commit its results. A rollback gives the record back uncharged.

Three things come before the transaction: a seek, the deletion of the group, and a removal of the record. The acks then
settle nothing, as if the transaction had ended before.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from tinymq.base.errors import CorruptData, InvalidName, InvalidRequest, OutOfOrderSequence, QuotaExceeded
from tinymq.base.types import check_channel_name
from tinymq.base.value import value
from tinymq.broker.state.queue_group import SESSION_BYTES, Span
from tinymq.broker.state.queue_groups import QueueGroups, pack_spans, unpack_spans
from tinymq.broker.state.staged import TransactionId
from tinymq.proto import partition_pb2 as pb

ACKS_MAX = 10_000  # records of one partition. Part of the replicated behaviour


class AckedRecords(NamedTuple):
    """The records of one StageAcks command."""

    group: str
    generation: int  # of the group's cursor
    session: bytes  # of the worker
    spans: Sequence[Span]

    @property
    def records(self) -> int:
        return sum(end - start for start, end in self.spans)


@value
class AcksOfTransaction:
    """The acks that one transaction has staged in this partition."""

    coordinator: int  # number of the partition of __coordinator that has the transaction
    commands: Sequence[AckedRecords]  # those that took effect, in their order


class StagedAcks:
    """The staged acks of one partition, by transaction."""

    def __init__(self) -> None:
        self._staged: dict[TransactionId, AcksOfTransaction] = {}  # in the order of their first commands
        self._records = 0  # invariant: the sum over all transactions

    def __len__(self) -> int:
        return len(self._staged)

    def __iter__(self) -> Iterator[TransactionId]:
        return iter(self._staged)

    def get(self, transaction: TransactionId) -> AcksOfTransaction | None:
        return self._staged.get(transaction)

    def held(self, transaction: TransactionId) -> int:
        """How many commands of the transaction took effect. The next one has this number."""
        staged = self._staged.get(transaction)
        return 0 if staged is None else len(staged.commands)

    def orphans(self, group: str, generation: int, sessions: Container[bytes]) -> list[TransactionId]:
        """The transactions with acks for a group of this generation, of workers that are not among `sessions`."""
        return [
            transaction
            for transaction, staged in self._staged.items()
            if any(
                (acked.group, acked.generation) == (group, generation) and acked.session not in sessions
                for acked in staged.commands
            )
        ]

    def check(self, command: pb.StageAcks) -> None:
        """Raise OutOfOrderSequence if an earlier command of the transaction is missing, QuotaExceeded for too many
        records, InvalidRequest for a malformed command."""
        if len(command.session) != SESSION_BYTES:
            raise InvalidRequest(f"a session has an id of {SESSION_BYTES} bytes, not {len(command.session)}")
        if command.place > self.held(name_of(command)):
            raise OutOfOrderSequence("an earlier ack of the transaction is missing")
        count = sum(end - start for start, end in unpack_spans(command.acked))
        if self._records + count > ACKS_MAX:
            message = f"open transactions have acked {self._records} records of the partition"
            raise QuotaExceeded(message, hint="end transactions that are open")

    def stage(self, command: pb.StageAcks) -> None:
        """Apply a command that passed `check` and is not a repeat."""
        transaction, queue = name_of(command), command.queue
        staged = self._staged.get(transaction) or AcksOfTransaction(command.coordinator, ())
        acked = AckedRecords(queue.group, queue.generation, command.session, tuple(unpack_spans(command.acked)))
        self._records += acked.records
        self._staged[transaction] = AcksOfTransaction(staged.coordinator, (*staged.commands, acked))

    def end(self, transaction: TransactionId) -> Sequence[AckedRecords]:
        """Apply the end of a transaction. Returns what it had staged; nothing if it has ended before."""
        staged = self._staged.pop(transaction, None)
        if staged is None:
            return ()
        self._records -= sum(acked.records for acked in staged.commands)
        return staged.commands

    # ---- as bytes

    def dump(self) -> Iterable[pb.StagedAcks]:
        """The transactions. Equal logs give equal bytes."""
        return [
            pb.StagedAcks(
                producer_id=transaction.producer_id,
                number=transaction.number,
                epoch=transaction.epoch,
                coordinator=staged.coordinator,
                commands=[
                    pb.AckedRecords(
                        group=acked.group,
                        generation=acked.generation,
                        session=acked.session,
                        acked=pack_spans(acked.spans),
                    )
                    for acked in staged.commands
                ],
            )
            for transaction, staged in self._staged.items()
        ]

    @classmethod
    def load(cls, stored: Iterable[pb.StagedAcks], groups: QueueGroups, end: int) -> StagedAcks:
        """The inverse of `dump`, for a log that ends at the offset `end`. Stages the records in `groups`, too. Raises
        CorruptData for anything that `dump` cannot write."""
        loaded = cls()
        for each in stored:
            transaction = name_of(each)
            _check(transaction not in loaded._staged and len(each.commands) > 0)
            commands = tuple(_load_records(acked, end) for acked in each.commands)
            loaded._staged[transaction] = AcksOfTransaction(each.coordinator, commands)
            loaded._records += sum(acked.records for acked in commands)
            _check(loaded._records <= ACKS_MAX)
            for acked in commands:
                group = groups.by_name.get(acked.group)
                if group is not None and group.generation == acked.generation:
                    offsets = [offset for start, stop in acked.spans for offset in range(start, stop)]
                    taken = any(o in group.settled or o in group.staged or o in group.burials for o in offsets)
                    _check(not taken)
                    groups.stage(acked.group, transaction, acked.spans)
        return loaded


def name_of(message: pb.StageAcks | pb.StagedAcks) -> TransactionId:
    """The transaction that a message names."""
    return TransactionId(message.producer_id, message.epoch, message.number)


def spans_of(command: pb.StageAcks) -> list[Span]:
    """The records of a command."""
    return unpack_spans(command.acked)


def _load_records(stored: pb.AckedRecords, end: int) -> AckedRecords:
    try:
        check_channel_name(stored.group)
        spans = tuple(unpack_spans(stored.acked))
    except (InvalidName, InvalidRequest) as error:
        raise CorruptData(f"the applied state's staged acks: {error.message}") from None
    _check(spans[-1][1] <= end and len(stored.session) == SESSION_BYTES)
    return AckedRecords(stored.group, stored.generation, stored.session, spans)


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's staged acks are out of range")
