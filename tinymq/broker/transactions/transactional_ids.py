"""The transactional ids of one partition of `__coordinator`: the part of its state machine that decides transactions.

Every replica applies the same commands in the same order and decides alike. The only clock is the append time of the
command's entry. After an accepted loss of a part of the log, the state may lack decisions: then only an operator
decides transactions that were begun before, and every transactional id gets a new producer id.

The state holds transactions that are not over and one outcome for each id, so past transactions take no room. The
numbers of ids and of partitions in transactions are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.commands import (
    Abort,
    Add,
    Begin,
    Commit,
    Confirm,
    Expire,
    IdCommand,
    NoteLoss,
    Register,
    Resolve,
    TimeOut,
    parse_command,
)
from tinymq.broker.transactions.half.half_commands import BeginHalf, HalfCommand, parse_half_command
from tinymq.broker.transactions.half.half_message import HalfMessage
from tinymq.broker.transactions.half.half_messages import HalfMessages
from tinymq.broker.transactions.message_parts import pack_places, pack_ref, parse_places, parse_ref
from tinymq.broker.transactions.phases import pack_phase, parse_phase
from tinymq.broker.transactions.resolutions import Resolutions
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.sink_application import SinkApplication
from tinymq.broker.transactions.sink_applications import SinkApplications
from tinymq.broker.transactions.sink_commands import SinkCommand
from tinymq.broker.transactions.transactional_id import Outcome, Phase, Transaction, TransactionalId
from tinymq.proto import group_pb2 as group_pb
from tinymq.proto import transaction_pb2 as pb

IDS_MAX = 10_000  # in one partition of `__coordinator`
PLACES_MAX = 100_000  # partitions without a confirmation, over all its transactions: 2 MB


class Applied(NamedTuple):
    """The result of a command: the state after it, or why it changed nothing."""

    name: str  # of a transactional id, or of a producer group
    result: TransactionalId | HalfMessage | Refusal | None  # None: no transactional id of that name is left


class SinkApplied(NamedTuple):
    """The result of a command on an application of Spark's sink: the state after it, or why it changed nothing."""

    name: str
    result: SinkApplication | Refusal | None


class Loss(NamedTuple):
    """The newest accepted loss of a part of the log."""

    recovery_epoch: int  # of the partition's CONFIG since then
    fresh_producer_id: int  # transactions with a lower producer id were begun before the loss


NO_LOSS = Loss(0, 0)


