"""Leadership transfers: the reported leader did lead, and a transfer is fast when all is well."""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.bounds.trims import log_of
from tinymq_chaos.checkers.cluster.deadlines import SETTLED_S
from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Outcome

MOVED_S = 0.5  # in quiet times, and four times over a link
LINKS = 8


def moved_elsewhere(facts: Facts) -> Iterator[Anomaly]:
    """The broker that the answer names as leader never led during the call; or, in quiet times, it is not the requested
    one.
    """
    leaders = facts.history.leaders.values()
    for call in _done(facts):
        log, ended_s = log_of(call), call.ended_s or 0.0
        terms = [led for led in leaders if led.log == log]
        then = [led for led in terms if led.at_s <= ended_s and (led.until_s is None or led.until_s >= call.invoked_s)]
        if terms and call.result not in {led.broker for led in then}:
            leading = sorted({led.broker for led in then})
            what = f"broker {call.result} is reported as the leader, and the leaders were {leading}"
            yield Anomaly.of(AnomalyKind.NOT_MOVED, what, log, call)
        elif _quiet(facts, call) and call.args["to"] not in (None, call.result):
            what = f"broker {call.result} leads, and broker {call.args['to']} was requested"
            yield Anomaly.of(AnomalyKind.NOT_MOVED, what, log, call)


def slow_moves(facts: Facts) -> Iterator[Anomaly]:
    """In quiet times a transfer takes too long."""
    most_s = MOVED_S + LINKS * facts.history.link_s
    for call in facts.of("transfer"):
        took_s = (call.ended_s or call.deadline_s) - call.invoked_s
        if _quiet(facts, call) and call.outcome is not Outcome.FAILED and took_s > most_s:
            yield Anomaly.of(AnomalyKind.NOT_MOVED, f"it takes {took_s:.3f} s: {call}", log_of(call), call)


def _done(facts: Facts) -> Iterator[Call]:
    return (call for call in facts.of("transfer") if call.outcome is Outcome.OK)


def _quiet(facts: Facts, call: Call) -> bool:
    calm_s = facts.history.calm_s
    return calm_s is not None and call.invoked_s >= calm_s + SETTLED_S
