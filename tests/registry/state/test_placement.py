"""Placement is balanced over brokers, leaders and racks, and every broker computes the same."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.registry.records import broker
from tinymq.base.types import TopicId
from tinymq.registry.state.placement import place
from tinymq.registry.state.values import QueueRecord

T = TopicId(b"t" * 16)


def spread(counts: Counter[int], brokers: int) -> int:
    return max(counts.values()) - min(counts[b] for b in range(1, brokers + 1))


def test_six_partitions_on_three_brokers() -> None:
    placed = place([broker(n) for n in (1, 2, 3)], [], 6, 3)
    assert Counter(p[0].broker_id for p in placed) == {1: 2, 2: 2, 3: 2}
    assert all({r.broker_id for r in p} == {1, 2, 3} for p in placed)


@given(st.integers(1, 7), st.integers(1, 40), st.data())
def test_placement_is_balanced(brokers: int, partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    placed = place([broker(n) for n in range(1, brokers + 1)], [], partitions, factor)
    assert all(len({r.broker_id for r in p}) == factor for p in placed)
    assert spread(Counter(p[0].broker_id for p in placed), brokers) <= 1
    assert spread(Counter(r.broker_id for p in placed for r in p), brokers) <= 2


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 1), (3, 2), (3, 3), (5, 3), (7, 3)])
def test_partitions_added_one_by_one_are_placed_like_those_of_a_new_topic(brokers: int, factor: int) -> None:
    live = [broker(n, rack=f"r{n % 3}") for n in range(1, brokers + 1)]
    other = [QueueRecord("o", TopicId(b"o" * 16), n, at, 0) for n, at in enumerate(place(live, [], 4, factor))]
    own: list[QueueRecord] = []
    for number in range(20):
        [replicas] = place(live, [*other, *own], 1, factor, own)
        own.append(QueueRecord("t", T, number, replicas, 0))
    assert [queue.replicas for queue in own] == place(live, other, 20, factor)


def test_small_topics_balance_over_the_cluster() -> None:
    brokers = [broker(n) for n in (1, 2, 3)]
    queues: list[QueueRecord] = []
    for _ in range(30):
        queues += [QueueRecord("t", T, 0, replicas, 0) for replicas in place(brokers, queues, 1, 2)]
    assert Counter(q.replicas[0].broker_id for q in queues) == {1: 10, 2: 10, 3: 10}
    assert spread(Counter(r.broker_id for q in queues for r in q.replicas), 3) <= 2


def test_replicas_go_to_different_racks_first() -> None:
    brokers = [broker(n, rack="a" if n < 4 else "b") for n in range(1, 6)]
    racks = {b.broker_id: b.rack for b in brokers}
    for replicas in place(brokers, [], 20, 2):
        assert {racks[r.broker_id] for r in replicas} == {"a", "b"}


def test_replicas_carry_the_incarnation() -> None:
    (replicas,) = place([broker(4)], [], 1, 1)
    assert replicas[0].incarnation == bytes([4]) * 16


def test_a_brokers_partitions_spread_when_it_dies() -> None:
    placed = place([broker(n) for n in (1, 2, 3)], [], 12, 3)
    for leader in (1, 2, 3):
        heirs = Counter(p[1].broker_id for p in placed if p[0].broker_id == leader)
        assert sorted(heirs.values()) == [2, 2]