class TransactionalIds:
    """Transactional ids by name, and the half messages beside them."""

    def __init__(self) -> None:
        self.half_messages = HalfMessages()
        self._states: dict[str, TransactionalId] = {}
        self._names: dict[int, str] = {}  # by producer id
        self._unfinished: dict[str, None] = {}  # names of ids with a transaction that is not over
        self._loss = NO_LOSS
        self._resolutions = Resolutions()
        self.sinks = SinkApplications()
        self._places = 0  # invariant: the sum over all transactions of the partitions that have not confirmed

    @property
    def states(self) -> Mapping[str, TransactionalId]:
        """A view of the applied state."""
        return MappingProxyType(self._states)

    @property
    def loss(self) -> Loss:
        return self._loss

    @property
    def unfinished(self) -> Iterator[str]:
        """The names of the ids with a transaction that is not over."""
        return iter(self._unfinished)

    def owner_of(self, producer_id: int) -> str | None:
        """The transactional id that has this producer id. None: it expired, or has another producer id now."""
        return self._names.get(producer_id)

    def standing(self, transaction: TransactionId, place: PartitionId) -> Standing:
        """The answer to a partition that asks about a transaction."""
        of_sink = self.sinks.standing(transaction, place)
        if of_sink is not None:
            return of_sink
        half = self.half_messages.standing(transaction, place)
        if half is not None:
            return half
        if self._may_be_lost(transaction):
            return self._resolutions.standing(transaction)
        name = self._names.get(transaction.producer_id)
        return rules.standing(None if name is None else self._states[name], transaction, place)

    def _may_be_lost(self, transaction: TransactionId) -> bool:
        """Whether the decision on a transaction may be among what was lost."""
        if not self._is_before_loss(transaction.producer_id) or self.sinks.knows(transaction):
            return False
        name = self._names.get(transaction.producer_id)
        return name is None or rules.find(self._states[name], transaction) is None

    def _is_before_loss(self, producer_id: int) -> bool:
        return producer_id < self._loss.fresh_producer_id

    # ---- commands

    def apply(self, payload: bytes, append_time_us: int) -> Applied | SinkApplied | None:
        """Carry out a command. Never raises: bytes that are not a command change nothing, on every replica (None)."""
        parsed = parse_command(payload)
        if parsed is None:
            half = parse_half_command(payload)
            return None if half is None else self._apply_half(*half, append_time_us)
        name, command = parsed
        if isinstance(command, NoteLoss):
            self._note_loss(Loss(command.recovery_epoch, command.fresh_producer_id))
            return Applied("", None)
        if isinstance(command, Resolve):
            return Applied("", self._resolve(command))
        if isinstance(command, SinkCommand):
            first_producer_id = self._loss.fresh_producer_id
            return SinkApplied(name, self.sinks.apply(name, command, append_time_us, first_producer_id))
        before = self._states.get(name)
        result = self._decide(before, command, append_time_us)
        if not isinstance(result, Refusal) and result is not before:
            self._put(name, result)
        return Applied(name, result)

    def _apply_half(self, group: str, command: HalfCommand, now_us: int) -> Applied:
        if isinstance(command, BeginHalf) and self._is_before_loss(command.producer_id):
            return Applied(group, Refusal.USED_ID)
        return Applied(group, self.half_messages.apply(group, command, now_us))

    def _decide(
        self, state: TransactionalId | None, command: IdCommand, now_us: int
    ) -> TransactionalId | Refusal | None:
        if isinstance(command, Register):
            return self._register(state, command.fresh_producer_id, now_us)
        if state is None:
            return _without_id(command)
        if self._is_before_loss(state.producer_id) and not isinstance(command, Confirm | Expire):
            return Refusal.FENCED  # the owner registers again, and gets a producer id from after the loss
        match command:
            case Begin(producer_id, epoch, timeout_us):
                return rules.begin(state, producer_id, epoch, now_us, timeout_us)
            case Add(transaction, places):
                after = rules.add(state, transaction, places)
                if isinstance(after, Refusal):
                    return after
                added = _count_places(after) - _count_places(state)
                return Refusal.TOO_MANY if added and self._places + added > PLACES_MAX else after
            case Commit(transaction, expected, held):
                return rules.commit(state, transaction, expected, held)
            case Abort(transaction):
                return rules.abort(state, transaction)
            case Confirm(transaction, places):
                for place in places:
                    state = rules.confirm(state, transaction, place)
                return state
            case TimeOut():
                return rules.time_out(state, now_us)
            case Expire():
                return None if rules.is_expired(state, now_us) else state

    def _register(
        self, state: TransactionalId | None, fresh_producer_id: int, now_us: int
    ) -> TransactionalId | Refusal:
        if self._is_before_loss(fresh_producer_id):
            return Refusal.USED_ID
        if state is None:
            return Refusal.TOO_MANY if len(self._states) >= IDS_MAX else rules.register(None, fresh_producer_id, now_us)
        if self._is_before_loss(state.producer_id):
            return rules.replace_producer_id(state, fresh_producer_id, now_us)
        return rules.register(state, fresh_producer_id, now_us)

    def _note_loss(self, loss: Loss) -> None:
        """Leave every open transaction to an operator. Decided ones go on: their decisions are not lost."""
        if loss <= self._loss or loss.fresh_producer_id < self._loss.fresh_producer_id:
            return
        self._loss = loss
        self.sinks.note_loss()
        for name, state in list(self._states.items()):
            if state.open is not None:
                self._put(name, rules.without_open(state))
        self.half_messages.forget_open()

    def _resolve(self, command: Resolve) -> Refusal | None:
        """Carry out what an operator decided. Only a transaction that may be lost is left to an operator."""
        if not self._may_be_lost(command.transaction):
            return Refusal.KNOWN
        return self._resolutions.resolve(command.transaction, publish=command.publish)

    def _put(self, name: str, after: TransactionalId | None) -> None:
        """Replace the state of an id. None removes it."""
        before = self._states.pop(name, None)
        self._unfinished.pop(name, None)
        if before is not None:
            self._places -= _count_places(before)
            self._names.pop(before.producer_id, None)
        if after is not None:
            self._states[name] = after
            self._names[after.producer_id] = name
            self._places += _count_places(after)
            if after.transactions:
                self._unfinished[name] = None

    # ---- snapshots

    def dump_into(self, stored: group_pb.CoordinatorState) -> None:
        """Add the state to a snapshot, sorted by name: equal states have equal bytes."""
        stored.transactional_ids.extend(_pack_state(name, self._states[name]) for name in sorted(self._states))
        if self._loss != NO_LOSS:
            stored.loss.recovery_epoch, stored.loss.fresh_producer_id = self._loss
        stored.resolved.extend(self._resolutions.dump())
        stored.applications.extend(self.sinks.dump())
        self.half_messages.dump_into(stored)

    def load_from(self, stored: group_pb.CoordinatorState) -> None:
        """Replace the state by that of a snapshot. Raises CorruptData, and then nothing has changed."""
        loaded = {message.transactional_id: _parse_state(message) for message in stored.transactional_ids}
        sinks, half_messages = SinkApplications.load(stored.applications), HalfMessages.load(stored)
        resolutions = Resolutions.load(stored.resolved)
        self.sinks, self.half_messages, self._resolutions = sinks, half_messages, resolutions
        self._loss = Loss(stored.loss.recovery_epoch, stored.loss.fresh_producer_id)
        for name in list(self._states):
            self._put(name, None)
        for name, state in loaded.items():
            self._put(name, state)


