"""The system under test, apart from faults: its clients, suitable workloads and checkers, leaders, and final logs.

A protocol. tinymq's implementation is product/system.py; another system's is in peers.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinymq_chaos.checkers import Checker
from tinymq_chaos.history import History
from tinymq_chaos.real.system.target import Target
from tinymq_chaos.real.system.verdict import Slack
from tinymq_chaos.workloads.context import Workload


@dataclass(frozen=True, slots=True)
class CollectedReplicas:
    """The outcome of reading the replicas, in words, apart from the checkers' findings."""

    notes: list[str] = field(default_factory=list)  # facts that are no anomalies
    wrong: list[str] = field(default_factory=list)  # why some replicas cannot be judged


class SystemUnderTest(Protocol):
    """A cluster that is formed and serves. Calls block, except `client`."""

    @property
    def target(self) -> Target: ...

    @property
    def has(self) -> frozenset[str]:
        """Return what the cluster has of what faults need (Real.needs)."""
        ...

    @property
    def workloads(self) -> Mapping[str, Workload]:
        """Return the suitable workloads; all of them run by default."""
        ...

    def checkers(self, slack: Slack) -> Sequence[Checker]:
        """Return the suitable checkers (verdict.py)."""
        ...

    def client(self, **settings: Any) -> Any:
        """Return a client for workloads (AsyncClient, or an object with its methods), through the proxies.

        The caller closes it.
        """
        ...

    def caller(self, rng: random.Random) -> Any:
        """Return a Caller for workloads that need one, through the proxies. The caller of this closes it."""
        ...

    def watch(self, history: History, hurt: Collection[int]) -> None:
        """Report what brokers have logged since the last call: leaders, and damage, except on brokers that are `hurt`,
        whose disks faults have damaged. Called several times a second, one call at a time.
        """
        ...

    def collect(self, history: History, hurt: Collection[int]) -> CollectedReplicas:
        """Put every replica, as it is now, into the history; stop the brokers for that. Call it when all is well and
        quiet.

        A log that cannot be read is an anomaly, except on brokers that are `hurt`, where it is a note. A broker that
        does not report on its replicas is always wrong, because nothing of it can be read.
        """
        ...
