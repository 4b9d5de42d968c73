"""comparison.html: two runs beside each other, the figures as a table and both curves in one plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from tinymq_chaos.history import Outcome
from tinymq_chaos.real.report import lanes, over_time
from tinymq_chaos.real.report.effects import leader_changes
from tinymq_chaos.real.report.elements import Child, data, element, name
from tinymq_chaos.real.report.figures import Findings, calls_by_outcome, throughput
from tinymq_chaos.real.report.lanes import Values, number
from tinymq_chaos.real.report.page import headline, page, run_section, title
from tinymq_chaos.real.report.quantiles import Quantiles
from tinymq_chaos.real.report.tables import table
from tinymq_chaos.real.report.timeline import Timeline, timeline, width_of

NOTABLE = 1.1  # a ratio further from 1 counts as better or worse


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of both runs. None: a run has none."""

    figure: str
    before: float | None
    after: float | None
    unit: str = ""
    good: int = 0  # 1: more is better; -1: less is

    @property
    def ratio(self) -> float | None:
        """Return the ratio of after to before."""
        return None if self.before is None or self.after is None or self.before == 0 else self.after / self.before

    @property
    def judged(self) -> str:
        """Return "better", "worse", or "" if it is neither or not known."""
        if not self.good or self.before is None or self.after is None or self.before == self.after:
            return ""
        ratio = self.ratio
        if ratio is not None and 1 / NOTABLE <= ratio <= NOTABLE:
            return ""
        return "better" if (self.after > self.before) == (self.good > 0) else "worse"


def rows(before: Findings, after: Findings) -> list[ComparedFigure]:
    """Return the figures of both runs.

    Runs of another length or load stay as they are: the table shows how they differ.
    """

    def row(figure: str, of: Callable[[Findings], float | None], unit: str = "", good: int = 0) -> ComparedFigure:
        return ComparedFigure(figure, of(before), of(after), unit, good)

    def quantiles(kind: str, of: Callable[[Findings], Quantiles | None]) -> list[ComparedFigure]:
        return [
            row(f"{kind}, p50", lambda findings: q.p50_ms if (q := of(findings)) else None, " ms", -1),
            row(f"{kind}, p99", lambda findings: q.p99_ms if (q := of(findings)) else None, " ms", -1),
            row(f"{kind}, p99.9", lambda findings: q.p999_ms if (q := of(findings)) else None, " ms", -1),
            row(f"{kind}, longest", lambda findings: q.max_ms if (q := of(findings)) else None, " ms", -1),
        ]

    def longest(findings: Findings) -> float | None:
        silence = findings.longest_silence
        return None if silence is None else silence.ended_s - silence.began_s

    return [
        row("Records lost", lambda f: f.lost, good=-1),
        row("Anomalies", lambda f: len(f.run.anomalies), good=-1),
        row("Run lasted", lambda f: f.lasted_s, " s"),
        row("Faults", lambda f: len(f.run.history.faults)),
        row("Records acknowledged", lambda f: f.records),
        row("Records acknowledged per second", throughput, good=1),
        *quantiles("Sends", lambda f: f.send_quantiles),
        *quantiles("Polls with records", lambda f: f.poll_quantiles),
        row("Longest silence", longest, " s", -1),
        row("New leaders", lambda f: len(leader_changes(f.run.history))),
        *(_outcomes(row, outcome) for outcome in Outcome),
        *_faults(before, after),
    ]


def _outcomes(row: Callable[..., ComparedFigure], outcome: Outcome) -> ComparedFigure:
    words = {Outcome.OK: "ended ok", Outcome.PENDING: "without an answer"}
    word = words.get(outcome, str(outcome))

    def count(findings: Findings) -> float:
        return sum(ended[outcome] for ended in calls_by_outcome(findings.run.history.calls).values())

    return row(f"Calls {word}", count, good=-1 if outcome is Outcome.PENDING else 0)


def _faults(before: Findings, after: Findings) -> list[ComparedFigure]:
    """Return the worst effect of each fault that both runs had."""
    worst = [_worst(before), _worst(after)]
    kinds = [kind for kind in worst[0] if kind in worst[1]]
    return [ComparedFigure(f"Longest silence with {kind}", worst[0][kind], worst[1][kind], " s", -1) for kind in kinds]


