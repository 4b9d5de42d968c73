"""summary.json: the figures of a run, for programs and for comparisons of two runs.

The module is pure: it turns a run into JSON values. Times are seconds from the beginning of the run unless a name says
otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind, log_name
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records import weak_topics, writes
from tinymq_chaos.history import Call, Log, Outcome
from tinymq_chaos.real.report.effects import (
    Effect,
    Silence,
    effects,
    is_acknowledged,
    leader_changes,
    leaders_by_log,
    silences,
)
from tinymq_chaos.real.report.quantiles import Quantiler, Quantiles
from tinymq_chaos.real.report.run_folder import FinishedRun

PARTITIONS_MAX = 20  # listed for one fault: the partitions with the longest silences
SILENT_S = 0.05  # shorter silences are not listed


@dataclass(frozen=True)
class Findings:
    """The values derived from one run. Each is computed once."""

    run: FinishedRun

    @cached_property
    def begin_s(self) -> float:
        """Return the time of the first event, by the history's clock."""
        history = self.run.history
        firsts = [
            *(call.invoked_s for call in history.calls[:1]),
            *(change.at_s for change in history.changes[:1]),
            *(fault.began_s for fault in history.faults[:1]),
            *(led.at_s for led in history.leaders.values()),
        ]
        return min(firsts, default=0.0)

    @cached_property
    def end_s(self) -> float:
        """Return the time of the last event, by the history's clock."""
        history = self.run.history
        lasts = [
            *(call.ended_s or call.invoked_s for call in history.calls),
            *(change.at_s for change in history.changes),
            *(fault.ended_s or fault.began_s for fault in history.faults),
            *(led.until_s or led.at_s for led in history.leaders.values()),
            *([] if history.ended_s is None else [history.ended_s]),
        ]
        return max(lasts, default=self.begin_s)

    @property
    def lasted_s(self) -> float:
        return self.end_s - self.begin_s

    @cached_property
    def silences(self) -> dict[Log, list[Silence]]:
        return silences(self.run.history, self.end_s)

    @cached_property
    def effects(self) -> list[Effect]:
        return effects(self.run.history, self.silences, self.run.anomalies, self.end_s)

    @cached_property
    def facts(self) -> Facts:
        return Facts(self.run.history)

    @cached_property
    def acknowledged(self) -> list[Call]:
        return [send for send in self.run.history.of("send") if is_acknowledged(send)]

    @cached_property
    def records(self) -> int:
        """Return the number of acknowledged records."""
        return sum(len(send.args["records"]) for send in self.acknowledged)

    @cached_property
    def lost(self) -> int:
        """Return the number of lost records: acknowledged, missing, and not excused by weaker durability.

        The count covers the whole history, because the list of anomalies has a maximum length. Records that only the
        list names count, too.
        """
        found = (a for a in writes.lost_writes(self.facts) if not weak_topics.is_excused(self.facts, a))
        listed = (a for a in self.run.anomalies if isinstance(a, Anomaly) and a.kind is AnomalyKind.LOST_WRITE)
        return len({(a.log, record) for each in (found, listed) for a in each for record in a.records})

    @cached_property
    def send_quantiles(self) -> Quantiles | None:
        return Quantiler().of(took_s(self.run.history.of("send")))

    @cached_property
    def poll_quantiles(self) -> Quantiles | None:
        """Return the quantiles of polls that returned records. (An empty poll waits for its whole timeout.)"""
        return Quantiler().of(took_s(poll for poll in self.run.history.of("poll") if poll.result))

    @cached_property
    def longest_silence(self) -> Silence | None:
        each = (silence for found in self.silences.values() for silence in found)
        return max(each, key=lambda silence: silence.ended_s - silence.began_s, default=None)

    def since(self, at_s: float) -> float:
        """Convert a time of the history's clock to seconds from the beginning of the run."""
        return at_s - self.begin_s


def took_s(calls: Iterable[Call]) -> Iterable[float]:
    """Return the durations of the calls that ended ok."""
    return (c.ended_s - c.invoked_s for c in calls if c.outcome is Outcome.OK and c.ended_s is not None)


