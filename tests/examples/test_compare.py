"""A table of every difference between the records read and sent."""

from __future__ import annotations

import pytest

from examples.flights.compare import Comparison
from examples.flights.source import Flight

T = 1_356_998_400_000_000
FLIGHTS = [Flight(b"A1", b"one", T), Flight(b"B2", b"two", T), Flight(b"A1", b"three", T), Flight(b"A1", b"four", T)]
PLACES = [(0, 0), (1, 0), (0, 1), (0, 2)]
Record = tuple[int, int, bytes | None, bytes | None, int]
GOOD: list[Record] = [(p, o, f.key, f.value, f.timestamp_us) for (p, o), f in zip(PLACES, FLIGHTS, strict=True)]


def _compare(records: list[Record], places: list[tuple[int, int] | None] | None = None) -> Comparison:
    comparison = Comparison(FLIGHTS, places or list(PLACES))
    for record in records:
        comparison.add(*record)
    return comparison


def test_all_there() -> None:
    verdict = _compare(GOOD).verdict()
    assert verdict.same
    assert (verdict.acknowledged, verdict.read, verdict.examples) == (4, 4, ())


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("lost", GOOD[:3]),
        ("twice", [*GOOD, (0, 3, b"A1", b"four", T)]),
        ("foreign", [*GOOD[:3], (0, 2, b"A1", b"f0ur", T)]),
        ("foreign", [*GOOD, (0, 3, None, b"x", T)]),
        ("retimed", [*GOOD[:3], (0, 2, b"A1", b"four", T + 1)]),
        ("disordered", [GOOD[0], GOOD[1], (0, 1, b"A1", b"four", T), (0, 2, b"A1", b"three", T)]),
        ("disordered", [*GOOD[:3], (1, 1, b"A1", b"four", T)]),
        ("misplaced", [*GOOD[:3], (1, 1, b"A1", b"four", T)]),
        ("gaps", [*GOOD[:3], (0, 3, b"A1", b"four", T)]),
    ],
)
def test_differences_are_named(kind: str, records: list[Record]) -> None:
    verdict = _compare(records).verdict()
    assert not verdict.same
    assert getattr(verdict, kind) == 1 or (kind == "disordered" and verdict.disordered >= 1)
    assert verdict.examples


def test_a_flight_that_was_not_acknowledged_is_not_lost_but_not_right_either() -> None:
    verdict = _compare(GOOD[:3], [*PLACES[:3], None]).verdict()
    assert verdict.lost == 0
    assert not verdict.same
