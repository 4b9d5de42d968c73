"""Half messages: visible once if they are committed, never if they are rolled back, and not before their decision.

A *word* is what somebody says of a half message: its sender, a checker, or an operator. The first one decides. After a
roll-back a commit fails with TransactionAborted, and after a commit a roll-back fails with InvalidRequest.

That none is there twice is checked with all other sends (writes.duplicates).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import WRONG_CLOCKS, Facts
from tinymq_chaos.history import Call, Log, Outcome


@dataclass(slots=True)
class Half:
    """A half message, and what was said of it."""

    call: Call
    ends: list[Call] = field(default_factory=list)  # calls of its sender and of operators
    checks: list[Call] = field(default_factory=list)  # that were answered

    @property
    def record(self) -> str:
        name: str = self.call.args["records"][0]
        return name

    @property
    def log(self) -> Log:
        return self.call.args["topic"], self.call.args["partition"]

    @property
    def stored(self) -> bool:
        return self.call.outcome is Outcome.OK

    @property
    def committed(self) -> list[Call]:
        """The answers that say that it is committed."""
        return [end for end in self.ends if _says(end, committed=True)]

    @property
    def rolled_back(self) -> list[Call]:
        """The answers that say that it is rolled back."""
        return [end for end in self.ends if _says(end, committed=False)]

    def words(self, *, commit: bool) -> list[tuple[float, Call]]:
        """Return the words that may have decided so, and when each was said."""
        verdict = "commit" if commit else "rollback"
        checks = [(check.ended_s or 0.0, check) for check in self.checks if check.result == verdict]
        return [*((end.invoked_s, end) for end in self.ends if end.args["commit"] == commit), *checks]


def _says(end: Call, *, committed: bool) -> bool:
    if end.args["commit"] == committed:
        return end.outcome is Outcome.OK
    return end.error == ("InvalidRequest" if committed else "TransactionAborted")


def shown_undecided(facts: Facts) -> Iterator[Anomaly]:
    """A half message is visible, and nobody has committed it, or nobody had by then."""
    halves = _halves(facts)
    seen = _seen(facts, halves)
    for half in halves.values():
        if half.record not in seen:
            continue
        at_s, call = seen[half.record]
        words = half.words(commit=True)
        first_s = min((said_s for said_s, _ in words), default=None)
        if first_s is None or at_s < first_s:
            what = "visible, and nobody has committed it"
            if first_s is not None:
                what = f"visible at {at_s:.3f} s, and nobody committed it before {first_s:.3f} s"
            yield Anomaly.of(
                AnomalyKind.UNDECIDED, what, half.log, half.call, *([call] if call is not None else []),
                records=(half.record,),
            )  # fmt: skip


def rolled_back_and_shown(facts: Facts) -> Iterator[Anomaly]:
    """A half message is in the log that was rolled back, or whose send failed."""
    for half in _halves(facts).values():
        offset = facts.places(half.log).get(half.record)
        if offset is None or half.log not in facts.finals or half.committed:
            continue  # two answers that contradict each other: `two_outcomes`
        refused = [half.call] if half.call.outcome is Outcome.FAILED else []
        for call in [*half.rolled_back, *refused][:1]:
            what = f"{call.kind} was answered with {call.error or 'rolled back'}, and it is in the log"
            yield Anomaly.of(
                AnomalyKind.ABORTED_READ, what, half.log, half.call, call, records=(half.record,), offsets=(offset,)
            )


def committed_and_lost(facts: Facts) -> Iterator[Anomaly]:
    """A commit was confirmed and the record is not there; or it is dropped, and nobody has rolled it back."""
    over = [call for call in facts.of("halves_over") if call.outcome is Outcome.OK]
    for half in _halves(facts).values():
        if half.record in facts.places(half.log) or not facts.is_whole(half.log) or not half.stored or not over:
            continue
        if half.committed and not half.rolled_back:
            what = "its commit was confirmed, and it is not there"
            yield Anomaly.of(AnomalyKind.LOST_WRITE, what, half.log, half.call, *half.committed, records=(half.record,))
        elif not half.words(commit=False):
            what = "stored, and dropped although nobody has rolled it back"
            yield Anomaly.of(AnomalyKind.LOST_WRITE, what, half.log, half.call, records=(half.record,))


def two_outcomes(facts: Facts) -> Iterator[Anomaly]:
    """Answers on one half message contradict each other."""
    for half in _halves(facts).values():
        if half.committed and half.rolled_back:
            calls = (half.committed[0], half.rolled_back[0])
            what = "one half message, and it is said to be committed, and to be rolled back"
            yield Anomaly.of(AnomalyKind.TWO_DECISIONS, what, half.log, *calls, records=(half.record,))


def halves_shown_early(facts: Facts) -> Iterator[Anomaly]:
    """A commit that says that the partition shows the record, and it did not yet."""
    for half in _halves(facts).values():
        offset = facts.places(half.log).get(half.record)
        for call in half.ends if offset is not None else ():
            end = facts.committed_by(half.log, call) if call.outcome is Outcome.OK and call.result else None
            if end is not None and offset is not None and offset >= end:
                what = f"said to be visible at offset {offset}, when {end} was the end of the committed records"
                yield Anomaly.of(AnomalyKind.UNCOMMITTED, what, half.log, call, records=(half.record,))


def halves_left_open(facts: Facts) -> Iterator[Anomaly]:
    """After all faults, no checker is asked about a half message that is due, or some cannot be ended."""
    wrong = any(change.what.startswith(f"FAULT {kind}") for change in facts.history.changes for kind in WRONG_CLOCKS)
    for call in facts.of("halves_over"):
        if call.outcome is not Outcome.OK:
            yield Anomaly.of(AnomalyKind.NO_PROGRESS, f"some half messages stay open: {call}", None, call)
        for record, overdue in call.result or ():
            if overdue and not wrong:  # due times are by the append clock
                what = "its check is overdue, and no checker was asked"
                yield Anomaly.of(AnomalyKind.STUCK, what, None, call, records=(record,))


def _halves(facts: Facts) -> dict[str, Half]:
    """The half messages, by record."""
    halves = {call.args["records"][0]: Half(call) for call in facts.of("half")}
    for call in facts.of("end_half"):
        halves[call.args["records"][0]].ends.append(call)
    for call in facts.of("check_half"):
        if call.outcome is Outcome.OK and call.args["records"][0] in halves:
            halves[call.args["records"][0]].checks.append(call)
    return halves


def _seen(facts: Facts, halves: dict[str, Half]) -> dict[str, tuple[float, Call | None]]:
    """By record: when it was certainly visible, as far back as is known, and the call that shows it, if one does."""
    seen: dict[str, tuple[float, Call | None]] = {}
    known: dict[Log, list[tuple[float, int]]] = defaultdict(list, facts.history.commits)
    for half in halves.values():
        offset = facts.places(half.log).get(half.record)
        if offset is not None:
            seen[half.record] = (
                min((at_s for at_s, end in known[half.log] if end > offset), default=facts.history.ended_s or 0.0),
                None,
            )
    for shown in facts.shown if halves else ():
        for name in shown.names:
            at_s = shown.call.ended_s or 0.0
            if name in halves and (name not in seen or at_s < seen[name][0]):
                seen[name] = at_s, shown.call
    return seen
