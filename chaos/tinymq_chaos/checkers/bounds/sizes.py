"""The reported size of a queue, or of its remainder for a channel, was true at some time during the call.

A leader answers after it has proved its leadership, so the size counts everything that was over before the call, trims
included. The checker skips partitions from which records go by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.bounds.stale_reads import end_at, ends_of
from tinymq_chaos.checkers.bounds.trims import log_of
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.common.settings import BOUNDS, SettingsHistory
from tinymq_chaos.history import Call, Log, Outcome


def miscounted(facts: Facts) -> Iterator[Anomaly]:
    """Fewer records are left for a channel than certainly existed, or more than can have existed. (For fewer than were
    acknowledged see stale_reads.py.)
    """
    ends = ends_of(facts)
    for call in facts.of("size"):
        log = log_of(call)
        if call.outcome is not Outcome.OK or _something_went(facts, log):
            continue
        most = facts.committed_by(log, call)
        if not call.args["channel"]:
            least, gone = 0, _trimmed(facts, call, log)
        else:
            asked, gone = _takings(facts, call, log)
            least = end_at(ends, log, call.invoked_s) - asked
        if call.result < least or (most is not None and call.result > most - gone):
            upto = "" if most is None else f", and at most {most - gone}"
            what = f"reported as {call.result}, and at least {max(0, least)} were left{upto}"
            yield Anomaly.of(AnomalyKind.MISCOUNTED, what, log, call)


def _something_went(facts: Facts, log: Log) -> bool:
    """Return whether records went by themselves, by a fault, or by a trim without an answer."""
    return facts.heads_removed or SettingsHistory(facts, log[0]).only(*BOUNDS)


def _trimmed(facts: Facts, call: Call, log: Log) -> int:
    """Return the lowest log start that is possible when the call begins."""
    trims = [c for c in facts.of("trim") if c.outcome is Outcome.OK and log_of(c) == log]
    return max((c.result for c in trims if (c.ended_s or 0.0) <= call.invoked_s), default=0)


def _takings(facts: Facts, call: Call, log: Log) -> tuple[int, int]:
    """Return (how many requests may have taken a record by the end of the call, the cursor's position when it
    began)."""
    asked: set[str] = set()
    cursor = 0
    for take in facts.of("consume"):
        if (take.args["topic"], take.args["channel"]) != (log[0], call.args["channel"]):
            continue
        if take.args["partition"] not in (log[1], None) or take.invoked_s > (call.ended_s or 0.0):
            continue
        asked.add(take.args["request"])
        if take.outcome is Outcome.OK and take.result is not None and (take.ended_s or 0.0) <= call.invoked_s:
            cursor = max(cursor, take.result[0] + 1)
    return len(asked), cursor
