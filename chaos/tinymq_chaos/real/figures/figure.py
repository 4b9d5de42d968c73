"""A figure: measured numbers and their bounds. Values and their table; nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least `share` of them do not exceed. There are few, and all are kept."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


@dataclass(frozen=True, slots=True)
class FigurePart:
    """One number of a figure, and its bound."""

    name: str
    value: float
    wanted: float
    unit: str = "s"
    least: bool = False  # `wanted` is a lower bound; otherwise an upper bound

    @property
    def reached(self) -> bool:
        return self.value >= self.wanted if self.least else self.value <= self.wanted

    def __str__(self) -> str:
        return f"{self.name} {_number(self.value)}{self.unit and f' {self.unit}'}".strip()

    @property
    def bound(self) -> str:
        sign = "≥" if self.least else "≤"
        wanted = "0" if not self.wanted and not self.least else f"{sign} {_number(self.wanted)}"
        return f"{self.name} {wanted}{self.unit and f' {self.unit}'}".strip()


@dataclass(frozen=True, slots=True)
class Figure:
    """The measurements of one kind of failure."""

    name: str
    what: str
    parts: tuple[FigurePart, ...]
    basis: str  # the number of failures, records or seconds
    samples: dict[str, list[float]] = field(default_factory=dict)  # by part, in the order of the measurements

    @property
    def reached(self) -> bool:
        return all(part.reached for part in self.parts)

    def values(self) -> dict[str, Any]:
        """Return the values for JSON."""
        parts = [
            {"name": p.name, "value": p.value, "wanted": p.wanted, "unit": p.unit, "reached": p.reached}
            for p in self.parts
        ]
        return {
            "name": self.name, "what": self.what, "parts": parts, "basis": self.basis, "samples": self.samples,
            "reached": self.reached,
        }  # fmt: skip


def distribution(
    name: str, unit: str, samples: Sequence[float], bounds: Iterable[tuple[float, float]]
) -> tuple[FigurePart, ...]:
    """Return a part for each (share, bound), and then the greatest value, without a bound."""
    at: Callable[[float], str] = lambda share: f"{name} p{share * 100:g}".strip()  # noqa: E731
    parts = [FigurePart(at(share), quantile(samples, share), most, unit) for share, most in bounds]
    return (*parts, FigurePart(f"{name} max".strip(), max(samples), math.inf, unit))


def table(figures: Iterable[Figure]) -> str:
    """Return the table in Markdown."""
    rows = ["| what | wanted | measured | over |", "|---|---|---|---|"]
    for figure in figures:
        bounded = [part for part in figure.parts if math.isfinite(part.wanted)]
        missed = "" if figure.reached else " **missed**"
        measured = ", ".join(map(str, figure.parts))
        rows.append(
            f"| {figure.what} | {', '.join(part.bound for part in bounded)} | {measured}{missed} | {figure.basis} |"
        )
    return "\n".join(rows)


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