def _worst(findings: Findings) -> dict[str, float]:
    found: dict[str, float] = {}
    for effect in findings.effects:
        kind = effect.fault.kind
        found[kind] = max(found.get(kind, 0.0), effect.worst_while_s, effect.worst_after_s)
    return found


def comparison(before: Findings, after: Findings) -> str:
    """Return the complete page."""
    found = rows(before, after)
    counts = Counter(row.judged for row in found)
    sentence = f"{counts['worse']} figures are worse and {counts['better']} better, by more than a tenth."
    words = [headline(each).word.lower() for each in (before, after)]
    style = "bad" if headline(after).style == "bad" else "good" if headline(after).style == "good" else "unsure"
    head = element(
        "header", {"class": style},
        element("p", {"class": "over"}, "Two chaos runs compared"),
        element("h1", {}, f"Before: {words[0]}. After: {words[1]}."),
        element("p", {"class": "verdict"}, sentence),
        element("p", {}, "Before: ", name(before.run.name), f" ({title(before)}). After: ", name(after.run.name),
                f" ({title(after)})."),
    )  # fmt: skip
    parts = [
        head,
        _table(found),
        _curves(before, after),
        *(_run(w, f) for w, f in (("Before", before), ("After", after))),
    ]
    return page(f"Chaos runs compared: {before.run.name}, {after.run.name}", parts)


def _table(found: Sequence[ComparedFigure]) -> Element:
    cells = [[row.figure, _value(row.before, row.unit), _value(row.after, row.unit), *_judged(row)] for row in found]
    head = ("Figure", "Before", "After", "Ratio", "")
    return element(
        "section", {"id": "figures"}, element("h2", {}, "Figures"),
        table("Both runs; ratio: after to before", head, cells, (1, 2, 3)),
    )  # fmt: skip


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return (f"{value:,}" if isinstance(value, int) else number(value)) + unit


def _judged(row: ComparedFigure) -> tuple[Child, Child]:
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    return ratio, element("span", {"class": row.judged}, row.judged) if row.judged else ""


def _curves(before: Findings, after: Findings) -> Element:
    width_s = max(width_of(before), width_of(after))
    lines = (timeline(before, width_s), timeline(after, width_s))
    lasted_s = max(line.lasted_s for line in lines)
    parts = [
        _pair("Records acknowledged per second", lines, [line.acknowledged for line in lines], lasted_s, False),
        _pair("Latency of sends, p99", lines, [line.p99_ms for line in lines], lasted_s, True),
        lanes.axis(lasted_s),
    ]
    return element(
        "section", {"id": "time", "aria-labelledby": "time-title"},
        element("h2", {"id": "time-title"}, "Over time, both from their beginnings"),
        over_time.controls(),
        over_time.frame(parts, lasted_s),
        data("values", _values(lines)),
    )  # fmt: skip


def _pair(what: str, lines: Sequence[Timeline], values: Sequence[Values], lasted_s: float, decades: bool) -> Element:
    both = [value for each in values for value in each]
    scale = lanes.decades(both) if decades else lanes.linear(both)
    shapes = [
        lanes.line(each, line.width_s, scale, style)
        for each, line, style in zip(values, lines, ("before", "after"), strict=True)
    ]
    plot = lanes.plot(lasted_s, scale, shapes, 180)
    return lanes.lane(what, [plot], [("before", "before"), ("after", "after")])


def _values(lines: Sequence[Timeline]) -> dict[str, object]:
    """Return the values that the page's script reads; the pieces are equally wide."""
    series: list[dict[str, object]] = []
    for word, line in zip(("before", "after"), lines, strict=True):
        over = [None] * (max(each.pieces for each in lines) - line.pieces)  # the other run is still running
        series += [
            {"says": f"{word}: {{}} records/s", "values": [*line.acknowledged, *over]},
            {"says": "p99 {} ms", "values": [*line.p99_ms, *over]},
        ]
    return {"width": lines[0].width_s, "series": series, "faults": [], "leaders": []}


def _run(word: str, findings: Findings) -> Element:
    section = run_section(findings)
    section.set("id", f"run-{word.lower()}")
    section[0].text = word
    return section
