"""The section that shows a run over time: faults, throughput, latency, outcomes, leaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

from tinymq_chaos.checkers.common.anomaly import log_name
from tinymq_chaos.history import LeaderSpan, Log
from tinymq_chaos.real.report import lanes
from tinymq_chaos.real.report.effects import Silence, leaders_by_log
from tinymq_chaos.real.report.elements import data, element, name
from tinymq_chaos.real.report.figures import Findings
from tinymq_chaos.real.report.lanes import Span
from tinymq_chaos.real.report.timeline import Timeline, timeline

SILENT_S = 0.1  # shorter silences are not drawn
PARTITIONS_SHOWN = 12  # the other partitions are folded
PARTITIONS_MAX = 120
BARS_MAX = 400  # of one partition
COLOURS = 7  # of brokers; an eighth broker has the first colour


def section(findings: Findings) -> Element:
    line, spans = timeline(findings), fault_spans(findings)
    parts = [
        faults_lane(spans),
        throughput_lane(line, spans),
        latency_lane(line, spans),
        *_outcome_lanes(line, spans),
        lanes.axis(line.lasted_s),
        *_leader_lanes(findings, line),
    ]
    return element(
        "section",
        {"id": "time", "aria-labelledby": "time-title"},
        element("h2", {"id": "time-title"}, "Over time"),
        controls(),
        frame(parts, line.lasted_s),
        data("values", _values(line, spans, findings)),
    )


def frame(parts: Sequence[Element], lasted_s: float) -> Element:
    """Put lanes on one scale of seconds, which the page's script can change."""
    attributes = {
        "class": "lanes", "tabindex": 0, "role": "group", "data-lasted": f"{lasted_s:g}",
        "style": f"--from:0;--span:{max(lasted_s, 0.001):g}",
        "aria-label": "Time line: arrow keys move the cursor, plus and minus zoom, Escape shows the whole run",
        "aria-describedby": "values-shown",
    }  # fmt: skip
    return element("div", attributes, *parts, element("div", {"class": "cursor", "aria-hidden": "true"}))


def controls() -> Element:
    """Return the controls, which stay hidden unless the page's script runs."""
    return element(
        "div",
        {"class": "controls", "hidden": True},
        element("output", {"id": "values-shown", "aria-live": "polite"}, "Point at a moment to read its values."),
        element(
            "span",
            {"class": "buttons"},
            element("button", {"type": "button", "data-zoom": "in", "aria-label": "zoom in"}, "+"),
            element("button", {"type": "button", "data-zoom": "out", "aria-label": "zoom out"}, "−"),
            element("button", {"type": "button", "data-zoom": "all"}, "whole run"),
        ),
        element("small", {}, "Drag across a lane to zoom. Keys: ← → cursor, + − zoom, Esc whole run."),
    )


def fault_spans(findings: Findings) -> list[Span]:
    spans = []
    for number, fault in enumerate(findings.run.history.faults, 1):
        began_s = findings.since(fault.began_s)
        ended_s = findings.lasted_s if fault.ended_s is None else findings.since(fault.ended_s)
        title = f"{number} {fault.kind}: {fault.what} ({began_s:.2f} s to {ended_s:.2f} s)"
        spans.append(Span(number, fault.kind, title, began_s, ended_s))
    return spans


def faults_lane(spans: Sequence[Span]) -> Element:
    if not spans:
        return lanes.lane("Faults", [element("p", {"class": "empty"}, "None were done.")])
    return lanes.lane("Faults", lanes.fault_rows(spans), style="faults")


def throughput_lane(line: Timeline, spans: Sequence[Span]) -> Element:
    scale = lanes.linear(line.acknowledged)
    shapes = [*lanes.shades(spans), lanes.area(line.acknowledged, line.width_s, scale, "records")]
    body = [lanes.plot(line.lasted_s, scale, shapes, 130)]
    return lanes.lane("Records acknowledged per second", body, [("records", "records/s"), *_shaded(spans)])


def latency_lane(line: Timeline, spans: Sequence[Span]) -> Element:
    scale = lanes.decades([*line.p50_ms, *line.p99_ms])
    shapes = [
        *lanes.shades(spans),
        lanes.line(line.p99_ms, line.width_s, scale, "p99"),
        lanes.line(line.p50_ms, line.width_s, scale, "p50"),
    ]
    body = [lanes.plot(line.lasted_s, scale, shapes, 130)]
    return lanes.lane("Latency of sends, by when they began", body, [("p50", "p50"), ("p99", "p99"), *_shaded(spans)])


def _outcome_lanes(line: Timeline, spans: Sequence[Span]) -> list[Element]:
    """Return the lanes of ok calls and of others, each with its own scale, because the others are few."""
    ok = [count / line.width_s for count in line.ok]
    bad = [[count / line.width_s for count in each] for each in (line.failed, line.unknown, line.pending)]
    scale = lanes.linear(ok)
    well = lanes.plot(line.lasted_s, scale, [*lanes.shades(spans), lanes.area(ok, line.width_s, scale, "ok")], 70)
    below = [0.0] * line.pieces
    scale = lanes.linear([sum(each) for each in zip(*bad, strict=True)])
    shapes = lanes.shades(spans)
    for values, style in zip(bad, ("failed", "unknown", "pending"), strict=True):
        shapes.append(lanes.area(values, line.width_s, scale, style, below))
        below = [low + value for low, value in zip(below, values, strict=True)]
    ill = lanes.plot(line.lasted_s, scale, shapes, 70)
    legend = [("failed", "failed: not done"), ("unknown", "unknown: perhaps done"), ("pending", "no answer")]
    return [
        lanes.lane("Calls per second that ended ok", [well], [("ok", "ok")]),
        lanes.lane("Calls per second that did not", [ill], legend),
    ]


