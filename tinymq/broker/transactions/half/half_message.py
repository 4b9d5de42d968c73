"""A half message, and the coordinator's decisions on it. Pure: each takes a half message and returns its next state.

A half message is a transaction of one batch in one partition. Its sender commits it or rolls it back. If the sender
does not, the coordinator asks a checker of the producer group on a schedule. It gives the half message up when
CHECKS_MAX checks were answered without an outcome, or when the half message is OPEN_US_MAX old. A check without an
answer does not count.

The schedule is a part of the replicated behaviour, not a setting: replicas with different values would decide
differently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.rules import Refusal, is_whole
from tinymq.broker.transactions.transactional_id import Phase

CHECK_AFTER_US = 6_000_000  # until the first check
CHECK_AFTER_US_MIN, CHECK_AFTER_US_MAX = 1_000_000, 3600 * 1_000_000
CHECK_EVERY_US = 30_000_000  # from an answered check to the next one
CHECKS_MAX = 15  # that are answered
OPEN_US_MAX = 24 * 3600 * 1_000_000  # until a half message is given up, whatever was answered
BATCHES = 1  # that a half message has


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message that is not over."""

    transaction: TransactionId  # with a producer id of its own, so it is in no order with other transactions
    group: str  # of producers, whose checkers are asked
    place: PartitionId
    context: bytes  # for checkers
    begun_us: int  # append time
    due_us: int  # append time of the next check, or of its end after the last one
    checks: int = 0  # that were answered; invariant: <= CHECKS_MAX
    phase: Phase = Phase.OPEN

    @property
    def is_open(self) -> bool:
        return self.phase is Phase.OPEN


def transaction_of(producer_id: int) -> TransactionId:
    """The transaction of a half message that has this producer id."""
    return TransactionId(producer_id, 0, 1)


def is_due(half: HalfMessage, now_us: int) -> bool:
    """Whether a checker is asked now."""
    return half.is_open and now_us >= half.due_us and not is_given_up(half, now_us)


def is_given_up(half: HalfMessage, now_us: int) -> bool:
    """Whether an open half message has to be rolled back because no checker knows its outcome.

    After the last answer it stays open for one more interval: its sender may still be about to commit.
    """
    checked = half.checks >= CHECKS_MAX and now_us >= half.due_us
    return half.is_open and (checked or now_us - half.begun_us >= OPEN_US_MAX)


def end(half: HalfMessage, *, commit: bool, held: int | None) -> HalfMessage | Refusal:
    """Commit a half message if its partition has its batch, or roll it back. `held`: staged batches of it, by the count
    of the partition's leader; None: it has not answered."""
    if not half.is_open:
        return outcome_of(half.phase)
    return replace(half, phase=Phase.COMMITTED if commit and is_whole(BATCHES, held) else Phase.ABORTED)


def count(half: HalfMessage, number: int, now_us: int) -> HalfMessage | Refusal:
    """Note that a checker does not know the outcome. An answer to another check than the present one changes nothing:
    two checkers may have been asked, and an answer may come twice."""
    if not half.is_open:
        return outcome_of(half.phase)
    if number != half.checks or half.checks >= CHECKS_MAX:
        return half
    return replace(half, checks=half.checks + 1, due_us=now_us + CHECK_EVERY_US)


def give_up(half: HalfMessage, now_us: int) -> HalfMessage | Refusal:
    """Roll a half message back if its schedule is over."""
    if not half.is_open:
        return outcome_of(half.phase)
    return replace(half, phase=Phase.ABORTED) if is_given_up(half, now_us) else half


def outcome_of(phase: Phase) -> Refusal:
    """The answer to a call that comes after the decision."""
    return Refusal.COMMITTED if phase is Phase.COMMITTED else Refusal.ABORTED
