"""Transactions: all of one is visible, or nothing; nothing that was rolled back; what was committed, for good and once.

So the sum over all accounts is constant: no transfer is there in part. That no record is there twice, that replicas
agree, and that nothing shown is taken back, is checked with all other records (writes.py, replicas.py, reads.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Log, Outcome


def torn_transactions(facts: Facts) -> Iterator[Anomaly]:
    """A part of a transaction is visible and another part is not; or its records in one partition are not in a row."""
    for call in facts.of("transact"):
        parts = _judged(facts, call)
        there = [name for log, names in parts.items() for name in names if name in facts.places(log)]
        missing = [name for log, names in parts.items() for name in names if name not in facts.places(log)]
        if there and missing:
            what = f"{len(there)} of {len(there) + len(missing)} records of a transaction are there"
            log = next(log for log, names in parts.items() if {*names} & {*missing})
            yield Anomaly.of(AnomalyKind.TORN, what, log, call, records=missing)
            continue
        for log, names in parts.items():
            offsets = tuple(facts.places(log)[name] for name in names if there)
            if offsets and offsets != tuple(range(offsets[0], offsets[0] + len(names))):
                what = "the records of a transaction are not next to each other, as they were sent"
                yield Anomaly.of(AnomalyKind.TORN, what, log, call, records=names, offsets=offsets)


def torn_ends(facts: Facts) -> Iterator[Anomaly]:
    """A partition's end, as a client was told it, lies inside a transaction."""
    inside: dict[Log, list[tuple[int, int, Call]]] = defaultdict(list)
    for call in facts.of("transact"):
        for log, names in _judged(facts, call).items():
            offsets = [facts.places(log)[name] for name in names if name in facts.places(log)]
            if offsets:
                inside[log].append((min(offsets), max(offsets), call))
    for runs in inside.values():
        runs.sort(key=lambda run: run[0])
    for look, log, _, end in facts.ends():
        at = bisect_right(inside.get(log, []), end - 1, key=lambda run: run[0]) - 1
        if at >= 0 and inside[log][at][1] >= end:
            first, last, call = inside[log][at]
            what = f"the end {end} was shown, inside the transaction at offsets {first} to {last}"
            yield Anomaly.of(AnomalyKind.TORN, what, log, look, call, offsets=(end,))


def aborted_transactions(facts: Facts) -> Iterator[Anomaly]:
    """A record of a transaction that was rolled back, fenced, too late, or left open by its program, is visible."""
    for call in facts.of("transact"):
        if call.outcome is not Outcome.FAILED:
            continue
        for log, names in _parts(call).items():
            there = [name for name in names if name in facts.places(log)] if log in facts.finals else []
            if there:
                what = f"its transaction ended with {call.error}, and it is in the log"
                offsets = tuple(facts.places(log)[name] for name in there)
                yield Anomaly.of(AnomalyKind.ABORTED_READ, what, log, call, records=there, offsets=offsets)


def lost_transactions(facts: Facts) -> Iterator[Anomaly]:
    """A commit was acknowledged, and nothing of the transaction is there. (Part of it: `torn_transactions`.)"""
    for call in facts.of("transact"):
        parts = _judged(facts, call) if call.outcome is Outcome.OK else {}
        if parts and not any(name in facts.places(log) for log, names in parts.items() for name in names):
            what = "its commit was acknowledged, and nothing of it is there"
            yield Anomaly.of(AnomalyKind.LOST_WRITE, what, next(iter(parts)), call, records=call.args["records"])


def commits_shown_early(facts: Facts) -> Iterator[Anomaly]:
    """A commit reported that all partitions show the records, and some partition did not show them yet."""
    if not facts.history.commits:
        return
    for call in facts.of("transact"):
        for log, names in _judged(facts, call).items() if call.result else ():
            offset, end = facts.places(log).get(names[-1]), facts.committed_by(log, call)
            if offset is not None and end is not None and offset >= end:
                what = f"said to be visible at offset {offset}, when {end} was the end of the committed records"
                yield Anomaly.of(AnomalyKind.UNCOMMITTED, what, log, call, records=names, offsets=(offset,))


