"""A million transactions, one after the other: neither the coordinator's state nor a partition's grows with them.

The same is shown of half messages, of versions of Spark's sink, and of offsets and acks that transactions commit.

pytest -s prints the sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tests.broker.state import test_staged_acks as acks
from tests.broker.state import test_staged_offsets as offsets
from tests.broker.state.queue_commands import A as SESSION
from tests.broker.state.queue_commands import Queue
from tests.broker.state.test_group_cursors import opened
from tests.broker.values import makes, moves
from tests.fakes.batches import payload
from tinymq.base.types import PartitionId
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions.commands import Abort, Add, Begin, Command, Commit, Confirm, Register, pack_command
from tinymq.broker.transactions.half.half_commands import (
    BeginHalf,
    ConfirmHalf,
    CountCheck,
    EndHalf,
    HalfCommand,
    pack_half_command,
)
from tinymq.broker.transactions.half.half_message import CHECK_AFTER_US, HalfMessage, transaction_of
from tinymq.broker.transactions.sink_application import SinkApplication
from tinymq.broker.transactions.sink_commands import AddToSets, CommitSets, ConfirmSets, OpenSet, SinkCommand
from tinymq.broker.transactions.transactional_id import TransactionalId
from tinymq.format.entry import Kind, NewEntry, make_entry
from tinymq.format.transactional import (
    TRANSACTIONAL_VERSION,
    TransactionalHead,
    TransactionName,
    items_of,
    pack_discard,
    pack_publish,
    pack_transactional,
)
from tinymq.proto import partition_pb2 as pb

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
MILLION = 1_000_000
SAMPLES = 100
GROWTH_MAX = 1.25  # indexes that retention thins are not always equally full, and numbers get more digits
A, B = PartitionId(b"a" * 16, 0), PartitionId(b"b" * 16, 1)
OWNERS = 16
FIRST_PRODUCER_ID = 1_000_000  # so that all have as many bytes
CHANGES = 50_000  # transactions until every id gets another owner


def check_sizes(what: str, one: Callable[[int], None], size: Callable[[], int]) -> None:
    """Carry out a million transactions, and look at the size of the state after each hundredth of them."""
    sizes = []
    for number in range(MILLION):
        one(number)
        if (number + 1) % (MILLION // SAMPLES) == 0:
            sizes.append(size())
    before, after = max(sizes[: SAMPLES // 10]), max(sizes[SAMPLES // 10 :])
    print(f"{what}: up to {before:,} bytes in the first tenth of {MILLION:,} transactions, and {after:,} in the others")
    assert after <= GROWTH_MAX * before, "a byte for each hundredth transaction would be more"


def test_the_coordinator_of_a_million_transactions_is_as_small_as_of_a_few() -> None:
    """Some are rolled back, and the owners of the ids change."""
    replica = CoordinatorReplica("__coordinator/0", lambda broker: None)
    ids = replica.transactional_ids
    names = [f"billing-{owner}" for owner in range(OWNERS)]

    def decide(name: str, command: Command, now_us: int) -> TransactionalId:
        applied = ids.apply(pack_command(name, command), now_us)
        assert applied is not None
        assert isinstance(applied.result, TransactionalId), applied
        return applied.result

    def one(number: int) -> None:
        if number % CHANGES == 0:
            for owner, name in enumerate(names):
                decide(name, Register(1 + owner), number)
        name = names[number % OWNERS]
        state = ids.states[name]
        begun = decide(name, Begin(state.producer_id, state.epoch, 60_000_000), number)
        transaction = TransactionId(begun.producer_id, begun.epoch, begun.number)
        decide(name, Add(transaction, frozenset({A, B})), number)
        aborted = number % 7 == 0
        decide(name, Abort(transaction) if aborted else Commit(transaction, {A: 1, B: 1}, {A: 1, B: 1}), number)
        decide(name, Confirm(transaction, frozenset({A, B})), number)

    check_sizes("coordinator", one, lambda: len(replica.dump()))
    assert list(ids.unfinished) == []


def test_a_partition_of_a_million_transactions_is_as_small_as_of_a_few() -> None:
    """Some are discarded, and retention follows."""
    state, batch = PartitionState(), payload(1)

    def apply(kind: Kind, data: bytes, records: int = 0, version: int = 1) -> None:
        new = NewEntry(kind, data, records, version=version)
        index, offset = state.applied_index + 1, state.high_watermark
        state.apply(make_entry(new, index=index, term=1, prev_crc=0, base_offset=offset, append_time_us=index))

    def one(number: int) -> None:
        transaction = TransactionId(1 + number % OWNERS, 0, 1 + number // OWNERS)
        producer_id, epoch, counted = transaction
        name, coordinator, writer = TransactionName(producer_id, counted, epoch), number % OWNERS, 0
        head = TransactionalHead(*name, coordinator, writer, batch_number=0, max_timestamp_us=number)
        apply(Kind.STAGED, pack_transactional(head, batch), version=TRANSACTIONAL_VERSION)
        staged = state.staged.get(transaction)
        assert staged is not None
        if number % 7 == 0:
            apply(Kind.DISCARD, pack_discard(name), version=TRANSACTIONAL_VERSION)
        else:
            apply(Kind.PUBLISH, pack_publish(name, items_of(staged.entries)), staged.records)
        if number % 1000 == 0:
            apply(Kind.COMMAND, pb.Commands(commands=[moves(max(0, state.high_watermark - 1000))]).SerializeToString())

    check_sizes("partition", one, lambda: len(state.dump()))
    assert not len(state.staged)
    assert state.lowest_kept_index is not None
    assert state.applied_index - state.lowest_kept_index < 10_000


def test_the_coordinator_of_a_million_half_messages_is_as_small_as_of_a_few() -> None:
    """Those that are remembered for a repeated call are there from the first look on."""
    replica = CoordinatorReplica("__coordinator/0", lambda broker: None)
    ids = replica.transactional_ids

    def decide(command: HalfCommand, now_us: int) -> None:
        applied = ids.apply(pack_half_command("checkout", command), now_us)
        assert applied is not None
        assert isinstance(applied.result, HalfMessage), applied

    def one(number: int) -> None:
        transaction = transaction_of(FIRST_PRODUCER_ID + number)
        decide(BeginHalf(transaction.producer_id, A, b"order 42", CHECK_AFTER_US), number)
        if number % 5 == 0:
            decide(CountCheck(transaction, 0), number)
        decide(EndHalf(transaction, number % 7 != 0, held=1), number)
        decide(ConfirmHalf(transaction), number)

    check_sizes("half messages", one, lambda: len(replica.dump()))
    assert not ids.half_messages.halves


def test_the_coordinator_of_a_million_versions_of_a_sink_is_as_small_as_of_a_few() -> None:
    """Each version has a set that is committed, and another one that is dropped with it."""
    replica = CoordinatorReplica("__coordinator/0", lambda broker: None)
    ids = replica.transactional_ids

    def decide(name: str, command: SinkCommand, now_us: int) -> None:
        applied = ids.apply(pack_command(name, command), now_us)
        assert applied is not None
        assert isinstance(applied.result, SinkApplication), applied

    def one(number: int) -> None:
        name, version, producer_id = f"job-{number % OWNERS}", number // OWNERS, FIRST_PRODUCER_ID + 2 * number
        for fresh_id in (producer_id, producer_id + 1):  # the second set joins the transaction of the first
            decide(name, OpenSet(version, "run", "query", fresh_id, 60_000_000), number)
        decide(name, AddToSets(producer_id, frozenset({A, B})), number)
        counts = {A: 1, B: 1}
        decide(name, CommitSets(version, "query", producer_id, (0,), counts, counts), number)
        decide(name, ConfirmSets(producer_id, frozenset({A, B})), number)

    check_sizes("versions of a sink", one, lambda: len(replica.dump()))
    assert list(ids.sinks.unfinished) == []


def test_a_partition_of_a_million_offsets_and_acks_is_as_small_as_of_a_few() -> None:
    """Each transaction commits the offset of a stream group and acks a job of a queue group. Some are rolled back, and
    the next one has the same job."""
    applied = Queue(records=0)
    applied.open_session(SESSION)
    applied.run(makes(7, "g"), opened(), version=2)
    generation = applied.state.cursors["g"].generation
    transactions = count(1)

    def stage(offset: int) -> TransactionId:
        transaction = TransactionId(1, 0, next(transactions))
        outcomes = applied.run(
            offsets.stages(offset, transaction=transaction, generation=generation),
            acks.stages(applied, (offset, offset + 1), transaction=transaction, session=SESSION),
            version=offsets.VERSION,
        )
        assert [outcome.error for outcome in outcomes] == [None, None]
        return transaction

    def one(number: int) -> None:
        applied.batch(1, size=10)
        if number % 7 == 0:
            applied.discard(stage(number))
        (outcome,) = applied.run(offsets.publishes(stage(number)), version=offsets.VERSION)
        assert outcome.error is None
        if number % 1000 == 0:
            applied.run(moves(max(0, number - 1000)))
        del applied.entries[:-1]

    check_sizes("offsets and acks", one, lambda: len(applied.state.dump()))
    assert not len(applied.state.staged_acks)
    assert not applied.state.transactions_of("g")
    assert applied.position == MILLION
