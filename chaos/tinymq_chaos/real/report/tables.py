"""The sections of a page that are tables: what faults did, how calls ended, and what is wrong, with its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from tinymq_chaos.checkers.common.anomaly import Anomaly, log_name
from tinymq_chaos.history import Call, Outcome
from tinymq_chaos.real.report.effects import Effect
from tinymq_chaos.real.report.elements import Child, element, name
from tinymq_chaos.real.report.evidence import Evidence, RecordPlace, evidence
from tinymq_chaos.real.report.figures import Findings, calls_by_outcome
from tinymq_chaos.real.report.lanes import seconds

FAULTS_MAX = 1_000
ANOMALIES_MAX = 100
SHORT = 90  # characters of an argument of a call


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Child]], figures: Sequence[int] = ()) -> Element:
    """Return a table. `figures`: columns of numbers. A wide table scrolls by itself; the page does not."""
    right = {"class": "figure"}
    titles = [element("th", {"scope": "col"} | (right if i in figures else {}), text) for i, text in enumerate(head)]
    body = [
        element("tr", {}, *(element("td", right if i in figures else {}, cell) for i, cell in enumerate(row)))
        for row in rows
    ]
    whole = element(
        "table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, *titles)),
        element("tbody", {}, *body),
    )  # fmt: skip
    return element("div", {"class": "wide", "tabindex": 0, "role": "region", "aria-label": caption}, whole)


def faults_section(findings: Findings) -> Element:
    title = element("h2", {}, "Faults and what they did")
    if not findings.effects:
        return element("section", {"id": "faults"}, title, element("p", {"class": "empty"}, "No faults were done."))
    rows = [_fault_row(findings, i, effect) for i, effect in enumerate(findings.effects[:FAULTS_MAX], 1)]
    head = ("", "Fault", "Began", "Lasted", "Silent during it", "Silent after it", "New leaders", "Anomalies")
    more = len(findings.effects) - len(rows)
    return element(
        "section",
        {"id": "faults"},
        title,
        element(
            "p",
            {},
            "Silent: the longest time, in any one partition, in which a client waited for a write and none was "
            "acknowledged. After it: what goes on beyond its end, or begins within 10 s of it and before the next "
            "fault, up to its own end. What happens while faults overlap is counted to each of them.",
        ),
        table("Each fault, in the order of their beginnings", head, rows, (2, 3, 4, 5, 6, 7)),
        element("p", {}, f"{more} more are in summary.json.") if more else None,
    )


def _fault_row(findings: Findings, number_: int, effect: Effect) -> list[Child]:
    fault = effect.fault
    began_s = findings.since(fault.began_s)
    ended_s = findings.lasted_s if fault.ended_s is None else findings.since(fault.ended_s)
    show = {"type": "button", "class": "show", "data-from": f"{began_s:.3f}", "data-until": f"{ended_s:.3f}"}
    did = "" if fault.effect is None else f": {fault.effect or 'it did nothing'}"
    named = element("span", {}, element("b", {}, fault.kind), " ", name(fault.what), did)
    return [
        element("button", show | {"aria-label": f"show fault {number_} on the time line"}, str(number_)),
        named,
        f"{began_s:.1f} s",
        seconds(ended_s - began_s) if fault.ended_s is not None else "did not end",
        _silent(effect.worst_while_s),
        _silent(effect.worst_after_s),
        str(effect.leader_changes) if effect.leader_changes else "–",
        element("strong", {"class": "bad"}, str(effect.anomalies)) if effect.anomalies else "–",
    ]


def _silent(lasted_s: float) -> Child:
    """Return a cell for a duration, grey if people would not notice it."""
    if lasted_s < 0.001:
        return "–"
    return element("span", {"class": "small" if lasted_s < 0.1 else None}, seconds(lasted_s))


def calls_section(findings: Findings) -> Element:
    counts = calls_by_outcome(findings.run.history.calls)
    title = element("h2", {}, "Calls of clients")
    if not counts:
        return element("section", {"id": "calls"}, title, element("p", {"class": "empty"}, "No client called."))
    quantiles = {"send": findings.send_quantiles, "poll": findings.poll_quantiles}
    rows: list[list[Child]] = []
    for kind, ended in counts.items():
        q = quantiles.get(kind)
        took = [seconds(v / 1000) for v in (q.p50_ms, q.p99_ms, q.p999_ms, q.max_ms)] if q is not None else ["–"] * 4
        rows.append([kind, *(f"{ended[outcome]:,}" if ended[outcome] else "–" for outcome in _OUTCOMES), *took])
    head = ("Call", "ok", "failed", "unknown", "no answer", "p50", "p99", "p99.9", "longest")
    note = "Times are of calls that ended ok; of polls, only those that returned records, as empty polls wait."
    return element(
        "section", {"id": "calls"}, title, table("Calls by how they ended", head, rows, range(1, 9)),
        element("p", {"class": "note"}, note),
    )  # fmt: skip


_OUTCOMES = (Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN, Outcome.PENDING)


def anomalies_section(findings: Findings) -> Element:
    found = findings.run.anomalies
    title = element("h2", {}, "Anomalies")
    if not found:
        none = f"None: the checkers went through {len(findings.run.history.calls):,} calls"
        replicas = len(findings.run.history.replicas)
        none += (
            f" and the final state of {replicas:,} replicas." if replicas else "; no replica's final state was read."
        )
        if findings.run.run_json.get("judged") is False:
            none = "Not judged: the run ended before the checkers ran."
        return element("section", {"id": "anomalies"}, title, element("p", {"class": "empty"}, none))
    shown = found[:ANOMALIES_MAX]
    proofs = iter(evidence(findings.run.history, [a for a in shown if isinstance(a, Anomaly)]))
    each = [_sentence(a) if isinstance(a, str) else _anomaly(findings, next(proofs)) for a in shown]
    more = len(found) - len(shown)
    return element(
        "section", {"id": "anomalies"}, title, *each,
        element("p", {}, f"{more} more are in summary.json.") if more else None,
    )  # fmt: skip


def _sentence(text: str) -> Element:
    return element("p", {"class": "anomaly"}, name(text))


def _anomaly(findings: Findings, proof: Evidence) -> Element:
    anomaly = proof.anomaly
    where: list[Child] = [" in ", name(log_name(anomaly.log))] if anomaly.log is not None else []
    head = element("summary", {}, element("strong", {}, anomaly.kind.value), *where, ": ", name(anomaly.what))
    facts: list[tuple[str, Sequence[Child]]] = [
        ("records", [name(record) for record in anomaly.records[: len(anomaly.records) - proof.records_more]]),
        ("offsets", [str(offset) for offset in anomaly.offsets[:40]]),
        ("brokers", [str(broker) for broker in anomaly.brokers[:40]]),
        ("clients", [name(process) for process in anomaly.processes[:40]]),
        ("at", [f"{findings.since(at_s):.3f} s" for at_s in anomaly.times_s[:40]]),
    ]
    listed = [part for word, values in facts if values for part in _listed(word, values)]
    more = f"and {proof.records_more:,} more records" if proof.records_more else None
    return element(
        "details", {"class": "anomaly"}, head,
        element("dl", {}, *listed) if listed else None,
        element("p", {}, more) if more else None,
        _places(proof.places) if proof.places else None,
        _calls(findings, proof) if proof.calls else element("p", {"class": "empty"}, "No call names its records."),
    )  # fmt: skip


def _listed(word: str, values: Sequence[Child]) -> list[Element]:
    parts: list[Child] = []
    for value in values:
        parts += [", ", value] if parts else [value]
    return [element("dt", {}, word), element("dd", {}, *parts)]


def _places(places: Sequence[RecordPlace]) -> Element:
    brokers = sorted({broker for place in places for broker in place.offsets})
    rows: list[list[Child]] = []
    for place in places:
        cells: list[Child] = []
        for broker in brokers:
            at = place.offsets.get(broker)
            cells.append("no replica" if at is None else ", ".join(map(str, at)) or element("em", {}, "not there"))
        rows.append([name(place.record), name(log_name(place.log)), *cells])
    head = ("Record", "Partition", *(f"broker {broker}" for broker in brokers))
    return table("Offsets in each replica's log, at the end", head, rows, range(2, len(head)))


def _calls(findings: Findings, proof: Evidence) -> Element:
    records = set(proof.anomaly.records)
    rows = [_call_row(findings, call, records) for call in proof.calls]
    caption = "Calls that touched these records"
    caption += f": the first {len(rows)} of {len(rows) + proof.calls_more:,}" if proof.calls_more else ""
    return table(caption, ("#", "Client", "Call", "Began", "Took", "Ended", "Given", "Result"), rows, (0, 3, 4))


def _result(call: Call, records: set[str]) -> object:
    """Return the result of a call; of a poll, only these records, as [partition, offset, record]."""
    if call.kind != "poll":
        return call.result
    shown = ((p, offset, record) for p, base, names in call.result for offset, record in enumerate(names, base))
    return [list(each) for each in shown if each[2] in records]


def _call_row(findings: Findings, call: Call, records: set[str]) -> list[Child]:
    took = "–" if call.ended_s is None else seconds(call.ended_s - call.invoked_s)
    ended = f"{call.outcome} {call.error}".strip() if call.outcome is not Outcome.PENDING else "no answer"
    given = " ".join(f"{key}={_short(value)}" for key, value in call.args.items())
    return [
        str(call.number), name(call.process), call.kind, f"{findings.since(call.invoked_s):.3f} s", took,
        name(ended), name(given), name("–" if call.result is None else _short(_result(call, records))),
    ]  # fmt: skip


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"
