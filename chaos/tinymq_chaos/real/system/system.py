"""What a run needs of a cluster besides faults: clients, which workloads make sense, who leads, what its logs hold.

A protocol. Ours is product/system.py; another system's stands beside its Target.
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
    """In words, what was read of the replicas but is no finding of a checker."""

    notes: list[str] = field(default_factory=list)  # that are no anomalies, and should be known
    wrong: list[str] = field(default_factory=list)  # why nobody can judge some of them


class SystemUnderTest(Protocol):
    """A cluster that is formed and serves. Calls block, but for `client`."""

    @property
    def target(self) -> Target: ...

    @property
    def has(self) -> frozenset[str]:
        """Of what kinds of faults need (Real.needs)."""
        ...

    @property
    def workloads(self) -> Mapping[str, Workload]:
        """That make sense here; all of them run, if nothing is said."""
        ...

    def checkers(self, slack: Slack) -> Sequence[Checker]:
        """That are right here (verdict.py)."""
        ...

    def client(self, **settings: Any) -> Any:
        """As workloads use it (AsyncClient, or what looks like it), through the proxies. The caller closes it."""
        ...

    def caller(self, rng: random.Random) -> Any:
        """A Caller, where workloads need one; through the proxies. The caller of this closes it."""
        ...

    def watch(self, history: History, hurt: Collection[int]) -> None:
        """What brokers have said since the last call: who leads, and what is damaged; not of brokers that are `hurt`,
        whose disks faults have damaged. Called several times a second, one call at a time."""
        ...

    def collect(self, history: History, hurt: Collection[int]) -> CollectedReplicas:
        """All is well and quiet: put every replica, as it is now, into the history; brokers end for that. What cannot
        be read is an anomaly there, but for brokers that are `hurt`, of which it is a note. A broker that says nothing
        of its replicas is wrong, whoever it is: nothing of it can be read."""
        ...
