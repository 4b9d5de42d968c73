"""A key goes to the same partition as with the default partitioner of librdkafka."""

from __future__ import annotations

import random

import pytest

from tinymq.client.produce.partitioner import RoundRobin, keyed, pick_sticky

# CRC-32 of the keys, as in librdkafka's own test of its `consistent` partitioners (0048-partitioner.c), and the
# check value of the algorithm.
GOLDEN = {
    b"23456": 0xB1B451D7,
    b"this is another string with more length to it perhaps": 0xB0150DF7,
    b"hejsan": 0xD077037E,
    b"123456789": 0xCBF43926,
}


@pytest.mark.parametrize("key", GOLDEN)
@pytest.mark.parametrize("partitions", [1, 6, 7, 17, 1000])
def test_keyed_is_crc32(key: bytes, partitions: int) -> None:
    assert keyed(key, partitions) == GOLDEN[key] % partitions


def test_round_robin_takes_turns() -> None:
    choose = RoundRobin()
    assert [choose(b"same", 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_sticky_moves_on() -> None:
    rng = random.Random(1)
    at = 0
    for _ in range(50):
        last, at = at, pick_sticky(at, range(4), rng)
        assert at != last
    assert pick_sticky(2, [2], rng) == 2
