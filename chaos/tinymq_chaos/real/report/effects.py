"""The effects of faults as clients saw them: when requested writes had no acknowledgement, and when each broker led."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tinymq_chaos.checkers.common.anomaly import Anomaly
from tinymq_chaos.history import Call, FaultSpan, History, LeaderSpan, Log, Outcome

SETTLE_S = 10.0  # after a fault's end, or until the next fault begins: problems in this time count to the fault
GIVEN_UP_S = 1.0  # after a failure without another request for so long, no client was waiting


@dataclass(frozen=True, slots=True)
class Silence:
    """The time from the first moment at which a write to the partition was waiting, to the next acknowledgement."""

    log: Log
    began_s: float
    ended_s: float

    def within(self, from_s: float, until_s: float) -> float:
        """Return how many seconds of it lie between two times."""
        return max(0.0, min(self.ended_s, until_s) - max(self.began_s, from_s))


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one fault. If faults overlap, what happens meanwhile counts to each."""

    fault: FaultSpan
    until_s: float  # end of the observed time
    while_s: Mapping[Log, float]  # longest silence by partition, as far as it lies within the fault
    after_s: Mapping[Log, float]  # and after its end
    leader_changes: int
    anomalies: int

    @property
    def worst_while_s(self) -> float:
        return max(self.while_s.values(), default=0.0)

    @property
    def worst_after_s(self) -> float:
        return max(self.after_s.values(), default=0.0)


def log_of(send: Call) -> Log | None:
    """Return the log to which a send went; None: unknown."""
    partition = send.args.get("partition")
    if partition is None and send.outcome is Outcome.OK:
        partition = send.result[0]
    return None if partition is None else (send.args["topic"], partition)


def is_acknowledged(send: Call) -> bool:
    """Return whether the call ended ok with a broker's answer."""
    return send.outcome is Outcome.OK and send.result[1] >= 0


def silences(history: History, end_s: float) -> dict[Log, list[Silence]]:
    """Return the silences by partition, in order.

    Without a requested write there is none, however long no write is acknowledged.
    """
    sends: dict[Log, list[Call]] = {}
    for send in history.of("send"):
        log = log_of(send)
        if log is not None and (is_acknowledged(send) or send.outcome is not Outcome.OK):
            sends.setdefault(log, []).append(send)
    deleted = {c.args["name"] for c in history.of("delete_topic") if c.outcome is not Outcome.FAILED}
    return {
        log: list(_silences(log, calls, end_s, log[0].partition("#")[0] in deleted)) for log, calls in sends.items()
    }


def _silences(log: Log, sends: Sequence[Call], end_s: float, deleted: bool) -> Iterable[Silence]:
    """Yield silences. One that no acknowledgement ends lasts as long as a client waits, unless the topic was
    deleted."""
    begins = [(send.invoked_s, 0, None) for send in sends]
    ends = [(end_s if send.ended_s is None else send.ended_s, 1, send) for send in sends]
    waiting, began_s, last_s = 0, None, 0.0  # last_s: when the last of them ended
    for at_s, _, send in sorted([*begins, *ends], key=lambda event: event[:2]):
        if send is None:
            if began_s is not None and not waiting and at_s - last_s > GIVEN_UP_S:
                yield Silence(log, began_s, last_s)
                began_s = None
            waiting += 1
            began_s = at_s if began_s is None else began_s
            continue
        waiting, last_s = waiting - 1, at_s
        if is_acknowledged(send):
            if began_s is not None and at_s > began_s:
                yield Silence(log, began_s, at_s)
            began_s = at_s if waiting else None
    if began_s is not None and last_s > began_s and not deleted:
        yield Silence(log, began_s, last_s)


def leaders_by_log(history: History) -> dict[Log, list[LeaderSpan]]:
    """Return the leaders of each log in the order of terms."""
    found: dict[Log, list[LeaderSpan]] = {}
    for led in sorted(history.leaders.values(), key=lambda led: (led.log, led.term, led.at_s)):
        found.setdefault(led.log, []).append(led)
    return dict(sorted(found.items()))


def leader_changes(history: History) -> list[LeaderSpan]:
    """Return all leaders except the first one of each partition."""
    return [later for leaders in leaders_by_log(history).values() for _, later in pairwise(leaders)]


def effects(
    history: History, silent: Mapping[Log, Sequence[Silence]], anomalies: Iterable[Anomaly | str], end_s: float
) -> list[Effect]:
    """Return the effects of every fault, in the order of their beginnings."""
    changes = [led.at_s for led in leader_changes(history)]
    found = [anomaly.times_s for anomaly in anomalies if isinstance(anomaly, Anomaly)]
    begins = sorted(fault.began_s for fault in history.faults)
    result = []
    for fault in history.faults:
        ended_s = end_s if fault.ended_s is None else fault.ended_s
        next_s = next((at_s for at_s in begins if at_s > ended_s), end_s)
        until_s = min(ended_s + SETTLE_S, max(ended_s, next_s))
        result.append(
            Effect(
                fault,
                until_s,
                {log: _longest(each, fault.began_s, ended_s) for log, each in silent.items()},
                {log: _longest_after(each, ended_s, until_s) for log, each in silent.items()},
                sum(fault.began_s <= at_s <= until_s for at_s in changes),
                sum(any(fault.began_s <= at_s <= until_s for at_s in times_s) for times_s in found),
            )
        )
    return result


def _longest(each: Sequence[Silence], from_s: float, until_s: float) -> float:
    """Return the longest silence, as far as it lies between two times."""
    return max((silence.within(from_s, until_s) for silence in _touching(each, from_s, until_s)), default=0.0)


def _longest_after(each: Sequence[Silence], ended_s: float, until_s: float) -> float:
    """Return the longest of the silences that last beyond the end, or begin soon after it, with their full length."""
    after = (s.ended_s - max(s.began_s, ended_s) for s in _touching(each, ended_s, until_s))
    return max(after, default=0.0)


def _touching(each: Sequence[Silence], from_s: float, until_s: float) -> Sequence[Silence]:
    """Return the silences that end after `from_s` and begin before `until_s`: they are in a row."""
    first = bisect_right(each, from_s, key=lambda silence: silence.ended_s)
    return each[first : bisect_left(each, until_s, lo=first, key=lambda silence: silence.began_s)]
