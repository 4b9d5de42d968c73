"""Compares two tables of delays. Pure: rows in, differences out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

EXAMPLES_MAX = 5  # of each kind; the counts are whole
KEY = ("hour", "airport")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The number of differences of each kind. `examples` describes the first few."""

    rows: int  # found
    expected: int
    missing: int
    foreign: int  # found, and not expected
    twice: int  # windows found more than once
    different: int  # windows whose figures are not the expected ones
    examples: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not (self.missing or self.foreign or self.twice or self.different)


def compare(actual: Iterable[Row], expected: Iterable[Row]) -> Verdict:
    """Compare: every window must occur exactly once, with exactly the expected figures."""
    expected_rows = {_key(row): dict(row) for row in expected}
    counts = dict.fromkeys(("foreign", "twice", "different"), 0)
    examples: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    rows = 0

    def note(kind: str, what: str) -> None:
        counts[kind] += 1
        if counts[kind] <= EXAMPLES_MAX:
            examples.append(f"{kind}: {what}")

    for row in actual:
        rows += 1
        key = _key(row)
        if key in seen:
            note("twice", f"{_named(key)}")
        elif key not in expected_rows:
            note("foreign", f"{_named(key)} is not expected")
        elif differs := [name for name, value in expected_rows[key].items() if row[name] != value]:
            figures = ", ".join(f"{name} {row[name]} instead of {expected_rows[key][name]}" for name in differs)
            note("different", f"{_named(key)}: {figures}")
        seen.add(key)
    missing = sorted(expected_rows.keys() - seen, key=_named)
    examples += [f"missing: {_named(key)}" for key in missing[:EXAMPLES_MAX]]
    return Verdict(rows, len(expected_rows), len(missing), **counts, examples=tuple(examples))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _named(key: tuple[Any, ...]) -> str:
    return f"{key[1]} at {key[0]:%Y-%m-%d %H:%M}"
