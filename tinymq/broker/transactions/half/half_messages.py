"""The half messages of one partition of `__coordinator`: a part of its state machine, beside the transactional ids.

The state has half messages that are not over, and the outcomes of the newest ones that are, for a call that is
repeated. Both are bounded, so past half messages take no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tinymq.base.errors import CorruptData
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half.half_commands import (
    BeginHalf,
    ConfirmHalf,
    CountCheck,
    EndHalf,
    GiveUpHalf,
    HalfCommand,
)
from tinymq.broker.transactions.half.half_message import HalfMessage, count, end, give_up, outcome_of, transaction_of
from tinymq.broker.transactions.message_parts import pack_ref, parse_ref
from tinymq.broker.transactions.phases import pack_phase, parse_phase
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.proto import group_pb2 as group_pb
from tinymq.proto import transaction_pb2 as pb

# These bounds are replicated behaviour, not settings. Each is of one partition of `__coordinator`.
HALVES_MAX = 10_000  # that are not over
GROUP_HALVES_MAX = 5_000  # of these, in one producer group
CONTEXT_BYTES_MAX = 4096  # of one half message
CONTEXTS_BYTES_MAX = 8 * 1024 * 1024  # of all of them
OUTCOMES_MAX = 10_000  # that are remembered: 500 KB


class HalfMessages:
    """Half messages by transaction, in the order in which they began."""

    def __init__(self) -> None:
        self._halves: dict[TransactionId, HalfMessage] = {}
        self._groups: Counter[str] = Counter()  # invariant: the number of half messages of each group, above 0
        self._contexts_bytes = 0  # invariant: the sum over all half messages
        self._outcomes: dict[TransactionId, Phase] = {}  # of the newest half messages that are over, the oldest first

    @property
    def halves(self) -> Mapping[TransactionId, HalfMessage]:
        """A view of the applied state."""
        return MappingProxyType(self._halves)

    @property
    def groups(self) -> Mapping[str, int]:
        """How many half messages each producer group has. A view, too."""
        return MappingProxyType(self._groups)

    def of_group(self, group: str) -> Iterator[HalfMessage]:
        return (half for half in self._halves.values() if half.group == group)

    def standing(self, transaction: TransactionId, place: PartitionId) -> Standing | None:
        """The answer to a partition that asks about a transaction; None: no unfinished half message is this
        transaction."""
        half = self._halves.get(transaction)
        if half is None:
            return None
        if half.place != place:
            return Standing.DISCARD
        if half.is_open:
            return Standing.OPEN
        return Standing.PUBLISH if half.phase is Phase.COMMITTED else Standing.DISCARD

    def outcome(self, group: str, transaction: TransactionId) -> Refusal:
        """The outcome of a half message that is not open."""
        half = self._halves.get(transaction)
        if half is not None and half.group != group:
            return Refusal.UNKNOWN
        phase = half.phase if half is not None else self._outcomes.get(transaction, Phase.OPEN)
        return Refusal.UNKNOWN if phase is Phase.OPEN else outcome_of(phase)

    # ---- commands

    def apply(self, group: str, command: HalfCommand, now_us: int) -> HalfMessage | Refusal:
        """Carry out a command, at the append time of its entry. Returns the half message after it, or why it changed
        nothing."""
        if isinstance(command, BeginHalf):
            return self._begin(group, command, now_us)
        half = self._halves.get(command.transaction)
        if half is None or half.group != group:
            return self.outcome(group, command.transaction)
        match command:
            case EndHalf(_, commit, held):
                after = end(half, commit=commit, held=held)
            case CountCheck(_, number):
                after = count(half, number, now_us)
            case GiveUpHalf(_):
                after = give_up(half, now_us)
            case ConfirmHalf(_):
                return half if half.is_open else self._confirm(half)
        if isinstance(after, HalfMessage):
            self._halves[after.transaction] = after
        return after

    def _begin(self, group: str, command: BeginHalf, now_us: int) -> HalfMessage | Refusal:
        transaction, size = transaction_of(command.producer_id), len(command.context)
        if transaction in self._halves or transaction in self._outcomes:
            return Refusal.USED_ID
        if len(self._halves) >= HALVES_MAX or self._groups[group] >= GROUP_HALVES_MAX:
            return Refusal.TOO_MANY
        if size > CONTEXT_BYTES_MAX or self._contexts_bytes + size > CONTEXTS_BYTES_MAX:
            return Refusal.TOO_MANY
        due_us = now_us + command.check_after_us
        half = HalfMessage(transaction, group, command.place, command.context, now_us, due_us)
        self._add(half)
        return half

    def _confirm(self, half: HalfMessage) -> HalfMessage:
        self._remove(half)
        self._outcomes[half.transaction] = half.phase
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        return half

    def forget_open(self) -> None:
        """Leave every open half message to an operator, because a part of the log is lost, perhaps with decisions."""
        for half in [half for half in self._halves.values() if half.is_open]:
            self._remove(half)

    def _add(self, half: HalfMessage) -> None:
        self._halves[half.transaction] = half
        self._groups[half.group] += 1
        self._contexts_bytes += len(half.context)

    def _remove(self, half: HalfMessage) -> None:
        del self._halves[half.transaction]
        self._contexts_bytes -= len(half.context)
        self._groups[half.group] -= 1
        if not self._groups[half.group]:
            del self._groups[half.group]

    # ---- snapshots

    def dump_into(self, stored: group_pb.CoordinatorState) -> None:
        """Add the state to a snapshot. Equal logs give equal bytes."""
        stored.half_messages.extend(_pack(half) for half in self._halves.values())
        stored.half_outcomes.extend(
            pb.TransactionOutcome(transaction=pack_ref(transaction), committed=phase is Phase.COMMITTED)
            for transaction, phase in self._outcomes.items()
        )

    @classmethod
    def load(cls, stored: group_pb.CoordinatorState) -> HalfMessages:
        """The inverse of `dump_into`. Raises CorruptData."""
        loaded = cls()
        for message in stored.half_messages:
            half = _parse(message)
            if half.transaction in loaded._halves:
                raise CorruptData("a half message is stored twice")
            loaded._add(half)
        loaded._outcomes = {
            parse_ref(each.transaction): Phase.COMMITTED if each.committed else Phase.ABORTED
            for each in stored.half_outcomes
        }
        return loaded


def _pack(half: HalfMessage) -> pb.HalfMessageState:
    return pb.HalfMessageState(
        transaction=pack_ref(half.transaction),
        producer_group=half.group,
        topic_id=half.place.topic_id,
        partition=half.place.partition,
        context=half.context,
        begun_us=half.begun_us,
        due_us=half.due_us,
        checks=half.checks,
        phase=pack_phase(half.phase),
    )


def _parse(message: pb.HalfMessageState) -> HalfMessage:
    return HalfMessage(
        transaction=parse_ref(message.transaction),
        group=message.producer_group,
        place=PartitionId(message.topic_id, message.partition),
        context=message.context,
        begun_us=message.begun_us,
        due_us=message.due_us,
        checks=message.checks,
        phase=parse_phase(message.phase),
    )
