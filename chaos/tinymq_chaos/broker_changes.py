"""Changes of replicas and processes that observers of brokers see: damage, recoveries, and second processes of one
number.

Parts of a History, as plain values (history.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

Log = tuple[str, int]
"""A partition: (TOPIC, number), as in history.py."""


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """A replica found its log damaged, or lacking acknowledged entries, on a disk that no fault struck."""

    at_s: float
    log: Log
    broker: int
    reason: str


@dataclass(frozen=True, slots=True)
class QuorumRecovery:
    """A group that had lost a majority of its replicas recovered without them, and without an operator."""

    at_s: float
    log: Log


@dataclass(frozen=True, slots=True)
class FilledReplica:
    """A replica that had started has caught up: it has applied all that was committed in its group."""

    at_s: float
    log: Log
    broker: int


@dataclass(slots=True)
class TwinSpan:
    """A second process with the number of a broker that runs."""

    broker: int
    copied: bool  # its data directory is a copy of the first one's; False: it was empty
    at_s: float
    until_s: float | None = None
    let_in: list[int] = field(default_factory=list)  # the brokers that it connected to
    told: list[str] = field(default_factory=list)  # why it was refused, each reason once
