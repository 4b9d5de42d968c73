"""Begins and ends faults by name, any number at once, and writes them into the history.

    nemesis = Nemesis(cluster, history, random.Random(7))
    with nemesis.fault("pause", who="leader"):
        ...
    both = [nemesis.begin("isolate", broker=1), nemesis.begin("latency", latency=50.0, jitter=10.0)]
    ...
    nemesis.end_all()

The promises bound it: synced bytes are damaged on one broker at a time, and on another one only when all is well again.
A broker with possibly undiscovered damage stays the only one.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tinymq_chaos.history import FaultSpan, History
from tinymq_chaos.real.faults import ANYBODY, FAULTS, RealFault, Value
from tinymq_chaos.real.run.stage import RecordingStage
from tinymq_chaos.real.system.target import Target

_BROKER = re.compile(r"broker (\d+)")


@dataclass(eq=False, slots=True)
class ActiveFault:
    """A fault that has begun."""

    kind: str
    span: FaultSpan
    fault: Iterator[str | None]
    broker: int  # the broker whose disk it damages; 0: none


def _ended(under_way: ActiveFault) -> str | None:
    """End the fault; return its effect."""
    try:
        rest = next(under_way.fault)
    except StopIteration as end:
        effect: str | None = end.value
        return effect
    raise AssertionError(f"{under_way.kind} goes on after its end: {rest}")


class Nemesis:
    """Calls block until a fault has begun or ended. Any thread may call."""

    def __init__(
        self,
        target: Target,
        history: History,
        rng: random.Random,
        *,
        has: frozenset[str] = frozenset(),
        faults: Mapping[str, RealFault] = FAULTS,
    ) -> None:
        """`has`: the features of the target's brokers that faults may need (Real.needs)."""
        self.stage = RecordingStage(target, history)
        self.happened: Counter[str] = Counter()  # how many of each kind began
        self.hurt: set[int] = set()  # brokers whose disks lack, or may lack, what they vouched for
        self.scarred = 0  # the broker with possibly undiscovered damage; 0: none
        self._faults = {name: kind for name, kind in faults.items() if kind.real.needs <= has}
        self._missing = {name: kind.real.needs - has for name, kind in faults.items() if not kind.real.needs <= has}
        self._history = history
        self._rng = rng
        self._under_way: list[ActiveFault] = []
        self._lock = threading.RLock()
        self._harming = 0  # damaging faults, from before they begin until they have ended
        self._harm = 0  # how often one of them began or ended
        self._mended: set[int] = set()  # of `hurt`: all has been well since

    @property
    def kinds(self) -> dict[str, RealFault]:
        """Return the faults that this target can have."""
        return self._faults

    @property
    def under_way(self) -> tuple[ActiveFault, ...]:
        return tuple(self._under_way)

    def watch(self, topic: str, partitions: int = 1) -> None:
        """Count the leaders of these partitions as "the leader" for faults."""
        self.stage.topics += [(topic, number) for number in range(partitions)]

    def begin(self, kind: str, **parameters: Value) -> ActiveFault | None:
        """Begin a fault, which lasts until `end`. Return None if it cannot happen now (there is no leader, for
        example).

        Parameters default to their usual values. Raises ValueError for unknown names, and for faults that this target
        cannot have.
        """
        row = self._row(kind)
        how: dict[str, Value] = {name: values[0] for name, values in row.real.parameters.items()}
        unknown = [name for name in parameters if name not in how]
        if unknown:
            raise ValueError(f"{kind} has no {', '.join(unknown)}; it has {', '.join(how) or 'no parameters'}")
        how |= parameters
        broker = self._victim(int(how["broker"])) if row.real.damages else 0
        if broker is None:
            return None
        if row.real.damages:
            how["broker"] = float(broker)
        self._hurts(row, {broker} - {0})  # before the fault begins: a broker may report the damage at once
        under_way = None
        try:
            under_way = self._begun(kind, row, how, broker)
        finally:
            if under_way is None:
                self._hurts_no_more(row)
        return under_way

    def _begun(self, kind: str, row: RealFault, how: Mapping[str, Value], broker: int) -> ActiveFault | None:
        self.stage.tell(f"a fault begins: {kind}")
        fault = row.begin(self.stage, random.Random(self._rng.random()), how)
        began_s = self._history.now()
        description = next(fault)
        if description is None:
            return None
        if row.real.scars:
            self.scarred = broker
        with self._lock:
            if row.real.forgets:
                self.hurt |= {int(number) for number in _BROKER.findall(description)}
            self.happened[kind] += 1
            span = self._history.fault_began(kind, description)
            span.began_s = began_s  # some take a while: a power cut waits for the next write, for example
            under_way = ActiveFault(kind, span, fault, broker)
            self._under_way.append(under_way)
        self.stage.tell(f"FAULT {kind}: {description}")
        return under_way

    def end(self, under_way: ActiveFault) -> None:
        """End a fault: its changes are undone on return. A second call does nothing."""
        with self._lock:
            if under_way not in self._under_way:
                return
            self._under_way.remove(under_way)
        try:
            under_way.span.effect = _ended(under_way)
        finally:
            self._history.fault_ended(under_way.span)
            self.stage.tell(f"FAULT {under_way.kind} is over")
            self._hurts_no_more(self._faults[under_way.kind])

    @contextmanager
    def fault(self, kind: str, **parameters: Value) -> Iterator[ActiveFault]:
        """Do a fault while the body runs. Raises RuntimeError if it cannot happen now."""
        under_way = self.begin(kind, **parameters)
        if under_way is None:
            raise RuntimeError(f"{kind} cannot happen now: {self.stage.unhealthy() or 'there is no suitable broker'}")
        try:
            yield under_way
        finally:
            self.end(under_way)

    def strike(self) -> None:
        """Call it now and then: a fault that strikes again and again is a cause for elections as long as it lasts."""
        for under_way in self.under_way:
            if self._faults[under_way.kind].real.strikes_on:
                self.stage.tell(f"FAULT {under_way.kind} goes on")

    def end_all(self) -> None:
        """End every fault; then the network works, no broker is paused, and all run.

        Everything is tried, and the first error is raised.
        """
        wrong: list[Exception] = []
        for under_way in reversed(self.under_way):
            try:
                self.end(under_way)
            except Exception as error:  # the other faults have to end in any case
                wrong.append(error)
        self.stage.net.mend_all()
        self.stage.resume(*self.stage.brokers)
        self.stage.start(*self.stage.brokers)
        if wrong:
            raise wrong[0]

    # ---- disks that may be damaged --------------------------------------------------------------------------------

    @property
    def harm(self) -> int:
        """Return a number that changes whenever a disk may have been damaged."""
        return self._harm

    def all_well(self, harm: int) -> None:
        """All was well, and `harm` is the number from before that look: the damaged brokers have recovered, except for
        undiscovered damage.
        """
        with self._lock:
            if harm == self._harm and not self._harming:
                self._mended |= self.hurt - {self.scarred}

    @property
    def mended(self) -> frozenset[int]:
        """Return the brokers that have recovered, once their reports until now are read."""
        return frozenset(self._mended)

    def trust(self, mended: frozenset[int]) -> None:
        """The reports of these brokers, out of `mended`, are read until then."""
        with self._lock:
            self.hurt -= mended & self._mended
            self._mended -= mended

    def _hurts(self, row: RealFault, brokers: set[int]) -> None:
        if row.real.damages or row.real.forgets:
            with self._lock:
                self._harming, self._harm = self._harming + 1, self._harm + 1
                self.hurt |= brokers
                self._mended.clear()

    def _hurts_no_more(self, row: RealFault) -> None:
        if row.real.damages or row.real.forgets:
            with self._lock:
                self._harming, self._harm = self._harming - 1, self._harm + 1

    # ---- choices ---------------------------------------------------------------------------------------------------

    def _row(self, kind: str) -> RealFault:
        if kind in self._missing:
            raise ValueError(f"{kind} needs {', '.join(sorted(self._missing[kind]))}, which this cluster is without")
        if kind not in self._faults:
            raise ValueError(f"{kind!r} is not one of {', '.join(self._faults)}")
        return self._faults[kind]

    def _victim(self, wanted: int) -> int | None:
        """Return the broker whose disk may be damaged now. None: no broker's."""
        allowed = (self.scarred,) if self.scarred else self.stage.brokers
        if any(u.broker for u in self.under_way) or (wanted != ANYBODY and wanted not in allowed):
            return None
        broker, harm = wanted or self._rng.choice(allowed), self._harm
        if self.stage.unhealthy():
            return None
        self.all_well(harm)
        return broker
