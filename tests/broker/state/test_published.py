"""Which entries the log keeps for published batches: never too few, not many more, and few numbers for that."""

from __future__ import annotations

import math
import random

import pytest

from tinymq.base.errors import CorruptData
from tinymq.broker.state.transactional.published import PARTS, PublishedEntries


@pytest.mark.parametrize("seed", range(6))
def test_entries_stay_while_their_records_may_be_read(seed: int) -> None:
    """Against a list of all PUBLISH entries."""
    rng, real = random.Random(seed), PublishedEntries()
    model: list[tuple[int, int]] = []  # (lowest index, offset after the records)
    index = end = start = 0
    far = rng.choice([1, 10, 1000])
    for _ in range(3000):
        index += rng.randrange(1, 1 + far)
        if rng.random() < 0.8:
            index += 1
            end += rng.randrange(1, 20)
            lowest = max(1, index - rng.choice([1, 2, 5, far, 3 * far]))
            real.publish(lowest, index, end)
            model.append((lowest, end))
        elif rng.random() < 0.3:
            start = rng.randrange(start, end + 1)
            real.start_at(start)
            model = [part for part in model if part[1] > start]
        if rng.random() < 0.02:
            real = PublishedEntries.load(real.dump(), index, start, end)
        needed = min((lowest for lowest, _ in model), default=None)
        if needed is None:
            assert real.lowest_index is None
            continue
        kept = real.lowest_index
        assert kept is not None
        assert needed - kept <= index // PARTS
        assert kept <= needed
    assert len(real) <= PARTS * (1 + math.log(1 + index / PARTS))


def test_a_steady_stream_takes_few_parts_and_lets_old_segments_go() -> None:
    """100,000 PUBLISH entries, of which the newest 20,000 are kept."""
    real, most = PublishedEntries(), 0
    for number in range(100_000):
        real.publish(2 * number + 1, 2 * number + 2, 10 * (number + 1))
        start = 10 * (number + 1 - 20_000)
        real.start_at(start)
        most = max(most, len(real))
        if start > 0:
            assert real.lowest_index is not None
            assert 0 <= 2 * (number - 20_000) + 3 - real.lowest_index <= 2 * 20_000 / PARTS + 2
    assert most < 6 * PARTS


def test_a_part_that_begins_later_and_ends_earlier_keeps_nothing() -> None:
    real = PublishedEntries()
    real.publish(1000, 2000, 10)
    real.publish(5, 2001, 20)
    assert (len(real), real.lowest_index) == (1, 5)
    real.start_at(19)
    assert real.lowest_index == 5
    real.start_at(20)
    assert real.lowest_index is None


GOLDEN = "01000000000000000500000000000000e8030000000000000900000000000000"


def test_parts_have_these_bytes() -> None:
    real = PublishedEntries()
    real.publish(1, 2, 5)
    real.publish(1000, 1001, 9)
    assert real.dump().hex() == GOLDEN
    assert PublishedEntries.load(bytes.fromhex(GOLDEN), 1001, 4, 9).dump().hex() == GOLDEN


@pytest.mark.parametrize(
    ("data", "bounds"),
    [
        (GOLDEN[:-2], (1001, 4, 9)),
        (GOLDEN, (1000, 4, 9)),  # a PUBLISH entry comes behind what it names
        (GOLDEN, (1001, 5, 9)),  # below the log start
        (GOLDEN, (1001, 4, 8)),  # behind the end
        (GOLDEN[32:] + GOLDEN[:32], (1001, 4, 9)),
        (GOLDEN[:32] * 2, (1001, 4, 9)),
        ("00" * 8 + GOLDEN[16:], (1001, 4, 9)),
    ],
)
def test_what_cannot_be_written_is_not_read(data: str, bounds: tuple[int, int, int]) -> None:
    with pytest.raises(CorruptData):
        PublishedEntries.load(bytes.fromhex(data), *bounds)
