"""A target of plain values, for code that decides about faults: processes are words, and the network is a
dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tinymq_chaos.real.net.network import TOXICS, Direction
from tinymq_chaos.real.net.probe_connections import ProbeConnection


class StandInNet:
    """The cut and slowed directions, by the name of the fault."""

    restarts = 0

    def __init__(self) -> None:
        self.cuts: dict[str, frozenset[Direction]] = {}
        self.toxics: dict[str, tuple[str, frozenset[Direction], float, dict[str, float]]] = {}

    def cut(self, why: str, directions: Iterable[Direction]) -> None:
        assert why not in self.cuts
        self.cuts[why] = frozenset(directions)

    def toxic(
        self, why: str, directions: Iterable[Direction], kind: str, toxicity: float = 1.0, **attributes: float
    ) -> None:
        assert kind in TOXICS
        assert why not in self.toxics
        self.toxics[why] = kind, frozenset(directions), toxicity, attributes

    def mend(self, why: str) -> None:
        self.cuts.pop(why, None)
        self.toxics.pop(why, None)

    def mend_all(self) -> None:
        self.cuts.clear()
        self.toxics.clear()

    def line(self, direction: Direction) -> ProbeConnection:
        raise ConnectionError("these are words, and carry nothing")


class StandIn:
    """Brokers that obey and are strict: to start a running one is an error, as in a real target."""

    name, version = "stand-in", "0"

    def __init__(self, nodes: int = 3, folder: Path = Path()) -> None:
        self.folder = folder
        self.brokers = tuple(range(1, nodes + 1))
        self.net = StandInNet()
        self.up: set[int] = {*self.brokers}
        self.stopped: set[int] = set()  # by SIGSTOP
        self.wiped: set[int] = set()
        self.done: list[str] = []
        self.ill = ""  # what `unhealthy` reports besides its own observations
        self.leads: dict[tuple[str, int], int | None] = {}

    def start(self, *brokers: int) -> None:
        for broker in brokers:
            assert broker not in self.up, f"broker {broker} runs"
            self.up.add(broker)
            self.done.append(f"start {broker}")

    def running(self, broker: int) -> bool:
        return broker in self.up

    def kill(self, *brokers: int) -> None:
        self.up -= {*brokers}
        self.stopped -= {*brokers}
        self.done += [f"kill {broker}" for broker in brokers]

    def stop(self, broker: int, within_s: float = 30.0) -> None:
        assert broker in self.up - self.stopped, f"broker {broker} cannot be polite"
        self.up.remove(broker)
        self.done.append(f"stop {broker}")

    def pause(self, *brokers: int) -> None:
        for broker in brokers:
            assert broker in self.up - self.stopped, f"broker {broker} does not run"
            self.stopped.add(broker)
            self.done.append(f"pause {broker}")

    def resume(self, *brokers: int) -> None:
        for broker in brokers:
            self.stopped.discard(broker)
            self.done.append(f"resume {broker}")

    def leader(self, topic: str, partition: int) -> int | None:
        return self.leads.get((topic, partition))

    def unhealthy(self) -> str:
        down = [f"broker {n} is down" for n in self.brokers if n not in self.up or n in self.stopped]
        return "; ".join(filter(None, [self.ill, *down]))

    def data(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}"

    def log_file(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.log"

    def wipe(self, broker: int) -> None:
        assert broker not in self.up
        self.wiped.add(broker)

    def start_second(self, broker: int, *, copied: bool = False) -> None:
        self.done.append(f"start a second {broker}")

    def second_status(self, broker: int) -> dict[str, str] | None:
        return {"state": "unformed", "reason": "the first one is alive"}

    def end_second(self, broker: int) -> None:
        self.done.append(f"end the second {broker}")

    def close(self) -> None:
        self.up.clear()
