"""Retention removes records that are too old or too many, and no record that is young enough, among the last bytes, or
held.

The checker measures ages by the clock of the history, the leader by its own; these run up to 5 % apart. A single
broker's clock that jumps, or that is wrong when the broker starts, excuses nothing in a cluster of several brokers.
Records that a leader appends while it hears no majority get their age from the time when it hears one again. So a
partition without a replica on every broker may keep such records longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tinymq_chaos.checkers.bounds.trims import trimmed_to, trims_of
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import CLOCKS, WRONG_CLOCKS, Facts
from tinymq_chaos.checkers.common.settings import SettingsHistory, longest_interval_s
from tinymq_chaos.checkers.records.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome

SLACK_S = 0.2
GONE_S = 4.0  # after its time a record is gone: a check, a command, and a change of leader lie in between
MORE = 1 / 64  # share of the bound by which more may be kept: twice the value in docs/guarantees.md


def removed_early(facts: Facts) -> Iterator[Anomaly]:
    """A record is gone that was appended less than `retention_ms` ago, and that no trim removed."""
    if (_clocks_were_wrong(facts) and len(_brokers(facts)) == 1) or facts.heads_removed:
        return
    aged = {log: settings for log, settings in logs(facts) if settings.only("retention_ms")}
    sends = [(call, *place_of(call)) for call in acknowledged(facts)]
    trims = trims_of(facts)
    for look, log, log_start, _ in facts.ends() if aged else ():
        trimmed = trimmed_to(trims, log, look.ended_s or 0.0)
        for call, where, base, names in sends if log in aged else ():
            if where != log or not trimmed < base + len(names) <= log_start or call.ended_s is None:
                continue
            ended_s = look.ended_s or 0.0
            kept_s = aged[log].bounds("retention_ms", call.invoked_s, ended_s)[0] / 1000
            if (age_s := ended_s - call.invoked_s) < kept_s * (1 - CLOCKS) - SLACK_S:
                what = f"removed after {age_s:.3f} s at most, and the topic keeps records for {kept_s:g} s"
                yield Anomaly.of(AnomalyKind.REMOVED_EARLY, what, log, call, look, offsets=(base, log_start))
                break


def kept_too_long(facts: Facts) -> Iterator[Anomaly]:
    """A record past its retention time is still shown, or still on disk, long after the last fault.

    A hold keeps the records from its offset on for readers. On disk it keeps the whole segment of its offset, with
    records below it. A segment also stays on disk until a later entry is synced.
    """
    end_s, calm_s = facts.history.ended_s, facts.history.calm_s
    if end_s is None or calm_s is None or _clocks_were_wrong(facts):
        return
    for log, settings in logs(facts):
        replicas = facts.replicas.get(log, [])
        counted_s = calm_s if len({r.broker for r in replicas}) < len(_brokers(facts)) else 0.0
        retention_s = settings.bounds("retention_ms", end_s, end_s)[1] / 1000 * (1 + CLOCKS)
        if not settings.only("retention_ms") or retention_s == math.inf or not replicas:
            continue
        stored = max(replica.log_start for replica in replicas)
        synced_s = longest_interval_s(settings.between("sync", calm_s, end_s))
        shown = max((r.shown_start for r in replicas if r.shown_start is not None), default=stored)
        for call in acknowledged(facts):
            where, base, _ = place_of(call)
            if where != log or base < stored:
                continue
            is_shown = base >= shown
            holds_s = _held_until_s(facts, log, end_s, base if is_shown else math.inf)
            due_s = max(max(call.ended_s or end_s, counted_s) + retention_s, calm_s, settings.settled_s, *holds_s)
            if end_s - due_s > GONE_S + (0.0 if is_shown else synced_s):
                kept = "shown" if is_shown else "on disk"
                what = f"still {kept} {end_s - due_s:.3f} s after its time"
                yield Anomaly.of(AnomalyKind.KEPT_TOO_LONG, what, log, call, offsets=(base,))
                break


def removed_of_the_last_bytes(facts: Facts) -> Iterator[Anomaly]:
    """Fewer bytes of records are left than the topic keeps, and no trim removed the others."""
    if facts.heads_removed:
        return
    trims = trims_of(facts)
    sized = {log: settings for log, settings in logs(facts) if settings.only("retention_bytes")}
    for look, log, log_start, end in facts.ends():
        kept = facts.weight(log, log_start, end, look.invoked_s) if log in sized and log_start else None
        if kept is None or log_start <= trimmed_to(trims, log, look.ended_s or 0.0):
            continue
        least = sized[log].bounds("retention_bytes", 0.0, look.ended_s or math.inf)[0]
        if kept < least:
            what = f"{kept} bytes of records are left, and the topic keeps {least:g}"
            yield Anomaly.of(AnomalyKind.REMOVED_EARLY, what, log, look, offsets=(log_start, end))


def kept_too_much(facts: Facts) -> Iterator[Anomaly]:
    """Much more is left than the topic keeps, long after the last fault."""
    end_s, calm_s = facts.history.ended_s, facts.history.calm_s
    if end_s is None or calm_s is None:
        return
    for log, settings in logs(facts):
        replicas = facts.replicas.get(log, [])
        most = settings.bounds("retention_bytes", end_s, end_s)[1]
        settled = end_s - GONE_S > max(calm_s, settings.settled_s, *_held_until_s(facts, log, end_s))
        if not settings.only("retention_bytes") or most == math.inf or not replicas or not settled:
            continue
        late = [place_of(c)[1] for c in acknowledged(facts) if place_of(c)[0] == log and c.invoked_s > end_s - GONE_S]
        end = min(late, default=max(replica.high_watermark for replica in replicas))
        log_start = max(r.log_start if r.shown_start is None else r.shown_start for r in replicas)
        kept = facts.weight(log, log_start, end, end_s)
        if kept is not None and kept > most * (1 + MORE) + facts.largest(log):
            what = f"{kept} bytes of records are left, and the topic keeps {most:g}"
            yield Anomaly(AnomalyKind.KEPT_TOO_LONG, what, log, (), (log_start, end))


def _held_until_s(facts: Facts, log: Log, end_s: float, upto: float = math.inf) -> list[float]:
    """Return when each hold of a partition ended that keeps records from an offset of at most `upto` on."""
    released = {hold_of(c): c.ended_s or end_s for c in facts.of("release")}
    holds = (c for c in facts.of("hold") if hold_of(c)[:2] == log and c.args["offset"] <= upto)
    return [released.get(hold_of(c), end_s) for c in holds]


def broken_holds(facts: Facts) -> Iterator[Anomaly]:
    """The log start is above a held offset, before the hold ended."""
    if facts.heads_removed:
        return
    holds = [c for c in facts.of("hold") if c.outcome is Outcome.OK]
    released = {hold_of(c): c.invoked_s for c in facts.of("release")}
    found = list(facts.ends())
    for hold in holds:
        log = (hold.args["topic"], hold.args["partition"])
        until_s = hold.invoked_s + hold.args["lease_s"] * (1 - CLOCKS)
        until_s = min(until_s, released.get(hold_of(hold), until_s))
        for look, where, log_start, _ in found:
            ended_s = look.ended_s or 0.0
            if where == log and log_start > hold.args["offset"] and ended_s < until_s and ended_s > (hold.ended_s or 0):
                what = f"begins at {log_start}, and {hold.args['offset']} was held"
                yield Anomaly.of(
                    AnomalyKind.BROKEN_HOLD, what, log, hold, look, offsets=(hold.args["offset"], log_start)
                )
                break


def hold_of(call: Call) -> tuple[str, int, str]:
    return call.args["topic"], call.args["partition"], call.args["hold"]


def logs(facts: Facts) -> Iterator[tuple[Log, SettingsHistory]]:
    """Yield the partitions whose topic has settings of its own, and that never lost records in a recovery."""
    revived = {revival.log for revival in facts.history.revivals}
    seen = {(c.args["topic"], c.result[0]) for c in facts.sends if c.outcome is Outcome.OK}
    for log in sorted(seen | set(facts.replicas)):
        if facts.history.topics.get(log[0]) and log not in revived:
            yield log, SettingsHistory(facts, log[0])


def _clocks_were_wrong(facts: Facts) -> bool:
    begun = tuple(f"FAULT {fault}" for fault in WRONG_CLOCKS)
    return any(change.what.startswith(begun) for change in facts.history.changes)


def _brokers(facts: Facts) -> set[int]:
    return {replica.broker for replica in facts.history.replicas}
