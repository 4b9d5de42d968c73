"""Trims: a leader that is asked afterwards shows no record below one, and no record at or above it is removed with it.

A replaced leader steps down within LINGER_S, not counting the time for which it was stopped. Until then it may show
what it knows (docs/guarantees.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.settings import SettingsHistory
from tinymq_chaos.checkers.records.replicas import LINGER_LATE_S, LINGER_S
from tinymq_chaos.history import Call, FaultChange, Log, Outcome

KNOWN_S = LINGER_S + LINGER_LATE_S  # after a trim, every leader knows of it


def trimmed_reads(facts: Facts) -> Iterator[Anomaly]:
    """A reader that was opened after a trim gets records that the trim removed."""
    opened = {(c.args["reader"], c.args["topic"]): c for c in facts.of("open") if c.args.get("replica") == "leader"}
    for trim, log in _done(facts):
        for shown in facts.shown:
            if shown.log != log or shown.base >= trim.result:
                continue
            asked = shown.call if shown.call.kind == "fetch" else opened.get((shown.reader, log[0]))
            if asked is not None and _knows(facts, trim, asked, shown.call):
                what = f"{shown.names[0]} was shown at offset {shown.base}, which was trimmed to {trim.result}"
                yield Anomaly.of(
                    AnomalyKind.TRIMMED_READ, what, log, trim, shown.call, offsets=(shown.base, trim.result)
                )
                break


def trims_undone(facts: Facts) -> Iterator[Anomaly]:
    """A replica's log begins below a trim at the end of the run."""
    for trim, log in _done(facts):
        for replica in facts.replicas.get(log, []):
            if replica.shown_start is not None and replica.shown_start < trim.result:
                what = f"begins at {replica.shown_start}, and was trimmed to {trim.result}"
                yield Anomaly(AnomalyKind.TRIMMED_READ, what, log, (), (trim.result,), brokers=(replica.broker,))


def removed_untrimmed(facts: Facts) -> Iterator[Anomaly]:
    """The log begins above all requested trims, and nothing else removes records."""
    if facts.heads_removed:
        return
    trims = [c for c in facts.of("trim") if c.outcome is not Outcome.FAILED]
    topics = {c.args["topic"] for c in facts.of("trim")}
    alone = {topic for topic in topics if _goes_by_trims_alone(SettingsHistory(facts, topic))}
    for look, log, log_start, _ in facts.ends():
        if log[0] not in alone or not log_start:
            continue
        asked = [c.args["before"] for c in trims if log_of(c) == log and c.invoked_s <= (look.ended_s or 0.0)]
        if log_start > max(asked, default=0):
            what = f"begins at {log_start}, and the requested trims end at {max(asked, default=0)}"
            yield Anomaly.of(AnomalyKind.REMOVED_EARLY, what, log, look, offsets=(log_start,))
            break


def _goes_by_trims_alone(settings: SettingsHistory) -> bool:
    return not settings.only("retention_ms", "retention_bytes", "max_records", "max_bytes") or (
        settings.only("max_records", "max_bytes") and settings.between("on_full", 0.0, float("inf")) <= {"reject", None}
    )


def _done(facts: Facts) -> Iterator[tuple[Call, Log]]:
    return ((c, log_of(c)) for c in facts.of("trim") if c.outcome is Outcome.OK)


def trims_of(facts: Facts) -> dict[Log, list[tuple[float, int]]]:
    """Return (time, offset) of every trim that may have removed records."""
    found: dict[Log, list[tuple[float, int]]] = defaultdict(list)
    for call in facts.of("trim"):
        if call.outcome is not Outcome.FAILED:
            found[log_of(call)].append((call.invoked_s, call.args["before"]))
    return dict(found)


def trimmed_to(trims: dict[Log, list[tuple[float, int]]], log: Log, at_s: float) -> int:
    """Return the offset up to which the trims that began by `at_s` may have removed this partition's records."""
    return max((before for since_s, before in trims.get(log, ()) if since_s <= at_s), default=0)


def log_of(call: Call) -> Log:
    return call.args["topic"], call.args["partition"]


def _knows(facts: Facts, trim: Call, asked: Call, shown: Call) -> bool:
    """Return whether every leader has heard of the trim when `asked` begins: no replaced leader leads on for so
    long."""
    ended_s = trim.ended_s or 0.0
    return asked.invoked_s > ended_s + KNOWN_S and not _stopped(facts.history.changes, ended_s, shown.ended_s or 0.0)


def _stopped(changes: list[FaultChange], since_s: float, until_s: float) -> bool:
    """Return whether any broker was paused between two times."""
    last = FaultChange(float("inf"), "end")
    return any(a.paused and a.at_s <= until_s and b.at_s >= since_s for a, b in pairwise([*changes, last]))
