"""The commands on transactional ids that a partition of `__coordinator` replicates, and the bytes of all its commands.

A command is decided when it is applied (transactional_ids.py), because the state may have changed since it was
proposed. Field numbers and meanings are in tinymq/proto/transaction.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.message_parts import (
    pack_counts,
    pack_places,
    pack_ref,
    parse_counts,
    parse_places,
    parse_ref,
)
from tinymq.broker.transactions.sink_commands import SinkCommand, pack_sink_command, parse_sink_command
from tinymq.format.entry import Kind
from tinymq.format.feature_level import TRANSACTIONS_LEVEL, entry_version
from tinymq.proto import transaction_pb2 as pb

COMMAND_VERSION = entry_version(
    Kind.COMMAND, TRANSACTIONS_LEVEL
)  # of the entries in `__coordinator` that carry one of these commands
TIMEOUT_US_MAX = 15 * 60 * 1_000_000  # of a transaction


@dataclass(frozen=True, slots=True)
class Register:
    """Give the transactional id to a new owner."""

    fresh_producer_id: int  # never used before, for the case that the id needs another producer id


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a transaction of the owner that has this producer id and epoch."""

    producer_id: int
    epoch: int
    timeout_us: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add partitions to a transaction."""

    transaction: TransactionId
    places: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit a transaction if `held` shows that every partition has what the owner expects; otherwise abort it."""

    transaction: TransactionId
    expected: Mapping[PartitionId, int]  # staged entries, as the owner counts them
    held: Mapping[PartitionId, int]  # staged entries that the partition's leader has applied


@dataclass(frozen=True, slots=True)
class Abort:
    """Roll a transaction back."""

    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class Confirm:
    """Note that these partitions have applied the end of a transaction."""

    transaction: TransactionId
    places: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class TimeOut:
    """Abort the open transaction if its time is up."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget the transactional id if nobody has used it for long enough."""


@dataclass(frozen=True, slots=True)
class NoteLoss:
    """Note that this partition of `__coordinator` has lost commands.

    Transactions that were open before the loss are left to an operator.
    """

    recovery_epoch: int  # of the partition's CONFIG since the loss
    fresh_producer_id: int  # above every producer id that was used before the loss


@dataclass(frozen=True, slots=True)
class Resolve:
    """Decide, as an operator, about a transaction that may have been decided before a loss."""

    transaction: TransactionId
    publish: bool


IdCommand: TypeAlias = Register | Begin | Add | Commit | Abort | Confirm | TimeOut | Expire
Command: TypeAlias = IdCommand | NoteLoss | Resolve


def pack_command(name: str, command: Command | SinkCommand) -> bytes:
    """The payload of an entry with this command on the transactional id, or the application, `name` ("" for a NoteLoss
    and a Resolve)."""
    pack: Callable[..., dict[str, Any]] = _PACK.get(type(command), pack_sink_command)
    message = pb.TransactionCommand(transactional_id=name, **pack(command))
    return message.SerializeToString(deterministic=True)


def parse_command(payload: bytes) -> tuple[str, Command | SinkCommand] | None:
    """The transactional id or application, and the command on it; None for bytes that are not a command."""
    try:
        message = pb.TransactionCommand.FromString(payload)
    except DecodeError:
        return None
    kind = message.WhichOneof("command")
    command = None if kind is None else _PARSE.get(kind, parse_sink_command)(message)
    return None if command is None else (message.transactional_id, command)


# ---- each command as a message -------------------------------------------------------------------------------


def _parse_begin(message: pb.BeginTransaction) -> Begin | None:
    if message.timeout_us > TIMEOUT_US_MAX:
        return None
    return Begin(message.producer_id, message.epoch, message.timeout_us)


_PACK: Mapping[type, Callable[..., dict[str, Any]]] = {
    Register: lambda c: {"register": pb.RegisterOwner(fresh_producer_id=c.fresh_producer_id)},
    Begin: lambda c: {"begin": pb.BeginTransaction(producer_id=c.producer_id, epoch=c.epoch, timeout_us=c.timeout_us)},
    Add: lambda c: {"add": pb.AddPartitions(transaction=pack_ref(c.transaction), topics=pack_places(c.places))},
    Commit: lambda c: {
        "commit": pb.CommitTransaction(transaction=pack_ref(c.transaction), counts=pack_counts(c.expected, c.held))
    },
    Abort: lambda c: {"abort": pb.AbortTransaction(transaction=pack_ref(c.transaction))},
    Confirm: lambda c: {"confirm": pb.ConfirmEnd(transaction=pack_ref(c.transaction), topics=pack_places(c.places))},
    TimeOut: lambda c: {"time_out": pb.TimeOutTransaction()},
    Expire: lambda c: {"expire": pb.ExpireTransactionalId()},
    NoteLoss: lambda c: {
        "note_loss": pb.NoteLoss(recovery_epoch=c.recovery_epoch, fresh_producer_id=c.fresh_producer_id)
    },
    Resolve: lambda c: {"resolve": pb.ResolveTransaction(transaction=pack_ref(c.transaction), publish=c.publish)},
}

_PARSE: Mapping[str, Callable[[pb.TransactionCommand], Command | None]] = {
    "register": lambda m: Register(m.register.fresh_producer_id),
    "begin": lambda m: _parse_begin(m.begin),
    "add": lambda m: Add(parse_ref(m.add.transaction), parse_places(m.add.topics)),
    "commit": lambda m: Commit(parse_ref(m.commit.transaction), *parse_counts(m.commit.counts)),
    "abort": lambda m: Abort(parse_ref(m.abort.transaction)),
    "confirm": lambda m: Confirm(parse_ref(m.confirm.transaction), parse_places(m.confirm.topics)),
    "time_out": lambda m: TimeOut(),
    "expire": lambda m: Expire(),
    "note_loss": lambda m: NoteLoss(m.note_loss.recovery_epoch, m.note_loss.fresh_producer_id),
    "resolve": lambda m: Resolve(parse_ref(m.resolve.transaction), m.resolve.publish),
}
