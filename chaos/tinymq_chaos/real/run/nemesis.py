"""Begins and ends faults by name, any number at once, and writes them into the history.

    nemesis = Nemesis(cluster, history, random.Random(7))
    with nemesis.fault("pause", who="leader"):
        ...
    both = [nemesis.begin("isolate", broker=1), nemesis.begin("latency", latency=50.0, jitter=10.0)]
    ...
    nemesis.end_all()

What is promised bounds it: what was synced is damaged on one broker at a time, and on another one only once all is
well again; a broker whose damage may lie undiscovered stays the only one.
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
    broker: int  # whose disk it damages; 0: nobody's


def _ended(under_way: ActiveFault) -> str | None:
    """It ends: what it did, as it saw it."""
    try:
        rest = next(under_way.fault)
    except StopIteration as end:
        effect: str | None = end.value
        return effect
    raise AssertionError(f"{under_way.kind} goes on after its end: {rest}")


class Nemesis:
    """Calls block for as long as a fault takes to begin or to end, and may come from any thread."""

    def __init__(
        self,
        target: Target,
        history: History,
        rng: random.Random,
        *,
        has: frozenset[str] = frozenset(),
        faults: Mapping[str, RealFault] = FAULTS,
    ) -> None:
        """`has`: what the target's brokers were started with, of what kinds need (Real.needs)."""
        self.stage = RecordingStage(target, history)
        self.happened: Counter[str] = Counter()  # how many of each kind began
        self.hurt: set[int] = set()  # brokers whose disks lack, or may lack, what they had vouched for
        self.scarred = 0  # the broker whose damage may lie undiscovered
        self._faults = {name: kind for name, kind in faults.items() if kind.real.needs <= has}
        self._missing = {name: kind.real.needs - has for name, kind in faults.items() if not kind.real.needs <= has}
        self._history = history
        self._rng = rng
        self._under_way: list[ActiveFault] = []
        self._lock = threading.RLock()
        self._harming = 0  # faults that hurt somebody, from before they begin until they have ended
        self._harm = 0  # how often one of them began, or had ended
        self._mended: set[int] = set()  # of `hurt`: all was well since

    @property
    def kinds(self) -> dict[str, RealFault]:
        """What can be done to this target."""
        return self._faults

    @property
    def under_way(self) -> tuple[ActiveFault, ...]:
        return tuple(self._under_way)

    def watch(self, topic: str, partitions: int = 1) -> None:
        """Whoever leads one of these is meant by "the leader"."""
        self.stage.topics += [(topic, number) for number in range(partitions)]

    def begin(self, kind: str, **parameters: Value) -> ActiveFault | None:
        """It lasts until `end`. None: it cannot happen now (nobody leads, say). Parameters that are not given have
        their usual values. Raises ValueError for names that are none, and for kinds that this target cannot do."""
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
        self._hurts(row, {broker} - {0})  # before it happens: it may be said at once
        under_way = None
        try:
            under_way = self._begun(kind, row, how, broker)
        finally:
            if under_way is None:
                self._hurts_no_more(row)
        return under_way

    def _begun(self, kind: str, row: RealFault, how: Mapping[str, Value], broker: int) -> ActiveFault | None:
        self.stage.tell(f"a fault is to begin: {kind}")
        fault = row.begin(self.stage, random.Random(self._rng.random()), how)
        began_s = self._history.now()
        words = next(fault)
        if words is None:
            return None
        if row.real.scars:
            self.scarred = broker
        with self._lock:
            if row.real.forgets:
                self.hurt |= {int(number) for number in _BROKER.findall(words)}
            self.happened[kind] += 1
            span = self._history.fault_began(kind, words)
            span.began_s = began_s  # some take a while: power is cut in the middle of the next write, say
            under_way = ActiveFault(kind, span, fault, broker)
            self._under_way.append(under_way)
        self.stage.tell(f"FAULT {kind}: {words}")
        return under_way

    def end(self, under_way: ActiveFault) -> None:
        """What it did is undone when this returns. Once more: nothing."""
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
        """While the body runs. Raises RuntimeError if it cannot happen now."""
        under_way = self.begin(kind, **parameters)
        if under_way is None:
            raise RuntimeError(f"{kind} cannot happen now: {self.stage.unhealthy() or 'there is nobody to befall'}")
        try:
            yield under_way
        finally:
            self.end(under_way)

    def strike(self) -> None:
        """To be called now and then: what goes on all the while is a cause for what happens, all the while."""
        for under_way in self.under_way:
            if self._faults[under_way.kind].real.strikes_on:
                self.stage.tell(f"FAULT {under_way.kind} goes on")

    def end_all(self) -> None:
        """Every fault ends; then the network is well, nobody is paused, and all brokers run. All of it is tried, and
        what went wrong first is raised."""
        wrong: list[Exception] = []
        for under_way in reversed(self.under_way):
            try:
                self.end(under_way)
            except Exception as error:  # the others have to end whatever it is
                wrong.append(error)
        self.stage.net.mend_all()
        self.stage.resume(*self.stage.brokers)
        self.stage.start(*self.stage.brokers)
        if wrong:
            raise wrong[0]

    # ---- whose disks are to be believed ----------------------------------------------------------------------------

    @property
    def harm(self) -> int:
        """Another number whenever a disk may have been harmed since."""
        return self._harm

    def all_well(self, harm: int) -> None:
        """All was seen to be well, and `harm` is the number from before that look: who was hurt has been filled again,
        but for damage that may lie undiscovered."""
        with self._lock:
            if harm == self._harm and not self._harming:
                self._mended |= self.hurt - {self.scarred}

    @property
    def mended(self) -> frozenset[int]:
        """Who is hurt no more, once what they said until now is read."""
        return frozenset(self._mended)

    def trust(self, mended: frozenset[int]) -> None:
        """What these, of `mended`, had said until then is read."""
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

    # ---- whom, and what --------------------------------------------------------------------------------------------

    def _row(self, kind: str) -> RealFault:
        if kind in self._missing:
            raise ValueError(f"{kind} needs {', '.join(sorted(self._missing[kind]))}, which this cluster is without")
        if kind not in self._faults:
            raise ValueError(f"{kind!r} is none of {', '.join(self._faults)}")
        return self._faults[kind]

    def _victim(self, wanted: int) -> int | None:
        """Whose disk may be damaged now. None: nobody's."""
        allowed = (self.scarred,) if self.scarred else self.stage.brokers
        if any(u.broker for u in self.under_way) or (wanted != ANYBODY and wanted not in allowed):
            return None
        broker, harm = wanted or self._rng.choice(allowed), self._harm
        if self.stage.unhealthy():
            return None
        self.all_well(harm)
        return broker
