"""The coordinator's decisions on transactions. Pure: each takes the state of a transactional id and returns the next.

A decision holds once the next state is committed. Until then the coordinator tells nobody. It answers partitions from
applied state, and only after a majority has confirmed that it leads. A deposed coordinator may not know a committed
transaction: its answer would make the partition drop the records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.transactional_id import EPOCH_MAX, Outcome, Phase, Transaction, TransactionalId

PARTITIONS_MAX = 1000  # of one transaction
EXPIRY_US = 7 * 24 * 3600 * 1_000_000  # after this time without a call of an owner, a transactional id expires
DECIDED_MAX = 5  # unfinished transactions of one id; at this number no further one begins


class Refusal(Enum):
    """Why the coordinator refuses a call of an owner."""

    FENCED = "fenced"  # a later registration has taken the transactional id
    ABORTED = "aborted"  # the transaction was aborted: by a time-out, a new owner, or because staged batches were lost
    COMMITTED = "committed"
    USED_ID = "used id"  # the fresh producer id may have been used before a loss: register with another one
    UNKNOWN = "unknown"  # the coordinator does not remember this transaction
    TOO_LARGE = "too large"  # the transaction has too many partitions
    TOO_MANY = "too many"  # too much is unfinished: call again later
    REUSED = "reused"  # of Spark's sink: another query has committed this version, or a higher one
    KNOWN = "known"  # the coordinator decides, or has decided, and nothing is left to an operator


class Standing(Enum):
    """The answer to a partition that asks about a transaction."""

    OPEN = "open"  # the transaction is open, and the partition was added to it
    PUBLISH = "publish"
    DISCARD = "discard"
    LATER = "later"  # committed, but an earlier transaction of the producer has not ended in that partition yet
    UNRESOLVED = "unresolved"  # the decision may be lost with a part of the log: an operator has to decide


class End(NamedTuple):
    """The end of a transaction, which a partition's leader has to append."""

    place: PartitionId
    transaction: TransactionId
    publish: bool


# ---- what owners ask -----------------------------------------------------------------------------------------


def register(state: TransactionalId | None, fresh_producer_id: int, now_us: int) -> TransactionalId:
    """Give the transactional id to a new owner. This fences the previous owner and aborts its open transaction.

    `fresh_producer_id` must be unused. It is taken for a transactional id that is new, has expired, or has used up its
    epochs: the triple (producer id, epoch, number) must never name two transactions.
    """
    if state is None:
        return TransactionalId(fresh_producer_id, used_us=now_us)
    aborted = _abort_open(state)
    if state.epoch >= EPOCH_MAX and not aborted.transactions:
        return TransactionalId(fresh_producer_id, used_us=now_us, outcome=aborted.outcome)
    return replace(aborted, epoch=state.epoch + 1, used_us=now_us)


def replace_producer_id(state: TransactionalId, fresh_producer_id: int, now_us: int) -> TransactionalId | Refusal:
    """Give the transactional id to a new owner after a loss, under another producer id.

    The decided transactions of the present producer id have to be over first. The state forgets the newest outcome that
    it knows, because the loss may have taken a newer one.
    """
    if state.transactions:
        return Refusal.TOO_MANY
    return TransactionalId(fresh_producer_id, used_us=now_us)


def without_open(state: TransactionalId) -> TransactionalId:
    """The state without its open transaction, about which an operator has to decide after a loss."""
    left = {number: each for number, each in state.transactions.items() if each.phase is not Phase.OPEN}
    return replace(state, transactions=left)


def begin(
    state: TransactionalId, producer_id: int, epoch: int, now_us: int, timeout_us: int
) -> TransactionalId | Refusal:
    """Begin a transaction, and abort one that is still open. The new one's number is the `number` of the next state."""
    if (producer_id, epoch) != (state.producer_id, state.epoch):
        return Refusal.FENCED
    if len(state.transactions) >= DECIDED_MAX:
        return Refusal.TOO_MANY
    aborted, number = _abort_open(state), state.number + 1
    begun = Transaction(number, epoch, now_us + timeout_us)
    return replace(aborted, number=number, used_us=now_us, transactions={**aborted.transactions, number: begun})


def add(
    state: TransactionalId, transaction: TransactionId, places: Collection[PartitionId]
) -> TransactionalId | Refusal:
    """Add partitions to an open transaction, before anything is staged in them."""
    found = _open(state, transaction)
    if isinstance(found, Refusal):
        return found
    unconfirmed = found.unconfirmed.union(places)
    if len(unconfirmed) > PARTITIONS_MAX:
        return Refusal.TOO_LARGE
    return _with(state, replace(found, unconfirmed=unconfirmed))


