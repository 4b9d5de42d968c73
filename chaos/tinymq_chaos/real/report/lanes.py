"""The lanes of a time line: everything that is drawn over time, one below the other, on one scale.

Shapes are SVG that is stretched to its place, in seconds from left to right and 0 (below) to 100 (above); bars and
all texts are HTML, placed in seconds by the style sheet. So nothing is distorted at any width, and a script that
changes which seconds are shown has two numbers to change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from tinymq_chaos.real.report.elements import Child, element

Values = Sequence[float | None]

TICKS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 3600)
TICKS_MAX = 11


@dataclass(frozen=True, slots=True)
class Span:
    """A fault on the time line, in seconds of the run."""

    number: int
    kind: str
    title: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical scale of a lane."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def height(self, value: float) -> float:
        """Return the height of a value, 0 to 100."""
        if self.logarithmic:
            value, low, high = (math.log10(max(v, self.low)) for v in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return round(min(100.0, max(0.0, 100 * (value - low) / (high - low))), 2)


def linear(values: Iterable[float | None]) -> Scale:
    """Return a linear scale from 0 to a round number above all values."""
    top = max((value for value in values if value is not None), default=0.0)
    step = next_step(top / 4)
    high = step * max(1, math.ceil(top / step))
    ticks = [(step * i, number(step * i)) for i in range(round(high / step) + 1)]
    return Scale(0.0, high, ticks)


def decades(values_ms: Iterable[float | None]) -> Scale:
    """Return a logarithmic scale between the powers of ten around all values."""
    known = [value for value in values_ms if value is not None and value > 0] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    high = max(high, low + 1)
    ticks = [(10.0**power, seconds(10.0**power / 1000)) for power in range(low, high + 1)]
    return Scale(10.0**low, 10.0**high, ticks, logarithmic=True)


def next_step(least: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, ... that is not below `least`."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * 0.999999)


def number(value: float) -> str:
    """Format a number for people: 0.05, 12.3, 1,234."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """Format a duration with a suitable unit."""
    if value <= 0:
        return "0"
    return f"{number(value * 1000)} ms" if value < 0.9995 else f"{number(value)} s"


def line(values: Values, width_s: float, scale: Scale, style: str) -> Element:
    """Draw steps: each value over its whole piece, with a gap where the value is None."""
    path = []
    drawing = False
    for i, value in enumerate(values):
        if value is not None:
            path.append(f"{'L' if drawing else 'M'}{i * width_s:g} {100 - scale.height(value):g}H{(i + 1) * width_s:g}")
        drawing = value is not None
    return element("path", {"class": f"line {style}", "d": "".join(path)})


def area(values: Sequence[float], width_s: float, scale: Scale, style: str, base: Sequence[float] = ()) -> Element:
    """Draw steps filled down to 0, or to `base`, except where a value is 0."""
    path = []
    for i, value in enumerate(values):
        if value:
            low = base[i] if base else 0.0
            top, foot = 100 - scale.height(low + value), 100 - scale.height(low)
            path.append(f"M{i * width_s:g} {foot:g}V{top:g}H{(i + 1) * width_s:g}V{foot:g}Z")
    return element("path", {"class": f"area {style}", "d": "".join(path)})


def shades(spans: Iterable[Span]) -> list[Element]:
    """Draw the times of faults as shades. A fault without duration is a line."""
    return [
        element("path", {"class": "shade", "d": f"M{s.began_s:.3f} 0H{s.ended_s:.3f}V100H{s.began_s:.3f}Z"})
        for s in spans
    ]  # fmt: skip


def plot(lasted_s: float, scale: Scale, shapes: Iterable[Element], height_px: int, flipped: bool = False) -> Element:
    """Draw shapes over a grid. If `flipped`, the scale begins at the top."""
    view = {"class": "shapes", "viewBox": f"0 0 {lasted_s:g} 100", "preserveAspectRatio": "none", "aria-hidden": "true"}
    grid = []
    for value, label in scale.ticks:
        at = scale.height(value) if flipped else 100 - scale.height(value)
        edge = " top" if at < 5 else " foot" if at > 95 else ""
        grid.append(element("i", {"class": f"grid{edge}", "style": f"top:{at:g}%"}, element("span", {}, label)))
    drawing = element("svg", view, *shapes)
    if flipped:
        drawing.set("class", "shapes flipped")
    return element("div", {"class": "plot", "style": f"height:{height_px}px"}, *grid, drawing)


def lane(title: Child, body: Sequence[Element], legend: Sequence[tuple[str, str]] = (), style: str = "") -> Element:
    """Draw a lane under its title. `legend`: (class of a shape, its meaning)."""
    keys = [element("span", {"class": f"key {shape}"}, element("i"), label) for shape, label in legend]
    head = element("div", {"class": "head"}, element("h3", {}, title), element("p", {"class": "keys"}, *keys))
    return element("div", {"class": f"lane {style}".strip()}, head, element("div", {"class": "body"}, *body))


def bar(began_s: float, ended_s: float, style: str, title: str, short: str = "", more: str = "") -> Element:
    """Draw a bar with the text `short`, then `more`, as far as there is room."""
    place = f"--a:{began_s:.3f};--b:{max(began_s, ended_s):.3f}"
    texts = [element("b", {}, short) if short else None, element("span", {}, more) if more else None]
    return element("span", {"class": f"bar {style}", "style": place, "title": title}, *texts)


def fault_rows(spans: Sequence[Span], rows_max: int = 12) -> list[Element]:
    """Draw the faults in rows, each in the first row with room for it."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: s.began_s):
        free = next((row for row in rows if row[-1].ended_s <= span.began_s), None)
        if free is None and len(rows) < rows_max:
            rows.append([span])
        elif free is not None:
            free.append(span)
        else:
            rows[-1].append(span)
    return [element("div", {"class": "plot row"}, *(_fault(span) for span in row)) for row in rows]


def _fault(span: Span) -> Element:
    return bar(span.began_s, span.ended_s, "fault", span.title, str(span.number), span.kind)


def axis(lasted_s: float) -> Element:
    """Draw the axis: seconds from the beginning of the run."""
    step = next((step for step in TICKS_S if lasted_s / step < TICKS_MAX), TICKS_S[-1])
    ticks = [
        element("span", {"class": "tick", "style": f"--a:{step * i:g}"}, element("b", {}, f"{number(step * i)} s"))
        for i in range(int(lasted_s / step) + 1)
    ]
    return lane("", [element("div", {"class": "plot axis"}, *ticks)], style="scale")