def two_decisions(facts: Facts) -> Iterator[Anomaly]:
    """The answers to repeated commits of one transaction contradict each other."""
    answers: dict[str, list[Call]] = defaultdict(list)
    for call in facts.of("commit_transaction"):
        for record in call.args["records"][:1]:
            answers[record].append(call)
    for record, calls in answers.items():
        ends = [call for call in calls if call.outcome in (Outcome.OK, Outcome.FAILED)]
        if len({call.outcome for call in ends}) > 1:
            what = f"one transaction, and its commits were answered: {', '.join(c.error or 'committed' for c in ends)}"
            yield Anomaly.of(AnomalyKind.TWO_DECISIONS, what, None, *ends, records=(record,))


def commits_of_fenced(facts: Facts) -> Iterator[Anomaly]:
    """A program began or committed a transaction after it was known that another one had taken its id."""
    begins: dict[str, dict[str, list[Call]]] = defaultdict(lambda: defaultdict(list))  # by id, and by program
    for call in facts.of("begin_transaction"):
        begins[call.args["transactional_id"]][call.process].append(call)
    for each, programs in begins.items():
        taken = {program: taken_s for program, calls in programs.items() if (taken_s := _taken_s(calls)) is not None}
        for program, since_s in taken.items():
            later = [by for by in taken if programs[by][0].invoked_s > since_s]
            fenced_s = min((taken[by] for by in later), default=None)
            if fenced_s is not None:
                yield from _after_fencing(facts, each, program, fenced_s)


def _taken_s(begins: list[Call]) -> float | None:
    """When a program was first told that it has the id. None: it never was."""
    return next((call.ended_s for call in begins if call.outcome is Outcome.OK), None)


def _after_fencing(facts: Facts, transactional_id: str, program: str, fenced_s: float) -> Iterator[Anomaly]:
    for call in facts.of("begin_transaction", "commit_transaction"):
        if call.process != program or call.invoked_s <= fenced_s or call.args.get("attempt"):
            continue  # a repeated commit is told what became of the first one
        shown = [name for name in call.args.get("records", ()) if _is_there(facts, name)]
        if call.outcome is Outcome.OK or (call.outcome is Outcome.UNKNOWN and shown):
            what = f"{call.kind} of {transactional_id} at {call.invoked_s:.3f} s, fenced since {fenced_s:.3f} s"
            yield Anomaly.of(AnomalyKind.NOT_FENCED, what, None, call, records=shown)


def _is_there(facts: Facts, name: str) -> bool:
    call = facts.sent[name]
    return any(name in names and name in facts.places(log) for log, names in _parts(call).items())


def transactions_out_of_order(facts: Facts) -> Iterator[Anomaly]:
    """Of one id, a transaction that ended before another one began lies behind it in a partition."""
    by_id: dict[tuple[str, Log], list[tuple[int, Call]]] = defaultdict(list)
    for call in facts.of("transact"):
        for log, names in _judged(facts, call).items():
            if names[0] in facts.places(log):
                by_id[call.args["transactional_id"], log].append((facts.places(log)[names[0]], call))
    for (each, log), placed in by_id.items():
        latest: Call | None = None  # of those at lower offsets, the one that began last
        for offset, call in sorted(placed, key=lambda one: one[0]):
            if latest is not None and call.ended_s is not None and call.ended_s < latest.invoked_s:
                what = f"of {each}, lies behind a transaction that began after its end"
                records = (call.args["records"][0], latest.args["records"][0])
                yield Anomaly.of(AnomalyKind.REORDERED, what, log, call, latest, records=records, offsets=(offset,))
            if latest is None or call.invoked_s > latest.invoked_s:
                latest = call


def unfinished_transactions(facts: Facts) -> Iterator[Anomaly]:
    """After all faults, an id cannot be used, or a transaction under it never ends."""
    for call in facts.of("last_transfer", "unfinished"):
        if call.outcome is not Outcome.OK:
            what = f"no transaction under the id is committed, or none is listed: {call}"
            yield Anomaly.of(AnomalyKind.NO_PROGRESS, what, None, call)
        for transactional_id, number, state in call.result or ():
            what = f"transaction {number} of {transactional_id} is {state}, and some partition never carries that out"
            yield Anomaly.of(AnomalyKind.STUCK, what, None, call)


def _parts(call: Call) -> dict[Log, list[str]]:
    return {(call.args["topic"], partition): names for partition, names in call.args["parts"]}


def _judged(facts: Facts, call: Call) -> dict[Log, list[str]]:
    """The parts of a transaction, by log. Empty where logs are not whole, so that a missing record shows nothing."""
    parts = _parts(call)
    return parts if all(facts.is_whole(log) for log in parts) else {}
