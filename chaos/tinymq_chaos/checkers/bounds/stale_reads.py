"""Linearizable reads of partitions: an answer includes everything that was over when the read began.

Few reads promise that. A leader that counts a queue (GetQueueSize), or has no record for a taker (Consume), first
confirms with a majority that it still leads. Any replica answers readers, offsets and FetchMessage from what it knows,
so their ends may be of the past, and the checker skips them. It also skips partitions from which records go by
themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from tinymq_chaos.checkers.bounds.trims import log_of, trimmed_to, trims_of
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.settings import BOUNDS, SettingsHistory
from tinymq_chaos.checkers.records.writes import acknowledged, place_of
from tinymq_chaos.history import Call, Log, Outcome

Ends = dict[Log, tuple[list[float], list[int]]]
"""The times at which writes were acknowledged, in order, and the least end of the partition from then on."""

Channel = tuple[str, str, int | None]
"""(TOPIC, channel, partition); None: any partition that had a record."""


def stale_reads(facts: Facts) -> Iterator[Anomaly]:
    """A size lacks records that were acknowledged before the request, or a taker got none although there was one."""
    sizes = [c for c in facts.of("size") if c.outcome is Outcome.OK and not c.args["channel"]]
    nothings = [c for c in facts.of("consume") if c.outcome is Outcome.OK and c.result is None]
    if not (sizes or nothings) or facts.heads_removed:
        return
    bounded = {
        topic for topic in {c.args["topic"] for c in (*sizes, *nothings)} if SettingsHistory(facts, topic).only(*BOUNDS)
    }
    ends, trims = ends_of(facts), trims_of(facts)
    for call in sizes:
        log = log_of(call)
        due = end_at(ends, log, call.invoked_s) - trimmed_to(trims, log, call.ended_s or 0.0)
        if call.result < due and log[0] not in bounded:
            yield _anomaly(f"reported as {call.result}, and {due} were acknowledged before the request", call)
    takings = _takings(facts)
    # cursors that commits and seeks move, besides takers
    moved = {(c.args["topic"], c.args["channel"]) for c in facts.of("commit", "seek")}
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
    """Return the ends of all writes that a quorum acknowledged."""
    ends: dict[Log, list[tuple[float, int]]] = defaultdict(list)
    for send in acknowledged(facts):
        log, base, names = place_of(send)
        if send.ended_s is not None:
            ends[log].append((send.ended_s, base + len(names)))
    return {
        log: ([at_s for at_s, _ in sorted(each)], list(accumulate((end for _, end in sorted(each)), max)))
        for log, each in ends.items()
    }


def end_at(ends: Ends, log: Log, at_s: float) -> int:
    """Return the certain end of a partition at a time; 0 if nothing was written to it."""
    if log not in ends:
        return 0
    times_s, known = ends[log]
    at = bisect_right(times_s, at_s)
    return known[at - 1] if at else 0


def _takings(facts: Facts) -> dict[Channel, list[float]]:
    """Return the times, in order, of the first attempt of each request that may have taken a record."""
    first: dict[Channel, dict[str, float]] = defaultdict(dict)
    for call in facts.of("consume"):
        nothing = call.outcome is Outcome.FAILED or (call.outcome is Outcome.OK and call.result is None)
        if not nothing:
            of = call.args["topic"], call.args["channel"], call.args["partition"]
            first[of].setdefault(call.args["request"], call.invoked_s)
    return {of: sorted(requests.values()) for of, requests in first.items()}


def _anomaly(what: str, call: Call) -> Anomaly:
    return Anomaly.of(AnomalyKind.STALE, what, log_of(call), call)
