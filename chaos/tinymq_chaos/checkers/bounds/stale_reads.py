"""Reads of partitions that are linearizable by promise: what was over when one began is in its answer.

Few are. A leader that counts a queue (GetQueueSize), or has nothing for a taker (Consume), asks a majority first if it
leads still. Readers, offsets and FetchMessage are answered by whoever is asked, as far as that one knows: their end may
be one of the past, and nothing is said of it here. Nor of partitions from which records go by themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from tinymq_chaos.checkers.bounds.trims import log_of
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind, times
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.settings import BOUNDS, SettingsHistory
from tinymq_chaos.checkers.records.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome

Ends = dict[Log, tuple[list[float], list[int]]]
"""When writes were acknowledged, in order; and where the partition ended at least from then on."""

Channel = tuple[str, str, int | None]
"""(TOPIC, channel, partition); None: whichever had something."""


def stale_reads(facts: Facts) -> Iterator[Anomaly]:
    """A size that is too small by what was acknowledged before it was asked for, and a taker that is given nothing
    when there was something by then."""
    sizes = [c for c in facts.of("size") if c.outcome is Outcome.OK and not c.args["channel"]]
    nothings = [c for c in facts.of("consume") if c.outcome is Outcome.OK and c.result is None]
    if not (sizes or nothings) or facts.heads_removed:
        return
    bounded = {
        topic for topic in {c.args["topic"] for c in (*sizes, *nothings)} if SettingsHistory(facts, topic).only(*BOUNDS)
    }
    ends, trims = ends_of(facts), _trims(facts)
    for call in sizes:
        log = log_of(call)
        trimmed = max((to for since_s, to in trims.get(log, ()) if since_s <= (call.ended_s or 0.0)), default=0)
        due = end_at(ends, log, call.invoked_s) - trimmed
        if call.result < due and log[0] not in bounded:
            yield _anomaly(f"said to keep {call.result}, and {due} were acknowledged before it was asked", call)
    takings = _takings(facts)
    moved = {(c.args["topic"], c.args["channel"]) for c in facts.of("commit", "seek")}  # cursors, not by takers alone
    for call in nothings:
        log, place = log_of(call), (call.args["topic"], call.args["channel"])
        if log[1] is None or log[0] in bounded or log in trims or log in facts.maybe_deleted_logs or place in moved:
            continue
        due, end_s = end_at(ends, log, call.invoked_s), call.ended_s or 0.0
        taken = sum(bisect_right(takings.get((*place, number), []), end_s) for number in (log[1], None))
        if due > taken:
            what = f"channel {place[1]} had nothing to give, when {due} were acknowledged, and {taken} taken at most"
            yield _anomaly(what, call)


def ends_of(facts: Facts) -> Ends:
    """Of all that a quorum acknowledged."""
    told: dict[Log, list[tuple[float, int]]] = defaultdict(list)
    for send in acknowledged(facts):
        log, base, names = place_of(send)
        if send.ended_s is not None:
            told[log].append((send.ended_s, base + len(names)))
    return {
        log: ([at_s for at_s, _ in sorted(each)], list(accumulate((end for _, end in sorted(each)), max)))
        for log, each in told.items()
    }


def end_at(ends: Ends, log: Log, at_s: float) -> int:
    """Where a partition surely ended then; 0 of one to which nothing was written."""
    if log not in ends:
        return 0
    times_s, known = ends[log]
    at = bisect_right(times_s, at_s)
    return known[at - 1] if at else 0


def _trims(facts: Facts) -> dict[Log, list[tuple[float, int]]]:
    """(when, up to where) records may have been trimmed."""
    found: dict[Log, list[tuple[float, int]]] = defaultdict(list)
    for call in facts.of("trim"):
        if call.outcome is not Outcome.FAILED:
            found[log_of(call)].append((call.invoked_s, call.args["before"]))
    return dict(found)


def _takings(facts: Facts) -> dict[Channel, list[float]]:
    """When requests that may have taken a record were first made, in order."""
    first: dict[Channel, dict[str, float]] = defaultdict(dict)
    for call in facts.of("consume"):
        nothing = call.outcome is Outcome.FAILED or (call.outcome is Outcome.OK and call.result is None)
        if not nothing:
            of = call.args["topic"], call.args["channel"], call.args["partition"]
            first[of].setdefault(call.args["request"], call.invoked_s)
    return {of: sorted(requests.values()) for of, requests in first.items()}


def _anomaly(what: str, call: Call) -> Anomaly:
    return Anomaly(AnomalyKind.STALE, what, log_of(call), processes=(call.process,), times_s=times(call))
