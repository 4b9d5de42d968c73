"""Members, incarnations, and the one quorum function: hazards 8, 20, 22."""

from __future__ import annotations

import pytest

from tests.raft.values import GROUP, incarnation, membership
from tinymq.base.errors import CorruptData
from tinymq.format.entry import Kind
from tinymq.raft.rules.membership import (
    Membership,
    Replica,
    has_quorum,
    make_first_entry,
    pack_membership,
    parse_membership,
    quorum_index,
)


@pytest.mark.parametrize(
    ("members", "match", "expected"),
    [
        (1, {1: 5}, 5),
        (2, {1: 5, 2: 3}, 3),
        (3, {1: 5, 2: 3, 3: 1}, 3),
        (3, {1: 5, 2: 3}, 3),
        (3, {1: 5}, 0),
        (3, {}, 0),
        (4, {1: 9, 2: 8, 3: 2, 4: 1}, 2),
        (5, {1: 9, 2: 8, 3: 7, 4: 1, 5: 1}, 7),
        (5, {1: 9, 2: 8}, 0),
        (3, {1: 5, 7: 9, 8: 9}, 0),  # strangers count for nothing
    ],
)
def test_quorum_index(members: int, match: dict[int, int], expected: int) -> None:
    assert quorum_index(membership(members), match) == expected


@pytest.mark.parametrize(
    ("members", "brokers", "expected"),
    [
        (1, {1}, True),
        (3, {1}, False),
        (3, {1, 3}, True),
        (4, {1, 2}, False),
        (5, {1, 2, 9}, False),
        (3, {1, 8, 9}, False),
    ],
)
def test_has_quorum(members: int, brokers: set[int], expected: bool) -> None:
    assert has_quorum(membership(members), brokers) is expected


def test_a_member_is_a_broker_and_its_incarnation() -> None:
    members = membership()
    assert members.lists(2, incarnation(2), 0)
    assert not members.lists(2, incarnation(3), 0)  # another data directory
    assert not members.lists(2, incarnation(2), 1)  # it lost something since
    assert not members.lists(2, None, 0)  # never seen
    assert not members.lists(4, incarnation(4), 0)
    assert [members.rank(b) for b in (1, 3, 4)] == [0, 2, 3]


def test_the_first_entry_is_the_same_wherever_it_is_made() -> None:
    replicas = membership().replicas
    one, other = make_first_entry(GROUP, replicas, 5), make_first_entry(GROUP, list(replicas), 5)
    assert one == other
    assert (one.index, one.term, one.header.kind, one.header.record_count) == (1, 0, Kind.CONFIG, 0)
    assert parse_membership(one.payload) == Membership(GROUP, 1, replicas)


def test_invalid_bytes_raise_corrupt_data() -> None:
    twice = Membership(GROUP, 1, (Replica(1, incarnation(1)), Replica(1, incarnation(2))))
    for payload in (b"\xff\xff", b"", pack_membership(twice), pack_membership(Membership(GROUP, 1, ()))):
        with pytest.raises(CorruptData):
            parse_membership(payload)
