"""The replicated state of one application of Spark's sink: the newest version that is committed, and the sets that its
tasks stage. Values only.

Each task that writes stages a *set* of batches. All sets of one *run*, which is one attempt at a whole version, are
writers in one transaction: the commit names those whose tasks Spark took, and the others are dropped. Another run of
the version has another transaction, so that neither one's commit or abort concerns the other's sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.transactional_id import Phase


class Committed(NamedTuple):
    """The newest version that is committed."""

    version: int
    query: str  # id of the streaming query that wrote it; "": a batch job
    since: int  # the first version of the unbroken run of versions that this query has committed


@dataclass(frozen=True, slots=True)
class SetsTransaction:
    """The sets of one run that are not published or dropped everywhere."""

    producer_id: int  # its own: it names the transaction
    version: int
    run: str
    timeout_us: int
    until_us: int  # append time at which the sets are dropped if they are still open
    opened: int = 0  # sets; the next one gets this number
    phase: Phase = Phase.OPEN
    unconfirmed: frozenset[PartitionId] = frozenset()  # open: all its partitions; decided: those without a confirmation
    sets: tuple[int, ...] = ()  # committed: those to publish

    @property
    def id(self) -> TransactionId:
        return id_of(self.producer_id)


def id_of(producer_id: int) -> TransactionId:
    """The name of a transaction of sets. Only the producer id varies: each transaction of sets has one of its own."""
    return TransactionId(producer_id, 0, 1)


@dataclass(frozen=True, slots=True)
class SinkApplication:
    """One application."""

    committed: Committed | None = None  # its version never falls
    used_us: int = 0  # append time of the newest call
    temporary: bool = False  # the name is never used again
    transactions: Mapping[int, SetsTransaction] = field(default_factory=dict)  # by producer id
