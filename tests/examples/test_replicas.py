"""When replicas count as equal."""

from __future__ import annotations

from dataclasses import replace

from examples.flights.replicas import Replica, differences

ONE = Replica(1, 0, "leader", commit_index=9, high_watermark=100, chain_crc=7)
EQUAL = [ONE, replace(ONE, broker=2, role="follower"), replace(ONE, broker=3, role="follower")]


def test_equal_and_whole() -> None:
    assert differences({0: EQUAL}, {0: 100}, 3) == []


def test_one_is_missing() -> None:
    assert differences({0: EQUAL[:2]}, {0: 100}, 3) == ["partition 0: 2 of 3 replicas answer"]
    assert len(differences({}, {0: 100, 1: 5}, 3)) == 2


def test_one_is_behind() -> None:
    behind = [*EQUAL[:2], replace(EQUAL[2], commit_index=8, high_watermark=90, chain_crc=6)]
    assert len(differences({0: behind}, {0: 100}, 3)) == 2


def test_one_has_other_bytes() -> None:
    (wrong,) = differences({0: [*EQUAL[:2], replace(EQUAL[2], chain_crc=8)]}, {0: 100}, 3)
    assert "crc 00000008" in wrong
