"""Changes of queue groups that observers of brokers see: leases on leaders, and the replicated state.

Parts of a History, as plain values (history.py). Only the simulator can look into brokers; histories of other tiers
have none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Log = tuple[str, int]
"""A partition: (TOPIC, number), as in history.py."""

LEADS = "leads"  # a broker begins to lead the group in a partition
ATTACHED = "attached"  # a worker has listed what it holds
GRANTED = "granted"
CONFIRMED = "confirmed"  # a grant of an earlier leader, which its worker has listed
ENDED = "ended"  # a lease


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """The leases of a group in a partition changed, in the memory of a leader that may be deposed."""

    at_s: float
    log: Log
    group: str
    group_id: int
    term: int
    broker: int
    what: str
    session: str = ""
    offset: int = -1
    number: tuple[int, int] = (0, 0)  # of the grant: (term, number)
    delivery: int = 0
    generation: int = 0
    alone: bool = False  # it counts as started at once
    now_us: int = 0  # the append clock of the leader
    rejoin_s: float = 0.0  # of LEADS: for so long workers may come back


@dataclass(frozen=True, slots=True)
class QueueChange:
    """The replicated state of a group in a partition changed by one entry, as the first replica applied it.

    `settled` names records that were not settled before, and the whole of the rest is the state afterwards.
    """

    at_s: float
    log: Log
    group: str
    group_id: int
    generation: int
    position: int  # everything below is settled; never below the log start
    log_start: int
    settled: tuple[int, ...]
    failures: tuple[tuple[int, int, int, int], ...]  # (offset, deliveries that failed, returns, not before, in us)
    burials: tuple[int, ...]  # offsets of records that are being buried
    staged: tuple[int, ...] = ()  # offsets of records whose acks a transaction has staged

    @property
    def place(self) -> Place:
        return self.log, self.group, self.group_id


Place = tuple[Log, str, int]
"""A group in a partition: (log, name, id). A group that is made again under its name has another id."""


def read_lease(values: dict[str, Any]) -> LeaseChange:
    return LeaseChange(**values | {"number": tuple(values["number"])})


def read_queue(values: dict[str, Any]) -> QueueChange:
    tuples = {name: tuple(values[name]) for name in ("settled", "burials", "staged") if name in values}
    return QueueChange(**values | tuples | {"failures": tuple(map(tuple, values["failures"]))})
