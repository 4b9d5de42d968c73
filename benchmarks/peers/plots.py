"""The plots of pages that benchmarks write: SVG, so that a change of a figure is a change of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

SIZE_INCHES = (8.0, 4.0)
BINS = 60


def bars(path: Path, title: str, series: Mapping[str, Sequence[float]]) -> None:
    """One bar per system: the median, with its spread as a line."""
    figure, axes = _axes(title)
    for place, (name, values) in enumerate(series.items()):
        median = sorted(values)[len(values) // 2]
        reach = [[median - min(values)], [max(values) - median]]
        axes.barh(place, median, xerr=reach, capsize=4, color="C0" if name.startswith("tinymq") else "C7")
    axes.set_yticks(range(len(series)), list(series))
    axes.invert_yaxis()
    _save(figure, path)


def lines(path: Path, title: str, across: str, up: str, series: Mapping[str, Mapping[float, float]]) -> None:
    """One line per system, both axes logarithmic."""
    figure, axes = _axes(title)
    for name, points in series.items():
        axes.plot(list(points), list(points.values()), marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend()
    _save(figure, path)


def histogram(path: Path, title: str, across: str, series: Mapping[str, Sequence[float]]) -> None:
    """One outline per system, over the range that 99 % of all values have."""
    figure, axes = _axes(title)
    ranked = sorted(value for values in series.values() for value in values)
    top = ranked[int(0.99 * (len(ranked) - 1))]
    for name, values in series.items():
        axes.hist(values, bins=BINS, range=(0, top), histtype="step", label=name)
    axes.set_xlabel(across)
    axes.legend()
    _save(figure, path)


def _axes(title: str) -> tuple[pyplot.Figure, pyplot.Axes]:
    figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
    axes.set_title(title)
    return figure, axes


def _save(figure: pyplot.Figure, path: Path) -> None:
    """Without a date and random names: the same figures make the same bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "tinymq"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