def summary(findings: Findings) -> dict[str, Any]:
    """Return all figures as JSON values. Fields that run.json lacks are null."""
    run, history = findings.run, findings.run.history
    run_json = run.run_json
    return {
        "target": run_json.get("target"),
        "versions": run_json.get("versions"),
        "machine": run_json.get("machine"),
        "seed": run_json.get("seed"),
        "command": run_json.get("command"),
        "nodes": run_json.get("nodes"),
        "interrupted": bool(run_json.get("interrupted")),
        "judged": run_json.get("judged"),
        "not_tested": run_json.get("not_tested"),
        "lasted_s": round(findings.lasted_s, 3),
        "records": {"acknowledged": findings.records, "lost": findings.lost},
        "acknowledged_per_s": round(throughput(findings), 1),
        "send_ms": _quantiles(findings.send_quantiles),
        "poll_ms": _quantiles(findings.poll_quantiles),
        "calls": calls_by_outcome(history.calls),
        "longest_silence": _silence(findings, findings.longest_silence),
        "leader_changes": len(leader_changes(history)),
        "partitions_led": len(leaders_by_log(history)),
        "faults": dict(Counter(fault.kind for fault in history.faults)),
        "spans": [_span(findings, effect) for effect in findings.effects],
        "anomalies": [_anomaly(anomaly) for anomaly in run.anomalies],
    }


def throughput(findings: Findings) -> float:
    """Return the records acknowledged per second, from the first send to the last acknowledgement."""
    sends = findings.acknowledged
    if not sends:
        return 0.0
    first_s = min(send.invoked_s for send in findings.run.history.of("send"))
    lasted_s = max(send.ended_s or 0.0 for send in sends) - first_s
    return findings.records / lasted_s if lasted_s > 0 else 0.0


def calls_by_outcome(calls: Iterable[Call]) -> dict[str, dict[str, int]]:
    """Count the calls by kind, then by outcome."""
    counts: dict[str, Counter[str]] = {}
    for call in calls:
        counts.setdefault(call.kind, Counter())[call.outcome.value] += 1
    return {kind: {outcome.value: counts[kind][outcome.value] for outcome in Outcome} for kind in sorted(counts)}


def _quantiles(quantiles: Quantiles | None) -> dict[str, float] | None:
    if quantiles is None:
        return None
    return {name.removesuffix("_ms"): value for name, value in asdict(quantiles).items()}


def _silence(findings: Findings, silence: Silence | None) -> dict[str, Any] | None:
    if silence is None:
        return None
    return {
        "partition": log_name(silence.log),
        "began_s": round(findings.since(silence.began_s), 3),
        "lasted_s": round(silence.ended_s - silence.began_s, 3),
    }


def _span(findings: Findings, effect: Effect) -> dict[str, Any]:
    fault = effect.fault
    return {
        "kind": fault.kind,
        "what": fault.what,
        "effect": fault.effect,
        "began_s": round(findings.since(fault.began_s), 3),
        "ended_s": None if fault.ended_s is None else round(findings.since(fault.ended_s), 3),
        "silent_while_s": round(effect.worst_while_s, 3),
        "silent_after_s": round(effect.worst_after_s, 3),
        "partitions": {
            log_name(log): {"while_s": round(effect.while_s[log], 3), "after_s": round(effect.after_s[log], 3)}
            for log in _most_silent(effect)
        },
        "leader_changes": effect.leader_changes,
        "anomalies": effect.anomalies,
    }


def _most_silent(effect: Effect) -> list[Log]:
    worst: Mapping[Log, float] = {log: max(effect.while_s[log], effect.after_s[log]) for log in effect.while_s}
    named = (log for log in worst if worst[log] >= SILENT_S)
    return sorted(named, key=lambda log: (-worst[log], log))[:PARTITIONS_MAX]


def _anomaly(anomaly: Anomaly | str) -> Any:
    """As in run.json."""
    return anomaly if isinstance(anomaly, str) else asdict(anomaly)
