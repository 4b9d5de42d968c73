"""The commands on half messages that a partition of `__coordinator` replicates, and their bytes.

They are decided when they are applied, as those on transactional ids are (commands.py), and their entries look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half.half_message import CHECK_AFTER_US_MAX
from tinymq.broker.transactions.message_parts import pack_ref, parse_ref
from tinymq.proto import transaction_pb2 as pb


@dataclass(frozen=True, slots=True)
class BeginHalf:
    """Begin a half message in a partition."""

    producer_id: int  # never used before
    place: PartitionId
    context: bytes
    check_after_us: int  # at most CHECK_AFTER_US_MAX


@dataclass(frozen=True, slots=True)
class EndHalf:
    """Commit a half message if its partition holds its batch, or roll it back."""

    transaction: TransactionId
    commit: bool
    held: int | None = None  # staged batches that the partition's leader has applied; None: it has not answered


@dataclass(frozen=True, slots=True)
class CountCheck:
    """Note that a check was answered, and that the outcome is unknown."""

    transaction: TransactionId
    number: int


@dataclass(frozen=True, slots=True)
class GiveUpHalf:
    """Roll a half message back if its schedule is over."""

    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class ConfirmHalf:
    """Note that the partition has applied the end of a half message."""

    transaction: TransactionId


HalfCommand: TypeAlias = BeginHalf | EndHalf | CountCheck | GiveUpHalf | ConfirmHalf


def pack_half_command(group: str, command: HalfCommand) -> bytes:
    """The payload of an entry with this command on a half message of a producer group."""
    message = pb.TransactionCommand(transactional_id=group, **_PACK[type(command)](command))
    return message.SerializeToString(deterministic=True)


def parse_half_command(payload: bytes) -> tuple[str, HalfCommand] | None:
    """The producer group, and the command on one of its half messages; None for bytes that are not such a command."""
    try:
        message = pb.TransactionCommand.FromString(payload)
    except DecodeError:
        return None
    parse = _PARSE.get(message.WhichOneof("command") or "")
    command = None if parse is None else parse(message)
    return None if command is None else (message.transactional_id, command)


_PACK: Mapping[type, Callable[..., dict[str, Any]]] = {
    BeginHalf: lambda c: {
        "begin_half": pb.BeginHalfMessage(
            producer_id=c.producer_id, topic_id=c.place.topic_id, partition=c.place.partition, context=c.context,
            check_after_us=c.check_after_us,
        )
    },
    EndHalf: lambda c: {
        "end_half": pb.EndHalfMessage(transaction=pack_ref(c.transaction), commit=c.commit, held=c.held)
    },
    CountCheck: lambda c: {"count_check": pb.CountCheck(transaction=pack_ref(c.transaction), number=c.number)},
    GiveUpHalf: lambda c: {"give_up_half": pb.GiveUpHalfMessage(transaction=pack_ref(c.transaction))},
    ConfirmHalf: lambda c: {"confirm_half": pb.ConfirmHalfMessage(transaction=pack_ref(c.transaction))},
}  # fmt: skip


def _parse_begin(message: pb.BeginHalfMessage) -> BeginHalf | None:
    if message.check_after_us > CHECK_AFTER_US_MAX:
        return None
    place = PartitionId(message.topic_id, message.partition)
    return BeginHalf(message.producer_id, place, message.context, message.check_after_us)


def _parse_end(message: pb.EndHalfMessage) -> EndHalf:
    held = message.held if message.HasField("held") else None
    return EndHalf(parse_ref(message.transaction), message.commit, held)


_PARSE: Mapping[str, Callable[[pb.TransactionCommand], HalfCommand | None]] = {
    "begin_half": lambda m: _parse_begin(m.begin_half),
    "end_half": lambda m: _parse_end(m.end_half),
    "count_check": lambda m: CountCheck(parse_ref(m.count_check.transaction), m.count_check.number),
    "give_up_half": lambda m: GiveUpHalf(parse_ref(m.give_up_half.transaction)),
    "confirm_half": lambda m: ConfirmHalf(parse_ref(m.confirm_half.transaction)),
}
