"""The commands on the applications of Spark's sink that a partition of `__coordinator` replicates, and their bytes.

Field numbers and meanings are in tinymq/proto/transaction.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tinymq.base.types import PartitionId
from tinymq.broker.transactions.message_parts import pack_counts, pack_places, parse_counts, parse_places
from tinymq.proto import transaction_pb2 as pb

TIMEOUT_US_MAX = 7 * 24 * 3600 * 1_000_000  # of the sets of a run
RUN_LENGTH_MAX = 64  # characters of a run and of a query's id
SETS_MAX = 10_000  # of one commit


@dataclass(frozen=True, slots=True)
class OpenSet:
    """Give a task of a run the number of a set. The first one begins the transaction of the run's sets."""

    version: int
    run: str
    query: str
    fresh_producer_id: int  # never used before; names the transaction, if the set is its first
    timeout_us: int
    temporary: bool = False  # nobody will use the name of the application again


@dataclass(frozen=True, slots=True)
class AddToSets:
    """Add partitions to a transaction of sets. Without partitions, the command only renews the transaction's time."""

    producer_id: int
    places: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class CommitSets:
    """Commit a version with the sets of some tasks, if `held` shows that every partition has all their batches."""

    version: int
    query: str
    producer_id: int  # of the transaction; 0: no task had a row
    sets: tuple[int, ...]
    expected: Mapping[PartitionId, int]  # staged entries of these sets, as their tasks count them
    held: Mapping[PartitionId, int]  # staged entries of these sets that the partition's leader has applied
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class DiscardSets:
    """Drop all sets of a run, unless they are committed."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class ConfirmSets:
    """Note that these partitions have applied the end of a transaction of sets."""

    producer_id: int
    places: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class TimeOutSets:
    """Drop the sets of runs whose time is up."""


@dataclass(frozen=True, slots=True)
class ExpireApplication:
    """Forget the application if nobody has used it for long enough."""


SinkCommand: TypeAlias = OpenSet | AddToSets | CommitSets | DiscardSets | ConfirmSets | TimeOutSets | ExpireApplication


def pack_sink_command(command: SinkCommand) -> dict[str, Any]:
    """The field of a TransactionCommand that has the command."""
    return _PACK[type(command)](command)


def parse_sink_command(message: pb.TransactionCommand) -> SinkCommand | None:
    """The inverse. None for a command that no coordinator proposes."""
    kind = message.WhichOneof("command")
    assert kind is not None, "an empty message is no command"
    parse = _PARSE.get(kind)
    return None if parse is None else parse(message)


def _parse_open(m: pb.OpenSet) -> OpenSet | None:
    if m.timeout_us > TIMEOUT_US_MAX or max(len(m.run), len(m.query)) > RUN_LENGTH_MAX or not m.fresh_producer_id:
        return None
    return OpenSet(m.version, m.run, m.query, m.fresh_producer_id, m.timeout_us, m.temporary)


def _parse_commit(m: pb.CommitSets) -> CommitSets | None:
    sets = tuple(m.sets)
    if len(sets) > SETS_MAX or len(m.query) > RUN_LENGTH_MAX or list(sets) != sorted({*sets}):
        return None
    if bool(m.producer_id) != bool(sets):  # a partition that is told to publish no set would publish all
        return None
    return CommitSets(m.version, m.query, m.producer_id, sets, *parse_counts(m.counts), m.temporary)


_PACK: Mapping[type, Callable[..., dict[str, Any]]] = {
    OpenSet: lambda c: {
        "open_set": pb.OpenSet(
            version=c.version, run=c.run, query=c.query, fresh_producer_id=c.fresh_producer_id,
            timeout_us=c.timeout_us, temporary=c.temporary,
        )
    },
    AddToSets: lambda c: {"add_to_sets": pb.AddToSets(producer_id=c.producer_id, topics=pack_places(c.places))},
    CommitSets: lambda c: {
        "commit_sets": pb.CommitSets(
            version=c.version, query=c.query, producer_id=c.producer_id, sets=c.sets,
            counts=pack_counts(c.expected, c.held), temporary=c.temporary,
        )
    },
    DiscardSets: lambda c: {"discard_sets": pb.DiscardSets(producer_id=c.producer_id)},
    ConfirmSets: lambda c: {"confirm_sets": pb.ConfirmSets(producer_id=c.producer_id, topics=pack_places(c.places))},
    TimeOutSets: lambda c: {"time_out_sets": pb.TimeOutSets()},
    ExpireApplication: lambda c: {"expire_application": pb.ExpireApplication()},
}  # fmt: skip

_PARSE: Mapping[str, Callable[[pb.TransactionCommand], SinkCommand | None]] = {
    "open_set": lambda m: _parse_open(m.open_set),
    "add_to_sets": lambda m: AddToSets(m.add_to_sets.producer_id, parse_places(m.add_to_sets.topics)),
    "commit_sets": lambda m: _parse_commit(m.commit_sets),
    "discard_sets": lambda m: DiscardSets(m.discard_sets.producer_id),
    "confirm_sets": lambda m: ConfirmSets(m.confirm_sets.producer_id, parse_places(m.confirm_sets.topics)),
    "time_out_sets": lambda m: TimeOutSets(),
    "expire_application": lambda m: ExpireApplication(),
}
