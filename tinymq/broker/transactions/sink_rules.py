"""Decisions on the sets of Spark's sink. Pure: each takes an application's state and returns the next.

A version is committed once, whatever tasks, drivers and zombies do: the first commit wins, and every later one of the
same query changes nothing. Only commits are remembered, so a version whose run was dropped is open again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from tinymq.base.types import PartitionId
from tinymq.broker.transactions.message_parts import Counts
from tinymq.broker.transactions.rules import DECIDED_MAX, PARTITIONS_MAX, Refusal, Standing, is_whole
from tinymq.broker.transactions.sink_application import Committed, SetsTransaction, SinkApplication
from tinymq.broker.transactions.sink_commands import CommitSets, OpenSet
from tinymq.broker.transactions.transactional_id import Phase

RUNS_MAX = 100  # runs of one application whose sets are not over
OPENED_MAX = 1_000_000  # sets of one run: attempts of its tasks
KEPT_US = 30 * 24 * 3600 * 1_000_000  # after this time without a call, an application is forgotten
KEPT_TEMPORARY_US = 3600 * 1_000_000  # the same, if nobody will use its name again: for commits without an answer

NEW = SinkApplication()


class SetsEnd(NamedTuple):
    """The end of a transaction of sets, which a partition's leader has to append."""

    place: PartitionId
    transaction: SetsTransaction


# ---- what tasks and drivers ask ------------------------------------------------------------------------------


def open_set(state: SinkApplication, command: OpenSet, now_us: int) -> SinkApplication | Refusal:
    """Give a task a set. Its number is `opened - 1` of its run's transaction in the next state (`open_of`)."""
    refusal = refuse_version(state, command.version, command.query)
    if refusal is not None:
        return refusal
    found = open_of(state, command.version, command.run)
    if found is None:
        if len(state.transactions) >= RUNS_MAX:
            return Refusal.TOO_MANY
        found = SetsTransaction(
            command.fresh_producer_id, command.version, command.run, command.timeout_us, until_us=now_us
        )
    if found.opened >= OPENED_MAX:
        return Refusal.TOO_MANY
    used = replace(state, used_us=now_us, temporary=command.temporary)
    return _with(used, replace(found, opened=found.opened + 1, until_us=now_us + found.timeout_us))


def refuse_version(state: SinkApplication, version: int, query: str) -> Refusal | None:
    """Why nothing more is written for this version: it is committed, or another query has used it."""
    newest = state.committed
    if newest is None or version > newest.version:
        return None
    return Refusal.COMMITTED if query == newest.query and version >= newest.since else Refusal.REUSED


def open_of(state: SinkApplication, version: int, run: str) -> SetsTransaction | None:
    """The transaction to which new sets of this run belong."""
    same = (each for each in state.transactions.values() if (each.version, each.run) == (version, run))
    return next((each for each in same if each.phase is Phase.OPEN), None)


def add(
    state: SinkApplication, producer_id: int, places: Collection[PartitionId], now_us: int
) -> SinkApplication | Refusal:
    """Add partitions before anything is staged in them, and renew the time of the run's sets."""
    found = _open(state, producer_id)
    if found is None:
        return Refusal.ABORTED
    unconfirmed = found.unconfirmed.union(places)
    if len(unconfirmed) > PARTITIONS_MAX:
        return Refusal.TOO_LARGE
    renewed = replace(found, unconfirmed=unconfirmed, until_us=now_us + found.timeout_us)
    return _with(replace(state, used_us=now_us), renewed)


def commit(state: SinkApplication, command: CommitSets, now_us: int) -> SinkApplication | Refusal:
    """Commit a version, if every partition has all batches of the sets; otherwise drop the sets of this run.

    All other sets up to this version are dropped: they are those of tasks that Spark did not take, and of runs that
    ended without a commit.
    """
    refusal = refuse_version(state, command.version, command.query)
    if refusal is not None:
        return refusal
    found = _open(state, command.producer_id)
    if command.producer_id and (found is None or found.version != command.version):
        return Refusal.ABORTED
    if found is not None:
        if _is_undone(found, command):
            return _with(replace(state, used_us=now_us), replace(found, phase=Phase.ABORTED))
        if sum(each.phase is Phase.COMMITTED for each in state.transactions.values()) >= DECIDED_MAX:
            return Refusal.TOO_MANY
    newest = state.committed
    since = newest.since if newest is not None and newest.query == command.query else command.version
    committed = Committed(command.version, command.query, since)
    after = replace(state, committed=committed, used_us=now_us, temporary=command.temporary)
    for each in state.transactions.values():
        if each is found:
            after = _with(after, replace(each, phase=Phase.COMMITTED, sets=command.sets))
        elif each.phase is Phase.OPEN and each.version <= command.version:
            after = _with(after, replace(each, phase=Phase.ABORTED))
    return after


