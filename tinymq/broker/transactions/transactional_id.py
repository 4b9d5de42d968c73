"""The replicated state of one transactional id: its owner, and the transactions that are not over. Values only.

A transaction is first open, then decided, and over once all its partitions have confirmed the decision. The state has
only transactions that are not over, so it does not grow with the number of past ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId

EPOCH_MAX = (1 << 31) - 1  # above it, the transactional id gets another producer id


class Phase(Enum):
    """The lifecycle of a transaction: OPEN → COMMITTED or ABORTED, and no way back."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is not over."""

    number: int
    epoch: int  # of the owner that began the transaction
    until_us: int  # append time at which the transaction is aborted if it is still open
    phase: Phase = Phase.OPEN
    unconfirmed: frozenset[PartitionId] = frozenset()  # open: all its partitions; decided: those without a confirmation


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision, for an owner that asks again."""

    transaction: TransactionId
    phase: Phase


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """The owner of a transactional id, and its transactions."""

    producer_id: int
    epoch: int = 0  # of the present owner
    number: int = 0  # of the newest transaction; never falls within a producer id
    used_us: int = 0  # append time of the newest call of an owner
    outcome: Outcome | None = None  # of the newest decided transaction, even if it is over or its owner was replaced
    transactions: Mapping[int, Transaction] = field(default_factory=dict)  # by number

    def id_of(self, transaction: Transaction) -> TransactionId:
        return TransactionId(self.producer_id, transaction.epoch, transaction.number)

    @property
    def open(self) -> Transaction | None:
        """The open transaction. There is at most one."""
        return next((each for each in self.transactions.values() if each.phase is Phase.OPEN), None)