def _without_id(command: IdCommand) -> Refusal | None:
    """The result of a command on an id that was never registered, or has expired."""
    if isinstance(command, Confirm | TimeOut | Expire):
        return None
    return Refusal.FENCED if isinstance(command, Begin) else Refusal.UNKNOWN


def _count_places(state: TransactionalId) -> int:
    return sum(len(each.unconfirmed) for each in state.transactions.values())


# ---- the bytes of the state ----------------------------------------------------------------------------------


def _pack_state(name: str, state: TransactionalId) -> pb.TransactionalIdState:
    outcome = state.outcome
    return pb.TransactionalIdState(
        transactional_id=name,
        producer_id=state.producer_id,
        epoch=state.epoch,
        number=state.number,
        used_us=state.used_us,
        outcome=None
        if outcome is None
        else pb.TransactionOutcome(
            transaction=pack_ref(outcome.transaction), committed=outcome.phase is Phase.COMMITTED
        ),
        transactions=[
            pb.TransactionState(
                number=each.number,
                epoch=each.epoch,
                until_us=each.until_us,
                phase=pack_phase(each.phase),
                unconfirmed=pack_places(each.unconfirmed),
            )
            for each in state.transactions.values()
        ],
    )


def _parse_state(message: pb.TransactionalIdState) -> TransactionalId:
    outcome = message.outcome
    return TransactionalId(
        producer_id=message.producer_id,
        epoch=message.epoch,
        number=message.number,
        used_us=message.used_us,
        outcome=Outcome(parse_ref(outcome.transaction), Phase.COMMITTED if outcome.committed else Phase.ABORTED)
        if message.HasField("outcome")
        else None,
        transactions={
            each.number: Transaction(
                number=each.number,
                epoch=each.epoch,
                until_us=each.until_us,
                phase=parse_phase(each.phase),
                unconfirmed=parse_places(each.unconfirmed),
            )
            for each in message.transactions
        },
    )
