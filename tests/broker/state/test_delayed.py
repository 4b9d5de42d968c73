"""The delayed batches in the applied state: columns that behave as a dictionary would, and bytes."""

from __future__ import annotations

import random

import pytest

from tests.fakes.batches import payload
from tinymq.base.errors import CorruptData, UnsupportedVersion
from tinymq.broker.state.delayed import DelayedBatch, DelayedBatches, delayed_place, schedule_id_at
from tinymq.broker.state.state import PartitionState
from tinymq.format.delayed import PUBLISHED_VERSION, StagedHead, pack_discarded, pack_published, pack_staged
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry

NOW_US = 1_700_000_000_000_000


def batch(schedule_id: int, due_us: int = NOW_US, index: int = 0) -> DelayedBatch:
    return DelayedBatch(schedule_id, due_us, NOW_US - 5, index or schedule_id, 3, 100 + schedule_id)


def test_a_place_is_an_offset_or_a_schedule_id() -> None:
    assert schedule_id_at(0) == schedule_id_at((1 << 63) - 1) == 0
    assert schedule_id_at(delayed_place(7)) == 7
    assert schedule_id_at(delayed_place((1 << 63) - 1)) == (1 << 63) - 1


@pytest.mark.parametrize("seed", range(5))
def test_columns_behave_like_a_dictionary(seed: int) -> None:
    rng, real, model = random.Random(seed), DelayedBatches(), dict[int, DelayedBatch]()
    index = 0
    for _ in range(3000):
        index += 1
        action = rng.random()
        some = rng.choice([*model, index, 1]) if model else index
        if action < 0.4:
            model[index] = batch(index, NOW_US + rng.randrange(1000))
            real.stage(model[index])
        elif action < 0.5:
            real.carry(some, index)
            if some in model:
                model[some] = model[some]._replace(entry_index=index)
        elif action < 0.9:
            assert real.end(some) == (model.pop(some, None) is not None)
        elif action < 0.95:
            real = DelayedBatches.load(real.dump(), index)
        assert real.get(some) == model.get(some)
        assert (len(real), real.lowest_index) == (
            len(model),
            min((b.entry_index for b in model.values()), default=None),
        )
    assert list(real) == list(model.values())
    assert list(real.after(index // 2)) == [b for b in model.values() if b.schedule_id > index // 2]
    assert list(real.due_times()) == [(b.deliver_at_us, b.schedule_id) for b in model.values()]
    assert real.between(5, index // 2) == [b for b in model.values() if 5 <= b.entry_index <= index // 2]
    assert (real.records, real.bytes) == (3 * len(model), sum(b.bytes for b in model.values()))


def test_equal_batches_are_equal_bytes() -> None:
    one, other = DelayedBatches(), DelayedBatches()
    for number in range(1, 200):
        one.stage(batch(number))
    for number in range(1, 199):
        one.end(number)
    other.stage(batch(199))
    assert one.dump() == other.dump()
    assert other.dump().hex() == GOLDEN
    assert list(DelayedBatches.load(bytes.fromhex(GOLDEN), 199)) == [batch(199)]


GOLDEN = "c70000000000000000401e18240a0600fb3f1e18240a0600c700000000000000030000002b010000"


@pytest.mark.parametrize(
    "wrong",
    [
        [batch(1, -1)],
        [batch(0, index=1)],
        [batch(2), batch(1, index=3)],
        [batch(5, index=4)],
        [batch(1, index=5), batch(2, index=5)],
        [batch(1, index=101)],
        [batch(1)._replace(records=0)],
        [batch(1)._replace(bytes=0)],
    ],
)
def test_what_cannot_be_written_is_not_read(wrong: list[DelayedBatch]) -> None:
    batches = DelayedBatches()
    for each in wrong:
        batches.stage(each)
    with pytest.raises(CorruptData):
        DelayedBatches.load(batches.dump(), 100)
    with pytest.raises(CorruptData):
        DelayedBatches.load(b"x" * 41, 100)


# ---- applied entries ----------------------------------------------------------------------------------------------


class Log:
    """Entries that are applied as they are appended."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.entries: list[Entry] = []

    def append(self, new: NewEntry) -> Entry:
        index, state = len(self.entries) + 1, self.state
        entry = make_entry(
            new, index=index, term=1, prev_crc=0, base_offset=state.high_watermark, append_time_us=NOW_US + index
        )
        state.apply(entry)
        self.entries.append(entry)
        return entry


def staged(data: bytes, schedule_id: int = 0, deliver_at_us: int = 0, delay_us: int = 0) -> NewEntry:
    return NewEntry(Kind.STAGED, pack_staged(StagedHead(schedule_id, deliver_at_us, delay_us, 0, 9), data))


def published(data: bytes, *schedule_ids: int) -> NewEntry:
    return NewEntry(Kind.DATA, pack_published(schedule_ids, data), 2, 9, version=PUBLISHED_VERSION)


def test_a_batch_waits_until_it_is_published_or_dropped() -> None:
    log, data = Log(), payload(2)
    log.append(staged(data, delay_us=5_000_000))
    log.append(staged(data, deliver_at_us=NOW_US + 77))
    first, second = log.state.delayed
    assert first == DelayedBatch(1, NOW_US + 1 + 5_000_000, NOW_US + 1, 1, 2, len(data))
    assert (second.schedule_id, second.deliver_at_us) == (2, NOW_US + 77)
    assert (log.state.high_watermark, log.state.record_bytes) == (0, 0)
    entry = log.append(published(data, 2))
    assert entry.batch == data
    assert (log.state.high_watermark, log.state.record_bytes) == (2, len(entry.payload))
    log.append(staged(data, schedule_id=1, deliver_at_us=first.deliver_at_us))
    assert list(log.state.delayed) == [first._replace(entry_index=4)]
    log.append(NewEntry(Kind.DISCARD, pack_discarded([1])))
    log.append(staged(data, schedule_id=1, deliver_at_us=5))
    assert not len(log.state.delayed)


def test_its_producer_counts_when_it_is_staged_and_not_again() -> None:
    log, producers = Log(), Log().state.producers
    log.append(staged(payload(1, producer=5, sequence=0), delay_us=1_000_000))
    producers = log.state.producers
    producer = producers.get(5)
    assert producer is not None
    assert (producer.next_sequence, schedule_id_at(producer.batches[0].place)) == (1, 1)
    log.append(NewEntry(Kind.DATA, payload(1, producer=5, sequence=1), 1, 9))
    log.append(published(payload(1, producer=5, sequence=0), 1))
    log.append(staged(payload(1, producer=5, sequence=0), schedule_id=1, delay_us=1))
    producer = producers.get(5)
    assert producer is not None
    assert (producer.next_sequence, [b.place for b in producer.batches][1]) == (2, 0)


def test_what_does_not_parse_changes_nothing() -> None:
    log = Log()
    log.append(staged(payload(2), delay_us=1_000_000))
    before = log.state.delayed.dump()
    for new in (
        NewEntry(Kind.STAGED, b""),
        NewEntry(Kind.STAGED, b"\xff" * 39),
        NewEntry(Kind.STAGED, pack_staged(StagedHead(0, -1, 0, 0, 0), payload())),
        NewEntry(Kind.STAGED, pack_staged(StagedHead(0, 1, 0, 0, 0), b"no batch")),
        NewEntry(Kind.DISCARD, b""),
        NewEntry(Kind.DISCARD, b"1234567"),
        NewEntry(Kind.DISCARD, bytes(8)),
        NewEntry(Kind.DISCARD, pack_discarded([9, 1])),
        NewEntry(Kind.DATA, bytes(8), 1, 5, version=PUBLISHED_VERSION),
        NewEntry(Kind.DATA, pack_published([9], b"any"), 1, 5, version=PUBLISHED_VERSION),
    ):
        log.append(new)
    assert log.state.delayed.dump() == before
    again = PartitionState()
    again.load(log.state.dump())
    assert again.dump() == log.state.dump()
    assert list(again.delayed) == list(log.state.delayed)


def test_delayed_entries_have_these_bytes() -> None:
    """Golden: another layout needs another version."""
    assert pack_staged(StagedHead(1, 2, 3, 4, 5), b"batch").hex() == (
        "010000000000000002000000000000000300000000000000040000000000000005000000000000006261746368"
    )
    assert pack_published([6, 7], b"batch").hex() == "0200000000000000060000000000000007000000000000006261746368"
    assert pack_discarded([8]).hex() == "0800000000000000"


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.STAGED])
def test_an_entry_of_a_version_that_says_nothing_about_its_producer_is_not_passed_over(kind: Kind) -> None:
    new = NewEntry(kind, payload(1, producer=3, epoch=1, sequence=0), record_count=int(kind is Kind.DATA), version=99)
    entry = make_entry(new, index=1, term=1, prev_crc=0, base_offset=0, append_time_us=5)
    with pytest.raises(UnsupportedVersion, match="version 99"):
        PartitionState(5).apply(entry)