def commit(
    state: TransactionalId,
    transaction: TransactionId,
    expected: Mapping[PartitionId, int],
    held: Mapping[PartitionId, int],
) -> TransactionalId | Refusal:
    """Commit a transaction if every partition has all its staged entries; otherwise abort it.

    `expected` is the number of entries that the owner has staged, by partition. `held` is the number that the leader of
    each partition has applied; the leader counts them after a majority has confirmed that it leads. A partition with
    fewer entries has lost some, and could not carry out a commit. For a partition that was added and got no batch, the
    expected number is 0.
    """
    found = _open(state, transaction)
    if isinstance(found, Refusal):
        return found
    whole = expected.keys() <= found.unconfirmed and all(
        is_whole(expected.get(place, 0), held.get(place)) for place in found.unconfirmed
    )
    return _decide(state, found, Phase.COMMITTED if whole else Phase.ABORTED)


def is_whole(expected: int, held: int | None) -> bool:
    """Whether a partition holds all staged entries. `held` is None if the partition did not answer."""
    return held == expected


def abort(state: TransactionalId, transaction: TransactionId) -> TransactionalId | Refusal:
    """Roll an open transaction back."""
    found = _open(state, transaction)
    return found if isinstance(found, Refusal) else _decide(state, found, Phase.ABORTED)


def time_out(state: TransactionalId, now_us: int) -> TransactionalId:
    """Abort the open transaction if its time is up."""
    found = state.open
    return state if found is None or now_us < found.until_us else _decide(state, found, Phase.ABORTED)


def is_expired(state: TransactionalId, now_us: int) -> bool:
    """Whether the transactional id can be forgotten. Its next registration gets a fresh producer id."""
    return not state.transactions and now_us - state.used_us >= EXPIRY_US


# ---- what partitions ask and confirm -------------------------------------------------------------------------


def standing(state: TransactionalId | None, transaction: TransactionId, place: PartitionId) -> Standing:
    """Answer a partition. A transaction that is not remembered was aborted, or has already ended in that partition."""
    found = None if state is None else find(state, transaction)
    if state is None or found is None or place not in found.unconfirmed:
        return Standing.DISCARD
    if found.phase is Phase.OPEN:
        return Standing.OPEN
    if found.phase is Phase.ABORTED:
        return Standing.DISCARD
    return Standing.PUBLISH if is_next(state, found, place) else Standing.LATER


def ends(state: TransactionalId) -> list[End]:
    """The ends to send to partitions, again and again until they confirm them."""
    return [
        End(place, state.id_of(each), each.phase is Phase.COMMITTED)
        for each in state.transactions.values()
        if each.phase is not Phase.OPEN
        for place in sorted(each.unconfirmed)
        if is_next(state, each, place)
    ]


def is_next(state: TransactionalId, transaction: Transaction, place: PartitionId) -> bool:
    """Whether the partition has confirmed all earlier transactions of the producer, whose records come first."""
    return not any(
        each.number < transaction.number and place in each.unconfirmed for each in state.transactions.values()
    )


def confirm(state: TransactionalId, transaction: TransactionId, place: PartitionId) -> TransactionalId:
    """Note that a partition has applied the decision. The transaction is over when all its partitions have."""
    found = find(state, transaction)
    if found is None or found.phase is Phase.OPEN:
        return state
    return _with(state, replace(found, unconfirmed=found.unconfirmed - {place}))


# ---- one transaction -----------------------------------------------------------------------------------------


def find(state: TransactionalId, transaction: TransactionId) -> Transaction | None:
    """The transaction, if it is not over."""
    found = state.transactions.get(transaction.number)
    return found if found is not None and state.id_of(found) == transaction else None


def _open(state: TransactionalId, transaction: TransactionId) -> Transaction | Refusal:
    """The transaction if it is open and its owner is not fenced; otherwise the refusal of the owner's call."""
    found = find(state, transaction)
    if found is not None and found.phase is Phase.OPEN and found.epoch == state.epoch:
        return found
    return outcome(state, transaction)


def outcome(state: TransactionalId, transaction: TransactionId) -> Refusal:
    """The outcome of a transaction that is not open. Only the newest outcome and unfinished ones are remembered."""
    newest, found = state.outcome, find(state, transaction)
    phase = newest.phase if newest is not None and newest.transaction == transaction else found and found.phase
    if phase is Phase.COMMITTED:
        return Refusal.COMMITTED
    if phase is Phase.ABORTED:
        return Refusal.ABORTED
    fenced = transaction.producer_id != state.producer_id or transaction.epoch < state.epoch
    return Refusal.FENCED if fenced else Refusal.UNKNOWN


def _abort_open(state: TransactionalId) -> TransactionalId:
    found = state.open
    return state if found is None else _decide(state, found, Phase.ABORTED)


def _decide(state: TransactionalId, transaction: Transaction, phase: Phase) -> TransactionalId:
    decided = replace(transaction, phase=phase)
    return _with(replace(state, outcome=Outcome(state.id_of(transaction), phase)), decided)


def _with(state: TransactionalId, transaction: Transaction) -> TransactionalId:
    """The state with this transaction put in, or left out if all its partitions have confirmed the decision."""
    others = {number: each for number, each in state.transactions.items() if number != transaction.number}
    if transaction.phase is Phase.OPEN or transaction.unconfirmed:
        others[transaction.number] = transaction
    return replace(state, transactions=dict(sorted(others.items())))
