"""Numbers that the registry gives once: those of partitions in their topic, and epochs of a channel's consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Outcome


def given_twice(facts: Facts) -> Iterator[Anomaly]:
    """Two calls got the same number, or a later call a lower number than an earlier one."""
    newest: dict[Any, tuple[int, Call]] = {}
    for call in sorted(facts.of("add_partition", "open_channel"), key=lambda c: c.ended_s or 0.0):
        found = _given(call)
        if found is None:
            continue
        what, number = found
        before = newest.get(what)
        if before is not None and number <= before[0] and (number == before[0] or _earlier(before[1], call)):
            message = f"{what[0]} {number} is given, and {before[0]} was given before"
            log = (call.args["topic"], call.args.get("partition", number))
            yield Anomaly.of(AnomalyKind.GIVEN_TWICE, message, log, before[1], call)
        if before is None or number > before[0]:
            newest[what] = number, call


def _given(call: Call) -> tuple[tuple[Any, ...], int] | None:
    if call.outcome is not Outcome.OK:
        return None
    if call.kind == "add_partition":
        return ("partition", call.args["topic"]), call.result
    if "epoch" not in call.args:
        return None
    return ("epoch", call.args["topic"], call.args["partition"], call.args["channel"]), call.args["epoch"]


def _earlier(before: Call, call: Call) -> bool:
    return before.ended_s is not None and before.ended_s < call.invoked_s
