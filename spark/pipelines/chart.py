"""Delays as a page: one HTML file that loads nothing. Pure: rows in, text out.

Means are taken over flights, not over windows: minutes and departures are added up first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

ZONE = ZoneInfo("America/New_York")  # the airports' zone: delays follow local hours
DEPARTURES_MIN = 30  # a mean over fewer says nothing, and is left out
COLOURS = ("#2f6fde", "#d9730d", "#0f8f6b", "#9b51e0", "#c0392b", "#687076")
HEAT = ((247, 244, 237), (250, 205, 130), (232, 113, 61), (160, 32, 48), (74, 9, 38))
HEAT_MIN = 40.0  # minutes of mean delay from which on a cell is darkest
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 350, 48, 40, 28
CELL_W, CELL_H = 26, 20

Row = Mapping[str, Any]


def means(rows: Iterable[Row], place: Callable[[str, datetime], tuple[Any, ...]]) -> dict[tuple[Any, ...], float]:
    """Mean delay in minutes for each place(airport, local hour) that enough flights left from."""
    minutes: dict[tuple[Any, ...], int] = defaultdict(int)
    departed: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        where = place(row["airport"], row["hour"].astimezone(ZONE))
        minutes[where] += row["delay_min"]
        departed[where] += row["departed"]
    return {where: minutes[where] / n for where, n in departed.items() if n >= DEPARTURES_MIN}


def page(rows: Sequence[Row], title: str, facts: Sequence[tuple[str, str]]) -> str:
    """The whole page: a line for each airport over the hours of the day, months by hours below, facts at the end."""
    airports = sorted({row["airport"] for row in rows})
    by_hour = means(rows, lambda airport, at: (airport, at.hour))
    by_month = means(rows, lambda airport, at: (airport, at.month, at.hour))
    rows_of_facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    heats = "".join(_heat(airport, by_month) for airport in airports)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style><main><h1>{escape(title)}</h1>"
        f"<p>Minutes by which flights left late, on the mean, by the local hour in which they were to leave. Early "
        f"departures count as negative; hours with fewer than {DEPARTURES_MIN} departures are left out.</p>"
        f"{_lines(airports, by_hour)}<h2>Month by hour</h2><div class='heats'>{heats}</div>{_scale()}"
        f"<dl>{rows_of_facts}</dl></main></html>\n"
    )


def _lines(airports: Sequence[str], by_hour: Mapping[tuple[Any, ...], float]) -> str:
    if not by_hour:
        return "<p><b>Too few departures for a mean.</b></p>"
    hours = sorted({hour for _, hour in by_hour})
    low, high = min(0.0, *by_hour.values()), max(5.0, *by_hour.values())
    step = 10 if high - low > 25 else 5
    ticks = range(int(low // step) * step, int(-(-high // step)) * step + 1, step)

    def x(hour: int) -> float:
        return float(LEFT + (hour - hours[0]) * (WIDTH - LEFT - 70) / max(1, hours[-1] - hours[0]))

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - ticks.start) * (HEIGHT - BOTTOM - TOP) / (ticks.stop - 1 - ticks.start)

    parts = [f"<line class='grid' x1='{LEFT}' x2='{WIDTH - 60}' y1='{y(t):.1f}' y2='{y(t):.1f}'/>" for t in ticks]
    parts += [f"<text x='{LEFT - 8}' y='{y(t) + 4:.1f}' text-anchor='end'>{t}</text>" for t in ticks]
    parts += [f"<text x='{x(h):.1f}' y='{HEIGHT - 18}' text-anchor='middle'>{h}</text>" for h in hours]
    parts.append(f"<text x='{LEFT}' y='{HEIGHT - 2}'>local hour</text><text x='4' y='{TOP - 14}'>minutes</text>")
    lines = {each: sorted((hour, v) for (airport, hour), v in by_hour.items() if airport == each) for each in airports}
    lines = {airport: points for airport, points in lines.items() if points}
    labels = _spread({airport: y(points[-1][1]) for airport, points in lines.items()})
    for i, (airport, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(hour):.1f},{y(value):.1f}" for hour, value in points)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        parts += [
            f"<circle cx='{x(hour):.1f}' cy='{y(value):.1f}' r='4' fill='{colour}'>"
            f"<title>{escape(airport)}, {hour}:00: {value:.1f} min</title></circle>"
            for hour, value in points
        ]
        at = f"x='{x(points[-1][0]) + 10:.1f}' y='{labels[airport] + 4:.1f}'"
        parts.append(f"<text class='name' {at} style='fill:{colour}'>{escape(airport)}</text>")
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='mean delay by hour'>{''.join(parts)}</svg>"


def _spread(heights: Mapping[str, float], apart: float = 16.0) -> dict[str, float]:
    """Heights of labels, moved down until none covers another."""
    placed: dict[str, float] = {}
    last = float("-inf")
    for name, height in sorted(heights.items(), key=lambda each: each[1]):
        last = placed[name] = max(height, last + apart)
    return placed


def _heat(airport: str, by_month: Mapping[tuple[Any, ...], float]) -> str:
    hours = sorted({hour for _, _, hour in by_month})
    if not hours:
        return ""
    left, top = 34, 22
    parts = [
        f"<text x='{left + i * CELL_W + CELL_W / 2}' y='{top + 12 * CELL_H + 15}' text-anchor='middle'>{hour}</text>"
        for i, hour in enumerate(hours)
    ]
    for month, name in enumerate(MONTHS, 1):
        down = top + (month - 1) * CELL_H
        parts.append(f"<text x='{left - 6}' y='{down + 14}' text-anchor='end'>{name}</text>")
        for i, hour in enumerate(hours):
            value = by_month.get((airport, month, hour))
            if value is not None:
                parts.append(
                    f"<rect x='{left + i * CELL_W}' y='{down}' width='{CELL_W - 1}' height='{CELL_H - 1}' "
                    f"fill='{heat(value)}'><title>{escape(airport)}, {name}, {hour}:00: {value:.1f} min</title></rect>"
                )
    size = f"0 0 {left + len(hours) * CELL_W} {top + 12 * CELL_H + 20}"
    parts.append(f"<text class='name' x='{left}' y='14'>{escape(airport)}</text>")
    return f"<svg viewBox='{size}' role='img' aria-label='{escape(airport)} by month and hour'>{''.join(parts)}</svg>"


def heat(minutes: float) -> str:
    """The colour of a mean delay: from pale (on time, or early) to dark (HEAT_MIN and more)."""
    at = min(max(minutes / HEAT_MIN, 0.0), 1.0) * (len(HEAT) - 1)
    low = min(int(at), len(HEAT) - 2)
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(HEAT[low], HEAT[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _scale() -> str:
    steps = 9
    boxes = "".join(f"<i style='background:{heat(HEAT_MIN * i / (steps - 1))}'></i>" for i in range(steps))
    return f"<p class='scale'>0 min or early {boxes} {HEAT_MIN:.0f} min and more</p>"


STYLE = """
:root{color-scheme:light dark;--ink:#1d2125;--paper:#fff;--line:#d8dce0;--soft:#5c6670}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--paper:#16191c;--line:#343a40;--soft:#9aa4ae}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:900px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:28px 0 8px}
p{color:var(--soft);margin:6px 0 16px}svg{display:block;width:100%;height:auto}svg text{font-size:12px;fill:var(--soft)}
svg text.name{font-weight:600;font-size:14px;fill:var(--ink)}.grid{stroke:var(--line)}
.heats{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:18px}
.scale i{display:inline-block;width:18px;height:12px;vertical-align:middle}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin-top:24px}dt{color:var(--soft)}dd{margin:0}
"""