def _shaded(spans: Sequence[Span]) -> list[tuple[str, str]]:
    return [("shade", "a fault")] if spans else []


def _leader_lanes(findings: Findings, line: Timeline) -> list[Element]:
    """Return a row for each partition, the partitions with most leaders first."""
    led = leaders_by_log(findings.run.history)
    brokers = sorted({each.broker for leaders in led.values() for each in leaders})
    if not led:
        return [lanes.lane("Leaders", [element("p", {"class": "empty"}, "None were seen.")])]
    logs = sorted(led, key=lambda log: (log[0] != "", -len(led[log]), log))
    rows = [_leader_row(findings, log, led[log], brokers) for log in logs[:PARTITIONS_MAX]]
    legend = [(colour(brokers, broker), f"broker {broker}") for broker in brokers]
    legend += [("nobody", "nobody"), ("silent", f"writes waited for {SILENT_S:g} s or longer")]
    found = [lanes.lane("Leaders by partition", [], legend, "leaders"), *rows[:PARTITIONS_SHOWN]]
    if len(rows) > PARTITIONS_SHOWN:
        more = f"{len(rows) - PARTITIONS_SHOWN} more partitions"
        if len(logs) > PARTITIONS_MAX:
            more += f" (and {len(logs) - PARTITIONS_MAX} that are not shown)"
        found.append(element("details", {"class": "more"}, element("summary", {}, more), *rows[PARTITIONS_SHOWN:]))
    return [*found, lanes.axis(line.lasted_s)]


def colour(brokers: Sequence[int], broker: int) -> str:
    return f"broker-{brokers.index(broker) % COLOURS + 1}"


def _leader_row(findings: Findings, log: Log, leaders: Sequence[LeaderSpan], brokers: Sequence[int]) -> Element:
    bars = []
    for led, (began_s, ended_s) in zip(leaders[:BARS_MAX], _reigns(leaders, findings.end_s), strict=False):
        began_s, ended_s = findings.since(began_s), findings.since(ended_s)
        title = f"broker {led.broker} led in term {led.term}, {began_s:.2f} s to {ended_s:.2f} s"
        bars.append(lanes.bar(began_s, ended_s, colour(brokers, led.broker), title, str(led.broker)))
    silent = [_silent(findings, silence) for silence in _long(findings.silences.get(log, ()))]
    row = element("div", {"class": "plot row"}, *bars)
    below = element("div", {"class": "plot thin"}, *silent)
    return lanes.lane(name(log_name(log), log_name(log)), [row, below], style="leader")


def _reigns(leaders: Sequence[LeaderSpan], end_s: float) -> list[tuple[float, float]]:
    """Return when each leader led: from its first time to its last, or to the first leader of a later term."""
    ends = [end_s if led.until_s is None else led.until_s for led in leaders]
    for i, (_, later) in enumerate(pairwise(leaders)):
        ends[i] = min(ends[i], later.at_s)
    return [(led.at_s, max(led.at_s, end)) for led, end in zip(leaders, ends, strict=True)]


def _long(silences: Iterable[Silence]) -> list[Silence]:
    found = sorted(silences, key=lambda silence: silence.began_s - silence.ended_s)[:BARS_MAX]
    return [silence for silence in found if silence.ended_s - silence.began_s >= SILENT_S]


def _silent(findings: Findings, silence: Silence) -> Element:
    began_s, ended_s = findings.since(silence.began_s), findings.since(silence.ended_s)
    title = f"from {began_s:.2f} s on, writes waited {lanes.seconds(ended_s - began_s)} without an acknowledgement"
    return lanes.bar(began_s, ended_s, "silent", title)


def _values(line: Timeline, spans: Sequence[Span], findings: Findings) -> dict[str, Any]:
    """Return the values that the page's script shows at the cursor."""
    return {
        "width": line.width_s,
        "series": [
            {"says": "{} records/s", "values": line.acknowledged},
            {"says": "p50 {} ms", "values": line.p50_ms},
            {"says": "p99 {} ms", "values": line.p99_ms},
            {"says": "calls: {} ok", "values": line.ok},
            {"says": "{} failed", "values": line.failed},
            {"says": "{} unknown", "values": line.unknown},
            {"says": "{} without an answer", "values": line.pending},
        ],
        "faults": [[f"{span.number} {span.kind}", round(span.began_s, 3), round(span.ended_s, 3)] for span in spans],
        "leaders": _led(findings),
    }


def _led(findings: Findings) -> list[list[Any]]:
    """Return [partition, [[broker, from, until], ...]] of the first rows."""
    led = leaders_by_log(findings.run.history)
    logs = sorted(led, key=lambda log: (log[0] != "", -len(led[log]), log))[:4]
    return [
        [
            log_name(log),
            [
                [leader.broker, round(findings.since(a), 3), round(findings.since(b), 3)]
                for leader, (a, b) in list(zip(led[log], _reigns(led[log], findings.end_s), strict=True))[:BARS_MAX]
            ],
        ]
        for log in logs
    ]