def _is_undone(found: SetsTransaction, command: CommitSets) -> bool:
    """Whether a partition has lost a batch of the sets, or a set belongs to another run."""
    whole = _has_all(found.unconfirmed, command.expected, command.held)
    return not whole or any(each >= found.opened for each in command.sets)


def _has_all(places: Collection[PartitionId], expected: Counts, held: Counts) -> bool:
    return set(expected) <= set(places) and all(is_whole(expected.get(place, 0), held.get(place)) for place in places)


def discard(state: SinkApplication, producer_id: int) -> SinkApplication:
    """Drop the sets of a run. Once they are decided, this changes nothing."""
    found = _open(state, producer_id)
    return state if found is None else _with(state, replace(found, phase=Phase.ABORTED))


def time_out(state: SinkApplication, now_us: int) -> SinkApplication:
    """Drop the sets of runs whose time is up."""
    for each in state.transactions.values():
        if each.phase is Phase.OPEN and now_us >= each.until_us:
            state = _with(state, replace(each, phase=Phase.ABORTED))
    return state


def is_expired(state: SinkApplication, now_us: int) -> bool:
    """Whether the application can be forgotten."""
    kept_us = KEPT_TEMPORARY_US if state.temporary else KEPT_US
    return not state.transactions and now_us - state.used_us >= kept_us


# ---- what partitions ask and confirm -------------------------------------------------------------------------


def standing(state: SinkApplication, producer_id: int, place: PartitionId) -> Standing:
    """Answer a partition. It is not told to publish: only the coordinator's own message names the sets."""
    found = state.transactions.get(producer_id)
    if found is None or place not in found.unconfirmed or found.phase is Phase.ABORTED:
        return Standing.DISCARD
    return Standing.OPEN if found.phase is Phase.OPEN else Standing.LATER


def ends(state: SinkApplication) -> list[SetsEnd]:
    """The ends to send to partitions, again and again until they confirm them."""
    return [
        SetsEnd(place, each)
        for each in state.transactions.values()
        if each.phase is not Phase.OPEN
        for place in sorted(each.unconfirmed)
        if each.phase is Phase.ABORTED or is_next(state, each, place)
    ]


def is_next(state: SinkApplication, transaction: SetsTransaction, place: PartitionId) -> bool:
    """Whether the partition has confirmed all lower versions that were committed: their records come first."""
    return not any(
        each.phase is Phase.COMMITTED and each.version < transaction.version and place in each.unconfirmed
        for each in state.transactions.values()
    )


def confirm(state: SinkApplication, producer_id: int, places: Collection[PartitionId]) -> SinkApplication:
    """Note that partitions have applied the decision. The sets are over when all partitions have."""
    found = state.transactions.get(producer_id)
    if found is None or found.phase is Phase.OPEN:
        return state
    return _with(state, replace(found, unconfirmed=found.unconfirmed.difference(places)))


def without_open(state: SinkApplication) -> SinkApplication:
    """The state without its open transactions, about which an operator has to decide after a loss."""
    left = {name: each for name, each in state.transactions.items() if each.phase is not Phase.OPEN}
    return replace(state, transactions=left)


def _open(state: SinkApplication, producer_id: int) -> SetsTransaction | None:
    found = state.transactions.get(producer_id)
    return found if found is not None and found.phase is Phase.OPEN else None


def _with(state: SinkApplication, transaction: SetsTransaction) -> SinkApplication:
    """The state with this transaction put in, or left out if all its partitions have confirmed the decision."""
    others = {name: each for name, each in state.transactions.items() if name != transaction.producer_id}
    if transaction.phase is Phase.OPEN or transaction.unconfirmed:
        others[transaction.producer_id] = transaction
    return replace(state, transactions=dict(sorted(others.items())))
