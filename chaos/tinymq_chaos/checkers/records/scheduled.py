"""Delayed records: none is early, lost or there twice, and no canceled one is there.

Early and late count by the append times of the log: a client's clock says nothing about them. That none is there twice
is checked with all other sends (writes.duplicates).
"""

from __future__ import annotations

from collections.abc import Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import Call, Log, Outcome

LATE_US = 2_000_000  # of append time after the due time: a record that is not there by then is lost


def delivered_before_due(facts: Facts) -> Iterator[Anomaly]:
    """A delayed record is in an entry with an earlier append time than it was due."""
    due = {call.args["records"][0]: call for call in _stored(facts)}
    for log, times in _append_times(facts).items():
        for name, (offset, append_us) in times.items():
            call = due.get(name)
            if call is not None and append_us < call.result[2]:
                what = f"appended {call.result[2] - append_us} us before it was due"
                yield Anomaly.of(AnomalyKind.TOO_EARLY, what, log, call, records=(name,), offsets=(offset,))


def canceled_and_delivered(facts: Facts) -> Iterator[Anomaly]:
    """A canceled record, or one whose send failed for certain, is in the log, or was shown."""
    gone = {c.args["records"][0]: c for c in facts.of("cancel") if c.outcome is Outcome.OK and c.result}
    gone.update({c.args["records"][0]: c for c in facts.of("schedule") if c.outcome is Outcome.FAILED})
    for log in facts.finals:
        for name in sorted(gone.keys() & facts.places(log).keys()):
            call, offset = gone[name], facts.places(log)[name]
            what = "canceled" if call.kind == "cancel" else f"its send failed with {call.error}"
            what += ", and it is in the log"
            yield Anomaly.of(AnomalyKind.ABORTED_READ, what, log, call, records=(name,), offsets=(offset,))


def scheduled_and_lost(facts: Facts) -> Iterator[Anomaly]:
    """A delayed record is not in the log, although it was due long ago, or a cancel was told that it had ended."""
    cancels = {call.args["records"][0]: call for call in facts.of("cancel")}
    times = _append_times(facts)
    for call in _stored(facts):
        name, log = call.args["records"][0], _log_of(call)
        final, cancel = facts.finals.get(log), cancels.get(name)
        if final is None or not final.certain or final.start or facts.is_gone(log) or name in facts.places(log):
            continue
        if cancel is not None and cancel.outcome is Outcome.OK and not cancel.result:
            what = "said to have been delivered, and it is not there"
            yield Anomaly.of(AnomalyKind.LOST_WRITE, what, log, call, cancel, records=(name,))
        elif cancel is None or cancel.outcome is Outcome.FAILED:
            newest_us = max((append_us for _, append_us in times.get(log, {}).values()), default=0)
            if newest_us > call.result[2] + LATE_US:
                what = f"due {(newest_us - call.result[2]) / 1e6:.1f} s before the newest record, and it is not there"
                yield Anomaly.of(AnomalyKind.LOST_WRITE, what, log, call, records=(name,))


def _stored(facts: Facts) -> Iterator[Call]:
    """The delayed records that a quorum has acknowledged."""
    return (call for call in facts.of("schedule") if call.outcome is Outcome.OK)


def _log_of(call: Call) -> Log:
    return call.args["topic"], call.args["partition"]


def _append_times(facts: Facts) -> dict[Log, dict[str, tuple[int, int]]]:
    """By log and record: its offset, and the append time of its entry."""
    found: dict[Log, dict[str, tuple[int, int]]] = {}
    for log in {_log_of(call) for call in facts.of("schedule")}:
        names = found[log] = {}
        for entry in (entry for replica in facts.replicas.get(log, ()) for entry in replica.entries):
            if entry.append_time_us is not None:
                for offset, name in enumerate(entry.records, entry.base_offset):
                    names[name] = offset, entry.append_time_us
    return found
