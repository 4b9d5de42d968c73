"""All tails of a broker share one bound: the least recently appended one drops first, and none drops too much."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.opened import with_log
from tests.log.values import append, faulty, open_both, run
from tinymq.base.config import Limits
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log import Log, Store
from tinymq.log.replica_log.tail import ENTRY_OBJECT_BYTES, Tail, cost
from tinymq.log.replica_log.tail_budget import TailBudget

PAYLOAD_BYTES = 360
ENTRY_BYTES = ENTRY_OBJECT_BYTES + PAYLOAD_BYTES


def entry(index: int, payload: bytes = bytes(PAYLOAD_BYTES)) -> Entry:
    return make_entry(
        NewEntry(Kind.DATA, payload, record_count=1000, max_timestamp_us=(1 << 51) + index),
        index=index,
        term=(1 << 40) + index,
        prev_crc=(1 << 31) + index,
        base_offset=index << 20,
        append_time_us=(1 << 50) + index,
    )


def fill(tail: Tail, count: int, *, released: bool = True) -> None:
    for _ in range(count):
        tail.append(entry(tail.next_index), 0)
        if released:
            tail.release(tail.next_index)


def kept(tail: Tail) -> range:
    return range(tail.first_index, tail.next_index)


def test_the_tail_that_was_appended_to_least_recently_drops_its_oldest_entries_first() -> None:
    budget = TailBudget(10 * ENTRY_BYTES)
    a, b, c = (Tail(1, budget) for _ in range(3))
    fill(a, 4)
    fill(b, 4)
    fill(c, 2)
    assert budget.bytes == 10 * ENTRY_BYTES
    fill(c, 1)
    assert (kept(a), kept(b), kept(c)) == (range(2, 5), range(1, 5), range(1, 4))
    fill(a, 1)  # now b is the least recently appended
    fill(c, 2)
    assert (kept(a), kept(b), kept(c)) == (range(2, 6), range(4, 5), range(1, 6))
    fill(c, 1)
    assert kept(b) == range(5, 5)
    fill(c, 9)
    assert (kept(a), kept(c)) == (range(6, 6), range(6, 16)), "in the end one tail has the whole budget"
    assert budget.bytes == 10 * ENTRY_BYTES


def test_unreleased_entries_stay_and_others_are_dropped() -> None:
    budget = TailBudget(4 * ENTRY_BYTES)
    held, free = Tail(1, budget), Tail(1, budget)
    fill(held, 6, released=False)
    fill(free, 3)
    assert kept(held) == range(1, 7)
    assert kept(free) == range(4, 4)
    held.release(4)
    assert kept(held) == range(3, 7), "as many as the bound requires, not all that may be dropped"
    held.release(7)
    assert kept(held) == range(3, 7)
    fill(free, 1)
    assert (kept(held), kept(free)) == (range(4, 7), range(4, 5))


def test_truncated_or_closed_tails_do_not_count() -> None:
    budget = TailBudget(100 * ENTRY_BYTES)
    a, b = Tail(1, budget), Tail(1, budget)
    fill(a, 10)
    fill(b, 10)
    a.cut_from(8)
    a.cut_before(3)
    assert budget.bytes == (5 + 10) * ENTRY_BYTES
    a.cut_from(1)
    assert (a.bytes, budget.bytes) == (0, 10 * ENTRY_BYTES)
    b.close()
    assert budget.bytes == 0
    assert b.slice(1, 1) is not None, "a reader of it may continue"
    fill(a, 200)
    assert budget.bytes == 100 * ENTRY_BYTES


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 16))
def test_the_sum_is_exact_and_bounded_by_unreleased_entries(seed: int) -> None:
    rng = random.Random(seed)
    budget = TailBudget(rng.randrange(1, 30) * ENTRY_BYTES)
    tails = [Tail(1, budget) for _ in range(rng.randrange(1, 6))]
    released = dict.fromkeys(tails, 1)
    for _ in range(150):
        tail = rng.choice(tails)
        match rng.randrange(6):
            case 0 | 1 | 2:
                tail.append(entry(tail.next_index, bytes(rng.randrange(600))), 0)
            case 3 | 4:
                released[tail] = rng.randint(released[tail], tail.next_index)
                tail.release(released[tail])
            case _ if tail.next_index > released[tail]:
                tail.cut_from(rng.randint(released[tail], tail.next_index))
        assert budget.bytes == sum(each.bytes for each in tails)
        assert all(each.first_index <= max(each.first_index, released[each]) <= each.next_index for each in tails)
        held = [each.slice(released[each], 1 << 30) for each in tails]
        assert None not in held, "entries that must stay are there"
        for other in tails:
            entries = other.slice(other.first_index, 1 << 30) or []
            assert other.bytes == sum(map(cost, entries))


@pytest.mark.parametrize("size", [10, 1000, 50_000])
def test_an_entry_costs_what_its_objects_take(size: int) -> None:
    budget = TailBudget(1 << 40)
    tail = Tail(1000, budget)
    payloads = [random.Random(i).randbytes(size) for i in range(300)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for payload in payloads:
        tail.append(entry(tail.next_index, bytes(memoryview(payload))), tail.next_index * 4096)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.9 < (after - before) / budget.bytes < 1.1


def test_all_logs_of_a_broker_share_the_budget() -> None:
    async def test(store: Store, log: Log) -> None:
        append(log, 20, size=1000)
        await store.writer.drain()
        log.note_applied(log.last_index)
        assert store.tails.bytes <= 10_000 < 20_000
        assert log.reader.tail(log.last_index, 1)

    with_log(test, tail_cache_bytes_max=10_000)


def test_a_closed_log_gives_its_share_back() -> None:
    async def body() -> None:
        store, opened = await open_both(faulty(), limits=Limits(segment_bytes=1 << 20))
        append(opened.log, 5, size=1000)
        await store.writer.drain()
        assert store.tails.bytes > 5000
        await store.close_log(opened.log.group)
        assert store.tails.bytes == 0
        await store.close()

    run(body())
