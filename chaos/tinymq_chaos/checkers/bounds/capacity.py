"""The contents of a bounded partition: never more than its bounds, and no less than necessary; and refusals only if it
is full.

The bound in force is that of the time when the newest record was appended. Lowering a bound removes nothing by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tinymq_chaos.checkers.bounds.retention import logs
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.settings import SettingsHistory
from tinymq_chaos.checkers.records.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome

SENT_AT_ONCE_MAX = 64  # batches that a leader appends, and makes room for, before an observer sees one of them
QUOTA = "QuotaExceeded"


def over_capacity(facts: Facts) -> Iterator[Anomaly]:
    """A partition holds more than its bounds allow."""
    bounded = {log: settings for log, settings in logs(facts) if settings.only("max_records", "max_bytes")}
    appended = _appended(facts, bounded)
    for look, log, log_start, end in facts.ends():
        if log not in bounded or end == log_start:
            continue
        since_s, until_s = appended.get((log, end), (0.0, look.ended_s or math.inf))
        most = bounded[log].bounds("max_records", since_s, until_s)[1]
        if end - log_start > most:
            what = f"{end - log_start} records, and there is room for {most:g}"
            yield Anomaly.of(AnomalyKind.OVER_CAPACITY, what, log, look, offsets=(log_start, end))
        heaviest = bounded[log].bounds("max_bytes", since_s, until_s)[1]
        weight = facts.weight(log, log_start, end, look.invoked_s)
        if weight is not None and weight > heaviest:
            what = f"{weight} bytes of records, and there is room for {heaviest:g}"
            yield Anomaly.of(AnomalyKind.OVER_CAPACITY, what, log, look, offsets=(log_start, end))


def _appended(facts: Facts, bounded: dict[Log, SettingsHistory]) -> dict[tuple[Log, int], tuple[float, float]]:
    """Return two moments between which the record before an offset was appended."""
    found: dict[tuple[Log, int], tuple[float, float]] = {}
    for call in acknowledged(facts):
        log, base, names = place_of(call)
        if log in bounded and call.ended_s is not None:
            found[log, base + len(names)] = call.invoked_s, call.ended_s
    return found


def dropped_too_much(facts: Facts) -> Iterator[Anomaly]:
    """More records were dropped than necessary: fewer are left than the partition may hold. Trims may remove any."""
    if facts.heads_removed:
        return
    trimmed = {(c.args["topic"], c.args["partition"]) for c in facts.of("trim")}
    bounded = {log: t for log, t in logs(facts) if t.only("max_records", "max_bytes") and log not in trimmed}
    largest: dict[str, int] = {}
    for call in facts.sends:
        largest[call.args["topic"]] = max(largest.get(call.args["topic"], 0), len(call.args["records"]))
    for look, log, log_start, end in facts.ends():
        if log not in bounded or not log_start:
            continue
        most = bounded[log].bounds("max_records", 0.0, look.ended_s or math.inf)[0]
        heaviest = bounded[log].bounds("max_bytes", 0.0, look.ended_s or math.inf)[0]
        room = most - SENT_AT_ONCE_MAX * max(1, largest.get(log[0], 1))
        weight = facts.weight(log, log_start, end, look.invoked_s)
        few = end - log_start < room
        light = weight is not None and weight < heaviest * (1 - 1 / 128) - _at_once(facts, look, log)
        if (few or most == math.inf) and (light or heaviest == math.inf):
            left = f"{end - log_start} are left" + ("" if weight is None else f", of {weight} bytes,")
            what = f"{log_start} records were dropped, and {left} where {most:g}, or {heaviest:g} bytes, have room"
            yield Anomaly.of(AnomalyKind.REMOVED_EARLY, what, log, look, offsets=(log_start, end))


def _at_once(facts: Facts, look: Call, log: Log) -> int:
    """Return the bytes for which the leader may have made room already: those of sends without an answer yet, and one
    more batch.
    """
    until_s = look.ended_s or 0.0
    open_ = [
        c
        for c in facts.sends
        if c.args["topic"] == log[0] and c.invoked_s <= until_s and (c.ended_s is None or c.ended_s >= look.invoked_s)
    ]
    return (len(open_) + 1) * facts.largest(log)


def refused_with_room(facts: Facts) -> Iterator[Anomaly]:
    """A send is refused because the partition is full, although it had room all the while, whatever was in flight.

    A fault that removes the head of one replica's log makes no room, so the remaining offsets prove nothing then.
    """
    if facts.heads_removed:
        return
    full = {
        log: settings
        for log, settings in logs(facts)
        if settings.always("on_full", "reject") and settings.only("max_records")
    }
    starts = [(look.ended_s or 0.0, log, start) for look, log, start, _ in facts.ends() if log in full]
    for call in facts.sends:
        log = (call.args["topic"], call.args["partition"])
        end = facts.committed_by(log, call) if log in full and call.error == QUOTA else None
        if end is None:
            continue
        start = max((at for ended_s, where, at in starts if where == log and ended_s <= call.invoked_s), default=0)
        room = full[log].bounds("max_records", call.invoked_s, call.ended_s or math.inf)[0]
        most = end - start + _on_their_way(facts, log, call) + len(call.args["records"])
        if most <= room:
            what = (
                f"{call.args['records'][0]} is refused, and there were {most} records at most where {room:g} have room"
            )
            yield Anomaly.of(AnomalyKind.REFUSED, what, log, call, offsets=(start, end))


def _on_their_way(facts: Facts, log: Log, refused: Call) -> int:
    """Return how many records of other sends may have been appended by the end of this one without being committed."""
    until_s = refused.ended_s or 0.0
    return sum(
        len(call.args["records"])
        for call in facts.sends
        if call is not refused
        and (call.args["topic"], call.args["partition"]) == log
        and call.outcome is not Outcome.FAILED
        and call.invoked_s <= until_s
        and not (call.outcome is Outcome.OK and (call.ended_s or 0.0) <= until_s)
    )
