"""The settings of a topic over time: which values may have been in force at a moment.

An alteration takes effect between its call and HEARD_S after its answer, or later while faults keep brokers from
hearing of it. One without an answer may take effect at any later time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.history import METADATA, Call, Outcome

HEARD_S = 3.0  # after the answer, when all is well, every broker applies it
HEARD_LATE_S = 20.0  # with any faults
BOUNDS = ("retention_ms", "retention_bytes", "max_records", "max_bytes")


class SettingsHistory:
    """The settings of one topic over time."""

    def __init__(self, facts: Facts, topic: str) -> None:
        self._facts = facts
        self._first = facts.history.topics.get(topic, {})
        alterations = (c for c in facts.of("alter_topic") if c.args["topic"] == topic)
        self._changes = [c for c in alterations if c.outcome is not Outcome.FAILED]

    def between(self, name: str, since_s: float, until_s: float, *, heard: bool = False) -> set[str | None]:
        """Return every value that may have been in force between two times; None: the default.

        `heard`: as the registry's leader knows them.
        """
        known = [c for c in self._changes if name in c.args["settings"] and c.invoked_s <= until_s]
        over = [c for c in known if self._is_heard(c, since_s, heard)]
        found: set[str | None] = set() if over else {self._first.get(name)}
        for call in known:
            ended_s = call.ended_s if call.outcome is Outcome.OK else None
            if not any(ended_s is not None and later.invoked_s >= ended_s for later in over):
                found.add(call.args["settings"][name])
        return found

    def bounds(self, name: str, since_s: float, until_s: float) -> tuple[float, float]:
        """Return the lowest and the highest bound that may have been in force; inf: none."""
        values = [bound_of(value) for value in self.between(name, since_s, until_s)]
        return min(values), max(values)

    def only(self, *names: str) -> bool:
        """Return whether the topic had only bounds of these kinds, and at least one."""
        some = {name for name in BOUNDS if self.bounds(name, 0.0, math.inf)[0] < math.inf}
        return bool(some) and some <= set(names)

    def always(self, name: str, value: str) -> bool:
        return self.between(name, 0.0, math.inf) == {value}

    @property
    def settled_s(self) -> float:
        """Return when all brokers had heard of the last alteration, if all was well."""
        return max((c.ended_s or c.deadline_s for c in self._changes), default=-HEARD_S) + HEARD_S

    def _is_heard(self, call: Call, since_s: float, heard: bool) -> bool:
        if call.outcome is not Outcome.OK or call.ended_s is None:
            return False
        if heard:
            return call.ended_s <= since_s
        calm_s = self._facts.history.calm_s
        well_s = max(call.ended_s, calm_s) + HEARD_S if calm_s is not None else math.inf
        return since_s >= min(well_s, call.ended_s + HEARD_LATE_S)


def longest_interval_s(values: Iterable[str | None]) -> float:
    """Return the longest of these values of `sync` in seconds; 0: each write is synced at once."""
    return max((float(value) / 1000 for value in values if value not in (None, "always")), default=0.0)


def bound_of(value: str | None) -> float:
    return math.inf if value in (None, "none") else float(value)


def settings_of_the_past(facts: Facts) -> Iterator[Anomaly]:
    """A reported setting was not in force at any time during the call."""
    for call in facts.of("settings"):
        history = SettingsHistory(facts, call.args["topic"])
        for name, value in call.result.items() if call.outcome is Outcome.OK else ():
            possible = history.between(name, call.invoked_s, call.ended_s or math.inf, heard=True)
            if value not in possible and None not in possible:
                what = f"{name} is reported as {value}, and may be {', '.join(sorted(map(str, possible)))}"
                yield Anomaly.of(AnomalyKind.NOT_LINEARIZABLE, what, METADATA, call)
