"""report.html: the report of a run for people, as one file that loads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element

from tinymq_chaos.checkers.common.anomaly import log_name
from tinymq_chaos.real.report import over_time, tables
from tinymq_chaos.real.report.effects import leader_changes
from tinymq_chaos.real.report.elements import Child, document, element, name
from tinymq_chaos.real.report.figures import Findings, throughput
from tinymq_chaos.real.report.lanes import number, seconds

# The page may load and send nothing. Its own styles and its own script are in it.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def report(findings: Findings) -> str:
    """Return the whole page."""
    what = headline(findings)
    return page(
        f"{what.word}: {title(findings)}",
        [
            _header(findings),
            _tiles(findings),
            over_time.section(findings),
            tables.anomalies_section(findings),
            tables.faults_section(findings),
            tables.calls_section(findings),
            run_section(findings),
        ],
    )


def page(title: str, parts: Iterable[Element]) -> str:
    """Return a document with the styles and the script of reports."""
    head = element(
        "head", {},
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", {}, title),
        element("style", {}, asset("page.css")),
    )  # fmt: skip
    body = element("body", {}, element("main", {}, *parts), element("script", {}, asset("page.js")))
    return document(element("html", {"lang": "en"}, head, body))


def asset(file: str) -> str:
    return files(__package__).joinpath(file).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Headline:
    word: str
    sentence: str
    style: str  # good, bad, unsure


def headline(findings: Findings) -> Headline:
    """Return the verdict of the run, the first line of the page."""
    found, records, lost = len(findings.run.anomalies), findings.records, findings.lost
    if lost:
        return Headline("Records were lost", f"{lost:,} of {records:,} acknowledged records are not there.", "bad")
    if found:
        anomalies = "1 anomaly was" if found == 1 else f"{found:,} anomalies were"
        return Headline("Promises were broken", f"No acknowledged record was lost, but {anomalies} found.", "bad")
    run_json = findings.run.run_json
    if run_json.get("judged") is False:
        return Headline("Not judged", "The run ended before its history was checked.", "unsure")
    if not records:
        return Headline("Nothing was tested", "No record was acknowledged, so none could be lost.", "unsure")
    nothing = f"All {records:,} acknowledged records are there, and no anomaly was found."
    if not findings.run.history.replicas:
        return Headline("No anomaly", f"{nothing} The replicas' final state was not read.", "unsure")
    if untested := run_json.get("not_tested"):
        return Headline("No anomaly", f"{nothing} But the run left something untested: {_text(untested)}.", "unsure")
    return Headline("Nothing was lost", nothing, "good")


def title(findings: Findings) -> str:
    run_json = findings.run.run_json
    target = str(run_json.get("target") or "a cluster")
    nodes = f", {run_json['nodes']} brokers" if run_json.get("nodes") else ""
    return f"{target}{nodes}, {duration(findings.lasted_s)}"


def duration(lasted_s: float) -> str:
    minutes, rest = divmod(round(lasted_s), 60)
    return f"{minutes} min {rest} s" if minutes else f"{lasted_s:.1f} s"


def _header(findings: Findings) -> Element:
    what = headline(findings)
    faults = findings.run.history.faults
    kinds = Counter(fault.kind for fault in faults)
    done = f"{_count(len(faults), 'fault')} of {_count(len(kinds), 'kind')}" if faults else "no faults"
    cut = (
        " The run was interrupted: the page ends at the interrupt." if findings.run.run_json.get("interrupted") else ""
    )
    found = findings.run.anomalies
    return element(
        "header", {"class": what.style},
        element("p", {"class": "over"}, "Chaos run of ", name(title(findings))),
        element("h1", {}, what.word),
        element("p", {"class": "verdict"}, what.sentence, cut),
        element("p", {}, f"{_count(len(findings.run.history.calls), 'call')} of clients, {done}. ",
                element("a", {"href": "#anomalies"}, f"See what is wrong ({len(found)})") if found else None),
    )  # fmt: skip


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _tiles(findings: Findings) -> Element:
    q, longest = findings.send_quantiles, findings.longest_silence
    lost, found = findings.lost, len(findings.run.anomalies)
    tiles = [
        _tile("Records acknowledged", f"{findings.records:,}", f"{number(throughput(findings))} per second"),
        _tile("Acknowledged, then lost", *_judged(findings, lost)),
        _tile("Anomalies", *_judged(findings, found)),
        _tile("Sends, p50", _ms(q.p50_ms if q else None), f"p99 {_ms(q.p99_ms)}" if q else ""),
        _tile("Sends, p99.9", _ms(q.p999_ms if q else None), f"longest {_ms(q.max_ms)}" if q else ""),
        _tile(
            "Longest silence",
            seconds(longest.ended_s - longest.began_s) if longest else "–",
            element("span", {}, name(log_name(longest.log)), f" at {findings.since(longest.began_s):.0f} s")
            if longest else "",
        ),
        _tile("New leaders", f"{len(leader_changes(findings.run.history)):,}", "after the first of each partition"),
    ]  # fmt: skip
    return element("dl", {"class": "tiles"}, *tiles)


def _judged(findings: Findings, count: int) -> tuple[str, str, str]:
    """Return (figure, text below it, style) of a tile. A count of 0 is good only if the checkers ran."""
    if not count and findings.run.run_json.get("judged") is False:
        return "–", "", ""
    return f"{count:,}", "", "bad" if count else "good"


def _ms(took_ms: float | None) -> str:
    return "–" if took_ms is None else seconds(took_ms / 1000)


def _tile(word: str, figure: str, below: Child, style: str = "") -> Element:
    more = element("dd", {"class": "below"}, below) if below else None
    return element("div", {"class": f"tile {style}".strip()}, element("dt", {}, word), element("dd", {}, figure), more)


def run_section(findings: Findings) -> Element:
    """Return the section with the facts of the run and the command that repeats it."""
    run_json = findings.run.run_json
    facts: list[tuple[str, Child]] = [("Folder", name(findings.run.name))]
    facts += [
        (word, name(_text(run_json[key]))) for key, word in _SAID.items() if run_json.get(key) not in (None, "", {}, [])
    ]
    command = run_json.get("command")
    rows = [part for word, value in facts for part in (element("dt", {}, word), element("dd", {}, value))]
    listed = element("dl", {"class": "run"}, *rows)
    judged = run_json.get("not_judged") or {}
    unjudged = [
        element("h3", {}, "What was not judged"),
        element("dl", {"class": "run"}, *(part for word, why in judged.items()
                for part in (element("dt", {}, name(str(word))), element("dd", {}, name(str(why)))))),
    ] if isinstance(judged, dict) and judged else []  # fmt: skip
    again = [
        element("p", {}, "The command repeats the plan: the same faults, at the same times, with the same loads. Real "
                "processes never run twice in the same order, so the result may differ."),
        element("pre", {}, element("code", {}, str(command))),
    ] if command else []  # fmt: skip
    return element("section", {"id": "run"}, element("h2", {}, "The run"), listed, *again, *unjudged)


_SAID = {"began": "Began", "target": "Target", "versions": "Versions", "machine": "Machine", "nodes": "Brokers",
         "seed": "Seed",
         "mutants": "Mutants", "workloads": "Workloads", "never_happened": "Faults that could not happen",
         "measures": "Measures", "slack": "Allowances for a slow machine", "notes": "Notes"}  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)
