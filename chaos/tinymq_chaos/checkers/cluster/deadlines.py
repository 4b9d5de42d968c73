"""Every call ends by its deadline, and soon after the last fault the cluster serves again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from tinymq_chaos.checkers.bounds.capacity import QUOTA
from tinymq_chaos.checkers.bounds.retention import hold_of
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import CLOCKS, Facts
from tinymq_chaos.history import METADATA, Call, Log, Outcome

LATE_S = 0.1  # by which a call may end after its deadline: the time until the caller hears of it
LATE_SHARE = 0.06  # of the deadline, in addition: clocks may run 5 % apart
PROGRESS_S = 5.0
CHANCE_S = 0.5  # a call is judged only if it had this time after the last fault
SETTLED_S = 2.0  # after the last fault; writes are fast again from then on
SLOW_S = 0.04  # the time for a write without its links: most writes take a tenth of it
SLOW_LINKS = 2 * 4  # to the leader, to a follower, and back; in a stream, a write waits for those in flight
CHANGES = ("create_topic", "delete_topic")


def unanswered(facts: Facts, late_s: float = LATE_S) -> Iterator[Anomaly]:
    """Calls that did not end by their deadline and `late_s`."""
    end = facts.history.ended_s
    for call in facts.history.calls:
        allowed_s = call.deadline_s + late_s + LATE_SHARE * (call.deadline_s - call.invoked_s)
        if call.outcome is Outcome.PENDING:
            if end is not None and end > allowed_s:
                yield _late(call, f"{call.kind} never ended")
        elif call.ended_s is not None and call.ended_s > allowed_s:
            yield _late(call, f"{call.kind} ended {call.ended_s - call.deadline_s:.3f} s after its deadline")


def _late(call: Call, what: str) -> Anomaly:
    records = tuple(call.args.get("records", ()))
    at = (call.invoked_s, call.deadline_s)
    return Anomaly(
        AnomalyKind.NO_ANSWER,
        f"{what}: {call}",
        None,
        records=records,
        offsets=(),
        processes=(call.process,),
        times_s=at,
    )


def no_progress(facts: Facts, within_s: float = PROGRESS_S) -> Iterator[Anomaly]:
    """Within `within_s` after the last fault, every written partition acknowledges a write, the metadata changes, and
    readers read to the end; report what did not.
    """
    calm_s, end_s = facts.history.calm_s, facts.history.ended_s
    if calm_s is None or end_s is None:
        return
    until = calm_s + within_s
    for log, calls in _asked(facts).items():
        waiting = [c for c in calls if _has_time(c, calm_s, until) and (c.ended_s is None or c.ended_s > calm_s)]
        held = _held(facts, log)
        waiting = [c for c in waiting if not _waits_for_hold(c, held)]
        served = [c for c in waiting if c.outcome is Outcome.OK and c.ended_s is not None and c.ended_s <= until]
        if waiting and not served and end_s >= until and not facts.is_gone(log):
            how = waiting[0]
            what = f"nothing was done within {within_s:g} s of the last fault, at {calm_s:.3f} s: {how}"
            yield Anomaly.of(AnomalyKind.NO_PROGRESS, what, log, how)
    for call in facts.of("drain"):
        if call.outcome is not Outcome.OK:
            what = f"could not be read to the end: {call}"
            yield Anomaly.of(AnomalyKind.NO_PROGRESS, what, None, call)


def _held(facts: Facts, log: Log) -> list[tuple[float, float]]:
    """Return the times in which a hold may keep a leader from making room (`on_full=drop_oldest`), or a producer from
    retrying, because the leader told the producer to wait for the end of the lease.
    """
    if facts.history.topics.get(log[0], {}).get("on_full") != "drop_oldest":
        return []
    released = {hold_of(c): c.ended_s for c in facts.of("release")}
    return [
        (c.invoked_s, (released.get(hold_of(c)) or math.inf) + c.args["lease_s"] * (1 + CLOCKS))
        for c in facts.of("hold")
        if hold_of(c)[:2] == log and c.outcome is not Outcome.FAILED
    ]


def _waits_for_hold(call: Call, held: list[tuple[float, float]]) -> bool:
    """Was the call refused because the partition was full while a hold existed, or acknowledged only after that hold?
    The leader is alive then, and answers as docs/guarantees.md promises. A hold does not explain any other end."""
    if call.error != QUOTA and call.outcome not in (Outcome.OK, Outcome.PENDING):
        return False
    ended_s = math.inf if call.ended_s is None else call.ended_s
    return any(since_s <= ended_s and call.invoked_s <= until_s for since_s, until_s in held)


def _has_time(call: Call, calm_s: float, until: float) -> bool:
    """Return whether a call had time to show progress: one that ended right after the faults shows nothing."""
    end_s = min(call.deadline_s, until)
    if call.invoked_s < calm_s and call.ended_s is not None:
        end_s = min(end_s, call.ended_s)
    return end_s - max(call.invoked_s, calm_s) >= CHANCE_S


def slow_writes(facts: Facts, slow_s: float = SLOW_S) -> Iterator[Anomaly]:
    """Report if, once all is quiet, half of the writes take longer than `slow_s` and SLOW_LINKS times a link."""
    if facts.history.calm_s is None:
        return
    quiet_s = facts.history.calm_s + SETTLED_S
    full = _may_be_full(facts)
    sends = [c for c in facts.sends if c.args["topic"] not in full]
    took = [c.ended_s - c.invoked_s for c in sends if c.invoked_s >= quiet_s and c.ended_s is not None]
    if len(took) >= 20 and median(took) > slow_s + SLOW_LINKS * facts.history.link_s:
        yield Anomaly(
            AnomalyKind.SLOW, f"half of {len(took)} writes took longer than {median(took):.3f} s", times_s=(quiet_s,)
        )


def _asked(facts: Facts) -> dict[Log, list[Call]]:
    asked: dict[Log, list[Call]] = {}
    full = _may_be_full(facts)
    for call in facts.sends:
        if call.args["topic"] in full:
            continue  # the leader exists and refuses
        partition = call.result[0] if call.outcome is Outcome.OK else call.args.get("partition")
        if partition is not None:
            asked.setdefault((call.args["topic"], partition), []).append(call)
    asked[METADATA] = [call for call in facts.of(*CHANGES) if not _refused(call)]
    return asked


def _may_be_full(facts: Facts) -> set[str]:
    """Return the topics whose writers wait until a trim makes room."""
    return {topic for topic, settings in facts.history.topics.items() if settings.get("on_full") == "reject"}


def _refused(call: Call) -> bool:
    """Return whether the registry answered the call with a refusal, which counts as progress."""
    return call.error in ("TopicExists", "UnknownTopic")
