"""Faults at random times, for tests of a service against a cluster that breaks. One seed gives one sequence."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinymq.testing.cluster import Cluster

PAUSE_S = (0.1, 0.6)  # between two faults
LASTS_S = (0.2, 1.0)
SLOW_MS = (5, 80)
KINDS = ("kill", "partition", "slow")


class Faults:
    """Hurts one broker of a cluster at a time, on a thread, as long as its `with` block lasts.

        with cluster.faults(seed=7) as faults:
            run_orders()
        print(faults.history)

    A majority of three brokers or more is always untouched. At the end of the block everything is healed and every
    broker runs. The sequence of faults follows from the seed; the moments depend on the machine.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.seed = seed
        self.history: list[str] = []  # the faults so far, in words
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"faults-{seed}", daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is not None:
            error.add_note(f"faults with seed {self.seed}: {', '.join(self.history) or 'none yet'}")
        elif self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._rng.uniform(*PAUSE_S)):
                self._one()
        except Exception as failure:
            self._failure = failure

    def _one(self) -> None:
        """Make one fault, wait, and undo it."""
        cluster, rng = self._cluster, self._rng
        broker, kind = rng.randint(1, cluster.nodes), rng.choice(KINDS)
        lasts_s, slow_ms = rng.uniform(*LASTS_S), rng.randint(*SLOW_MS)
        self.history.append(f"{kind} {broker}")
        if kind == "kill":
            cluster.kill(broker)
        elif kind == "partition":
            cluster.partition({broker})
        else:
            cluster.slow(broker, slow_ms)
        self._ended.wait(lasts_s)
        if kind == "kill":
            cluster.start(broker)
        else:
            cluster.heal()
