"""Batches of transactions in the applied state: what is staged, how a PUBLISH entry counts its records, and bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.broker.values import Applied, moves, name_of
from tests.fakes.batches import payload
from tinymq.base.errors import CorruptData
from tinymq.broker.state.staged import NOTHING, StagedBatch, StagedEntry, StagedTransactions, TransactionId, Waiting
from tinymq.broker.state.state import PartitionState
from tinymq.format.entry import Kind
from tinymq.format.transactional import (
    COPIED_VERSION,
    SCATTERED_VERSION,
    TRANSACTIONAL_VERSION,
    CopiedHead,
    Item,
    TransactionalHead,
    items_of,
    pack_copied,
    pack_discard,
    pack_publish,
    pack_transactional,
)

T, OTHER = TransactionId(7, 2, 1), TransactionId(8, 0, 5)


def loaded(applied: Applied) -> PartitionState:
    """The state that a snapshot gives."""
    state = PartitionState()
    state.load(applied.state.dump())
    assert state.dump() == applied.state.dump()
    return state


# ---- staged entries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_staged_entries_behave_like_lists(seed: int) -> None:
    rng, real = random.Random(seed), StagedTransactions()
    model: dict[TransactionId, list[tuple[StagedBatch, StagedEntry]]] = {}
    for index in range(1, 1000):
        transaction = TransactionId(rng.randrange(1, 6), rng.randrange(2), 1)
        mine = model.get(transaction, [])
        writer = rng.randrange(3)
        following = sum(batch.writer == writer for batch, _ in mine)
        action = rng.random()
        if action < 0.8:
            batch = StagedBatch(transaction, writer, following + rng.choice([0, 0, 0, 1, -1]))
            entry = StagedEntry(index, rng.randrange(1, 9), rng.randrange(1, 99), rng.randrange(-5, 99), index)
            real.stage(batch, entry, transaction.epoch)
            if batch.number == following:
                model.setdefault(transaction, []).append((batch, entry))
        elif action < 0.9:
            ended, gone = real.end(transaction), model.pop(transaction, None)
            assert (ended and ended.entries) == (gone and [entry for _, entry in gone])
        elif action < 0.97 and mine:  # a copy, of the entry that has the batch or of an earlier one
            place = rng.randrange(len(mine))
            batch, entry = mine[place]
            replaced, crc = entry.entry_index - rng.choice([0, 0, 1]), entry.batch_crc + rng.choice([0, 0, 0, 1])
            real.carry(batch, replaced, index, crc)
            if (replaced, crc) == (entry.entry_index, entry.batch_crc):
                mine[place] = batch, entry._replace(entry_index=index)
        else:
            real = StagedTransactions.load(real.dump(), index)
        entries = [entry for some in model.values() for _, entry in some]
        assert list(real) == list(model)
        assert real.waiting == Waiting(
            len(entries), sum(e.record_count for e in entries), sum(e.length for e in entries)
        )
        assert real.lowest_index == min((entry.entry_index for entry in entries), default=None)
        for transaction, some in model.items():
            staged = real.get(transaction)
            assert staged is not None
            assert (staged.coordinator, staged.entries) == (transaction.epoch, [entry for _, entry in some])
            first, last = sorted((rng.randrange(index + 1), rng.randrange(index + 1)))
            assert list(staged.between(first, last)) == [
                (batch.writer, batch.number, entry) for batch, entry in some if first <= entry.entry_index <= last
            ]
            batch, entry = rng.choice(some)
            assert (real.entry_of(batch), real.entry_of(batch._replace(number=-1))) == (entry, None)
            assert staged.index_of(batch.writer, batch.number) == entry.entry_index
            assert staged.index_of(batch.writer, -1) is None


GOLDEN = (
    "0700000000000000010000000000000002000000030000000200000000000000"
    "0300000000000000040000006400000005000000000000004d00000000000000"
    "090000000000000001000000c8000000ffffffffffffffff4e00000009000000"
)


def golden() -> StagedTransactions:
    staged = StagedTransactions()
    staged.stage(StagedBatch(T, 0, 0), StagedEntry(3, 4, 100, 5, 77), 3)
    staged.stage(StagedBatch(T, 9, 0), StagedEntry(9, 1, 200, -1, 78), 3)
    return staged


def test_staged_entries_have_these_bytes() -> None:
    """Golden: another layout needs another field."""
    assert golden().dump().hex() == GOLDEN
    again = StagedTransactions.load(bytes.fromhex(GOLDEN), 9)
    assert again.dump().hex() == GOLDEN
    staged = again.get(T)
    assert staged is not None
    assert (staged.coordinator, staged.entries[1]) == (3, StagedEntry(9, 1, 200, -1, 78))
    assert (staged.next_number(0), staged.next_number(9), staged.next_number(1)) == (1, 1, 0)


def changed(position: int, value: int) -> bytes:
    data = bytearray.fromhex(GOLDEN)
    data[position] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        changed(24, 0),  # no entries
        changed(24, 1),
        changed(24, 3),
        changed(28, 1),  # reserved
        changed(32, 0),  # no index
        changed(32, 9),  # an index twice
        changed(64, 10),  # above the applied index
        changed(40, 0),  # no records
        changed(44, 0),  # no bytes
        bytes.fromhex(GOLDEN)[:-1],
        bytes.fromhex(GOLDEN) * 2,
        bytes.fromhex(GOLDEN) + changed(0, 9),  # the same entries in another transaction
        b"x",
    ],
)
def test_what_cannot_be_written_is_not_read(data: bytes) -> None:
    with pytest.raises(CorruptData):
        StagedTransactions.load(data, 9)


def test_a_hundred_thousand_entries_take_four_megabytes() -> None:
    staged = StagedTransactions()
    for index in range(1, 100_001):
        staged.stage(StagedBatch(T, 0, index - 1), StagedEntry(index, 1, 1000, 0, 0), 0)
    assert len(staged.dump()) == 32 + 100_000 * 32
    assert staged.end(T) is not None
    assert (staged.dump(), staged.waiting) == (b"", NOTHING)


# ---- applied entries -----------------------------------------------------------------------------------------------


def test_records_count_when_they_are_published_and_not_before() -> None:
    applied = Applied()
    first = applied.stage(T, 0, 3, coordinator=4)
    applied.batch(2, size=10)
    second = applied.stage(T, 1, 1)
    other = applied.stage(OTHER, 0, 5)
    state = applied.state
    staged = state.staged.get(T)
    assert staged is not None
    assert (staged.coordinator, staged.entries) == (4, [first, second])
    assert (state.high_watermark, state.record_bytes, state.lowest_kept_index) == (2, 10, first.entry_index)
    assert loaded(applied).staged.dump() == state.staged.dump() != b""
    applied.publish(T)
    assert (state.high_watermark, state.record_bytes) == (6, 10 + first.length + second.length)
    assert list(state.staged) == [OTHER]
    assert state.lowest_kept_index == first.entry_index, "readers need the published batches"
    applied.discard(OTHER)
    assert len(state.staged) == 0
    applied.run(moves(6))
    assert (state.lowest_kept_index, state.kept_bytes) == (None, 0)
    assert loaded(applied).lowest_kept_index is None
    assert other.entry_index == 4


def test_a_copy_takes_the_place_of_its_batch() -> None:
    applied = Applied()
    first, second = applied.stage(T, 0, 3), applied.stage(T, 1, 1)
    other = applied.stage(OTHER, 0, 2)
    state, waiting = applied.state, applied.state.staged.waiting
    copied = first._replace(entry_index=applied.copy(T, 0, first.entry_index, payload(3)).index)
    staged = state.staged.get(T)
    assert staged is not None
    assert staged.entries == [copied, second], "the records keep their order"
    assert (state.staged.waiting, state.lowest_kept_index) == (waiting, second.entry_index)
    assert list(loaded(applied).staged.get(T).entries) == [copied, second]  # type: ignore[union-attr]
    applied.discard(OTHER)
    publish = applied.publish(T)
    assert (publish.header.version, state.high_watermark) == (SCATTERED_VERSION, 4)
    assert state.lowest_kept_index == second.entry_index, "the lowest of its entries, not the first"
    applied.copy(T, 0, copied.entry_index, payload(3))
    applied.copy(OTHER, 0, other.entry_index, payload(2))
    assert len(state.staged) == 0, "a copy behind the end changes nothing"
    assert loaded(applied).lowest_kept_index == second.entry_index


def test_a_copy_of_another_batch_or_of_another_entry_changes_nothing() -> None:
    applied = Applied()
    first, second = applied.stage(T, 0, 3), applied.stage(T, 1, 1)
    before = applied.state.staged.dump()
    applied.copy(T, 0, second.entry_index, payload(3))
    applied.copy(T, 0, first.entry_index, payload(1))
    applied.copy(T, 2, first.entry_index, payload(3))
    applied.copy(T, 0, first.entry_index, payload(3), writer=1)
    applied.copy(OTHER, 0, first.entry_index, payload(3))
    applied.add(Kind.STAGED, b"", version=COPIED_VERSION)
    assert applied.state.staged.dump() == before
    again = applied.copy(T, 0, first.entry_index, payload(3)).index
    applied.copy(T, 0, first.entry_index, payload(3))
    assert applied.state.staged.get(T).index_of(0, 0) == again, "it was replaced before"  # type: ignore[union-attr]
    loaded(applied)


def test_a_batch_of_a_transaction_has_no_producer_in_the_state() -> None:
    applied = Applied()
    data = payload(1, producer=5, sequence=0)
    applied.add(
        Kind.STAGED, pack_transactional(TransactionalHead(*name_of(T), 0, 0, 0, 5), data), version=TRANSACTIONAL_VERSION
    )
    applied.publish(T)
    assert applied.state.producers.get(5) is None


@pytest.mark.parametrize("seed", range(8))
def test_each_batch_counts_for_retention_as_if_it_were_an_entry(seed: int) -> None:
    """The same records in DATA entries, at the same times, give the same marks."""
    rng, one, other = random.Random(seed), Applied(), PartitionState()
    open_: dict[TransactionId, int] = {}
    for number in range(400):
        transaction = TransactionId(1, 0, number // 20 + rng.randrange(3))
        for _ in range(rng.randrange(3)):
            one.stage(transaction, open_.setdefault(transaction, 0), rng.randrange(1, 50), later_us=rng.randrange(9))
            open_[transaction] += 1
        if rng.random() < 0.3 and open_:
            ending = rng.choice(list(open_))
            staged = one.state.staged.get(ending)
            assert staged is not None
            sizes = [(entry.record_count, entry.length) for entry in staged.entries]
            del open_[ending]
            if rng.random() < 0.2:
                one.discard(ending)
                continue
            header = one.publish(ending, later_us=rng.choice([1, 1000, 1_000_000])).header
            offset = header.base_offset
            for count, size in sizes:
                below = other.record_bytes
                other.record_bytes += size
                other.retention_index.note(offset, below, size, header.append_time_us)
                offset += count
            assert offset == one.state.high_watermark
        if rng.random() < 0.1:
            start, end = rng.randrange(one.state.high_watermark + 1), one.state.high_watermark
            if start > one.state.log_start:
                one.run(moves(start))
                other.retention_index.start_at(start, end, other.record_bytes)
        assert one.state.record_bytes == other.record_bytes
        assert list(one.state.retention_index.marks) == list(other.retention_index.marks)
    loaded(one)


def test_retention_removes_a_part_of_what_one_entry_published() -> None:
    applied = Applied()
    for number in range(20):
        applied.stage(T, number)
    applied.publish(T)
    state = applied.state
    size = state.record_bytes // 20
    start = state.retention_index.with_at_most(state.record_bytes - 5 * size)
    assert 13 <= start <= 15
    applied.run(moves(start))
    assert 5 * size <= state.kept_bytes <= 7 * size


def test_what_no_leader_appends_changes_nothing() -> None:
    applied = Applied()
    applied.stage(T, 0, 2)
    applied.batch(1, size=10)
    entry = applied.state.staged.get(T).entries[0]  # type: ignore[union-attr]
    name, state = name_of(T), applied.state
    head = TransactionalHead(*name, 0, 0, 1, 5)
    item = items_of([entry])[0]
    before = (state.staged.dump(), state.record_bytes, state.published.dump(), state.retention_index.marks[:])
    for kind, data, version in [
        (Kind.STAGED, b"", 2),
        (Kind.STAGED, pack_transactional(head, b"no batch"), 2),
        (Kind.STAGED, pack_transactional(TransactionalHead(*name, 0, 0, 5, 5), payload()), 2),
        (Kind.DISCARD, b"", 2),
        (Kind.DISCARD, pack_discard(name)[:-1] + b"x", 2),
        (Kind.DISCARD, pack_discard(name_of(OTHER)), 2),
        (Kind.PUBLISH, b"", 1),
        (Kind.PUBLISH, pack_publish(name, []), 1),
        (Kind.PUBLISH, pack_publish(name, [item._replace(entry_index=99)]), 1),
        (Kind.PUBLISH, pack_publish(name, [item._replace(first=1)]), 1),
        (Kind.PUBLISH, pack_publish(name, [item, item]), 1),
        (Kind.PUBLISH, pack_publish(name, [item._replace(record_count=3)]), 1),
    ]:
        applied.add(kind, data, count=2 if kind is Kind.PUBLISH else 0, version=version)
        assert (
            state.staged.dump(), state.record_bytes, state.published.dump(), state.retention_index.marks[:]
        ) == before  # fmt: skip
        loaded(applied)
    assert state.high_watermark == 1 + 2 * 6, "an entry takes its offsets, whatever it says"


@pytest.mark.parametrize("seed", range(10))
def test_entries_of_any_bytes_leave_a_state_that_can_be_loaded(seed: int) -> None:
    rng, applied = random.Random(seed), Applied()
    for number in range(3):
        applied.stage(T, number, rng.randrange(1, 4))
        applied.stage(OTHER, number)
    applied.publish(OTHER)
    staged = applied.state.staged.get(T)
    assert staged is not None
    items = items_of(staged.entries)
    made: list[Callable[[], tuple[Kind, bytes]]] = [
        lambda: (Kind.PUBLISH, pack_publish(name_of(T), [Item(*mixed(rng, item)) for item in items])),
        lambda: (
            Kind.STAGED,
            pack_transactional(TransactionalHead(*name_of(T), 0, 0, 3, rng.getrandbits(62)), payload()),
        ),
        lambda: (Kind.DISCARD, pack_discard(name_of(OTHER))),
        lambda: (
            Kind.STAGED,
            pack_copied(
                CopiedHead(*name_of(T), 0, 0, rng.randrange(4), rng.randrange(1, 9)), payload(rng.randrange(1, 4))
            ),
        ),
    ]
    for _ in range(60):
        maker = rng.randrange(len(made))
        kind, data = made[maker]()
        damaged = bytearray(data)
        if rng.random() < 0.7:
            damaged[rng.randrange(len(damaged))] = rng.getrandbits(8)
        published = kind is Kind.PUBLISH
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        version = rng.choice((1, 2)) if published else 3 if maker == 3 else 2
        applied.add(kind, bytes(damaged), staged.records if published else 0, version)
        loaded(applied)


def mixed(rng: random.Random, item: Item) -> list[int]:
    return [field if rng.random() < 0.95 else rng.getrandbits(20) for field in item]


@pytest.mark.parametrize("seed", range(10))
def test_damaged_snapshots_are_refused_or_load_what_they_say(seed: int) -> None:
    rng, applied = random.Random(seed), Applied()
    for number in range(4):
        applied.stage(TransactionId(number // 2, 0, 1), number % 2, rng.randrange(1, 9), writer=0)
    applied.publish(TransactionId(0, 0, 1))
    packed = applied.state.staged.dump()
    for _ in range(300):
        data = bytearray(packed)
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 255, rng.getrandbits(8)])
        try:
            again = StagedTransactions.load(bytes(data), 5)
        except CorruptData:
            continue
        assert again.dump() == bytes(data)
