"""What retention and capacity may take away, and when: nothing that is young enough, nothing that is held, no more than
makes room; and what is too old does go.

Ages are by the clock of the history, of appends by the leader's: they run up to 5 % apart, and a clock that jumps may
take a majority's median along, so that nothing is said of runs with such jumps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinymq_chaos.checkers.anomaly import Anomaly, Kind, times
from tinymq_chaos.checkers.facts import Facts
from tinymq_chaos.checkers.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome

CLOCKS = 0.1  # clocks run so far apart, of any time
SLACK_S = 0.2
GONE_S = 4.0  # after its time, what is too old is gone: a look at it, a command, and another leader between them
JUMPS = "wall_jump"  # a fault of clocks


def removed_early(facts: Facts) -> Iterator[Anomaly]:
    """A record is gone that was appended less than `retention_ms` ago."""
    if _happened(facts, JUMPS) or facts.heads_removed:
        return
    kept_s = {log: float(t["retention_ms"]) / 1000 for log, t in _logs(facts) if _only(t, "retention_ms")}
    sends = [(call, *place_of(call)) for call in acknowledged(facts)]
    for look, log, log_start, _ in facts.ends():
        least_s = kept_s.get(log, 0.0) * (1 - CLOCKS) - SLACK_S
        for call, where, base, names in sends:
            gone = where == log and base + len(names) <= log_start
            if gone and call.ended_s is not None and (age_s := (look.ended_s or 0.0) - call.invoked_s) < least_s:
                what = f"gone after {age_s:.3f} s at most, and kept for {kept_s[log]:g} s"
                yield _anomaly(Kind.REMOVED_EARLY, what, log, (base, log_start), call, look)
                break


def kept_too_long(facts: Facts, gone_s: float = GONE_S) -> Iterator[Anomaly]:
    """In the end, long after the last fault, what is too old is gone, `gone_s` after its time."""
    end_s, calm_s = facts.history.ended_s, facts.history.calm_s
    if end_s is None or calm_s is None or _happened(facts, JUMPS):
        return
    for log, topic in _logs(facts):
        replicas = facts.replicas.get(log, [])
        if not _only(topic, "retention_ms") or not replicas:
            continue
        retention_s = float(topic["retention_ms"]) / 1000 * (1 + CLOCKS)
        log_start = max(replica.log_start for replica in replicas)
        held = [c for c in facts.of("hold") if _held(c)[:2] == log]
        released = {_held(c): c.ended_s or end_s for c in facts.of("release")}
        for call in acknowledged(facts):
            where, base, _ = place_of(call)
            holds_s = [released.get(_held(c), end_s) for c in held if c.args["offset"] <= base]
            due_s = max((call.ended_s or end_s) + retention_s, calm_s, *holds_s)
            if where == log and base >= log_start and end_s - due_s > gone_s:
                what = f"still there {end_s - due_s:.3f} s after its time"
                yield _anomaly(Kind.KEPT_TOO_LONG, what, log, (base,), call)
                break


def over_capacity(facts: Facts) -> Iterator[Anomaly]:
    """A partition holds more records than it has room for; or less, and had to drop none."""
    bounds = {log: int(topic["max_records"]) for log, topic in _logs(facts) if _only(topic, "max_records")}
    largest: dict[str, int] = {}
    for call in facts.sends:
        largest[call.args["topic"]] = max(largest.get(call.args["topic"], 0), len(call.args["records"]))
    for look, log, log_start, end in facts.ends():
        most = bounds.get(log)
        if most is None:
            continue
        if end - log_start > most:
            what = f"{end - log_start} records, and there is room for {most}"
            yield _anomaly(Kind.OVER_CAPACITY, what, log, (log_start, end), look)
        if (
            log_start
            and not facts.heads_removed
            and end - log_start < most - SENT_AT_ONCE_MAX * max(1, largest.get(log[0], 1))
        ):
            what = f"{log_start} records were dropped, and {end - log_start} are left where {most} have room"
            yield _anomaly(Kind.REMOVED_EARLY, what, log, (log_start, end), look)


SENT_AT_ONCE_MAX = 64  # batches that a leader appends, and makes room for, before one of them is seen


def broken_holds(facts: Facts) -> Iterator[Anomaly]:
    """The log start is above what was held, before the hold was to end."""
    if facts.heads_removed:
        return
    holds = [c for c in facts.of("hold") if c.outcome is Outcome.OK]
    released = {_held(c): c.invoked_s for c in facts.of("release")}
    found = list(facts.ends())
    for hold in holds:
        log = (hold.args["topic"], hold.args["partition"])
        until_s = hold.invoked_s + hold.args["lease_s"] * (1 - CLOCKS)
        until_s = min(until_s, released.get(_held(hold), until_s))
        for look, where, log_start, _ in found:
            ended_s = look.ended_s or 0.0
            if where == log and log_start > hold.args["offset"] and ended_s < until_s and ended_s > (hold.ended_s or 0):
                what = f"begins at {log_start}, and {hold.args['offset']} was held"
                yield _anomaly(Kind.BROKEN_HOLD, what, log, (hold.args["offset"], log_start), hold, look)
                break


def _held(call: Call) -> tuple[str, int, str]:
    return call.args["topic"], call.args["partition"], call.args["hold"]


def _logs(facts: Facts) -> Iterator[tuple[Log, dict[str, Any]]]:
    """Partitions whose topic has settings of its own."""
    seen = {(c.args["topic"], c.result[0]) for c in facts.sends if c.outcome is Outcome.OK}
    for log in sorted(seen | set(facts.replicas)):
        settings = facts.history.topics.get(log[0])
        if settings:
            yield log, settings


def _only(settings: dict[str, Any], name: str) -> bool:
    """Whether records go for this reason alone."""
    reasons = {"retention_ms", "retention_bytes", "max_records", "max_bytes"}
    return {n for n in reasons if settings.get(n, "none") != "none"} == {name}


def _happened(facts: Facts, fault: str) -> bool:
    return any(change.what.startswith(f"FAULT {fault}") for change in facts.history.changes)


def _anomaly(kind: Kind, what: str, log: Log, offsets: tuple[int, ...], *calls: Call) -> Anomaly:
    processes = tuple(dict.fromkeys(call.process for call in calls))
    return Anomaly(kind, what, log, (), offsets, processes, times(*calls))
