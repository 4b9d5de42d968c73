"""The order in which a task asks replicas."""

from __future__ import annotations

import pytest

from pyspark_tinymq.session.replicas import Replica, Tiers, tiers

NEAR, RACK, FAR = Replica(1, "node-a", "r1"), Replica(2, "node-b", "r1"), Replica(3, "node-c", "r2")
ALL = (FAR, RACK, NEAR)

ORDERS = [  # (replica=, leader, attempt, tiers)
    ("leader", 1, 0, None),
    ("leader", 0, 2, None),
    ("follower", 3, 0, ((1,), (2,), (3,))),
    ("follower", 1, 0, ((2,), (3,), (1,))),  # the leader is last, although it is near
    ("follower", 2, 0, ((1,), (3,), (2,))),
    ("follower", 0, 0, ((1,), (2,), (3,))),  # no leader is known
    ("follower", 3, 1, ((2,), (1,), (3,))),
    ("follower", 3, 2, ((1,), (2,), (3,))),
    ("follower", 1, 3, ((3,), (2,), (1,))),
    ("nearest", 1, 0, ((1,), (2,), (3,))),
    ("nearest", 1, 1, ((2,), (3,), (1,))),
    ("any", 1, 0, ((3, 2, 1),)),
    ("any", 1, 1, ((2,), (1,), (3,))),
]  # fmt: skip


@pytest.mark.parametrize(("replica", "leader", "attempt", "order"), ORDERS)
def test_orders(replica: str, leader: int, attempt: int, order: Tiers | None) -> None:
    assert tiers(replica, leader, ALL, hosts={"node-a"}, rack="r1", attempt=attempt) == order


def test_without_a_rack_all_others_are_alike() -> None:
    assert tiers("follower", 9, ALL, hosts={"elsewhere"}, rack="") == ((3, 2, 1),)
    assert tiers("nearest", 1, ALL, hosts={"node-a"}, rack="") == ((1,), (3, 2))


def test_a_leader_that_is_the_only_replica_is_asked() -> None:
    assert tiers("follower", 1, (NEAR,), hosts=(), rack="") == ((1,),)
    assert tiers("follower", 1, (), hosts=(), rack="") is None


def test_every_replica_is_asked_once() -> None:
    for replica in ("follower", "nearest", "any"):
        for attempt in range(7):
            order = tiers(replica, 2, ALL, hosts={"node-c"}, rack="r1", attempt=attempt)
            assert order is not None
            assert sorted(broker for tier in order for broker in tier) == [1, 2, 3]
