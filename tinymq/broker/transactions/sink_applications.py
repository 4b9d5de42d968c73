"""The applications of Spark's sink in one partition of `__coordinator`: its commands applied, and its bytes. Pure.

State does not grow with the number of committed versions. The numbers of applications, of partitions and of sets are
bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from tinymq.base.errors import CorruptData
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import sink_rules as rules
from tinymq.broker.transactions.message_parts import pack_places, parse_places
from tinymq.broker.transactions.phases import pack_phase, parse_phase
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.sink_application import Committed, SetsTransaction, SinkApplication, id_of
from tinymq.broker.transactions.sink_commands import (
    AddToSets,
    CommitSets,
    ConfirmSets,
    DiscardSets,
    ExpireApplication,
    OpenSet,
    SinkCommand,
    TimeOutSets,
)
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.proto import transaction_pb2 as pb

APPLICATIONS_MAX = 10_000  # in one partition of `__coordinator`
PLACES_MAX = 100_000  # partitions without a confirmation, summed over all transactions: 2 MB
NAMED_MAX = 1_000_000  # sets, summed over all committed transactions that are not over: 3 MB


class SinkApplications:
    """Applications by name."""

    def __init__(self) -> None:
        self._states: dict[str, SinkApplication] = {}
        self._names: dict[int, str] = {}  # by the producer id of a transaction that is not over
        # Invariants: the sums over all transactions.
        self._places = 0
        self._named = 0

    @property
    def states(self) -> Mapping[str, SinkApplication]:
        """A view of the applied state."""
        return MappingProxyType(self._states)

    @property
    def unfinished(self) -> Iterator[str]:
        """The names of the applications with sets that are not over."""
        return iter(dict.fromkeys(self._names.values()))

    def standing(self, transaction: TransactionId, place: PartitionId) -> Standing | None:
        """The answer to a partition that asks about a transaction. None: no transaction of sets has this name now."""
        name = self._names.get(transaction.producer_id)
        if name is None or transaction != id_of(transaction.producer_id):
            return None
        return rules.standing(self._states[name], transaction.producer_id, place)

    def knows(self, transaction: TransactionId) -> bool:
        """Whether this names a transaction of sets that is not over."""
        return transaction.producer_id in self._names and transaction == id_of(transaction.producer_id)

    # ---- commands

    def apply(
        self, name: str, command: SinkCommand, now_us: int, first_producer_id: int
    ) -> SinkApplication | Refusal | None:
        """Carry out a command. Returns the state after it, None if no such application is left, or why it changed
        nothing. Producer ids below `first_producer_id` may have been used before a loss."""
        before = self._states.get(name)
        result = self._decide(before, command, now_us, first_producer_id)
        if isinstance(result, Refusal):
            return result
        if result is not before:
            refusal = self._check_room(before, result)
            if refusal is not None:
                return refusal
            self._put(name, result)
        return result

    def _decide(
        self, state: SinkApplication | None, command: SinkCommand, now_us: int, first_producer_id: int
    ) -> SinkApplication | Refusal | None:
        if isinstance(command, OpenSet) and (
            command.fresh_producer_id < first_producer_id or command.fresh_producer_id in self._names
        ):
            return Refusal.USED_ID
        if state is None:
            if isinstance(command, AddToSets):
                return Refusal.ABORTED
            if not isinstance(command, OpenSet | CommitSets):
                return None
            if len(self._states) >= APPLICATIONS_MAX:
                return Refusal.TOO_MANY
            state = rules.NEW
        match command:
            case OpenSet():
                return rules.open_set(state, command, now_us)
            case AddToSets(producer_id, places):
                return rules.add(state, producer_id, places, now_us)
            case CommitSets():
                return rules.commit(state, command, now_us)
            case DiscardSets(producer_id):
                return rules.discard(state, producer_id)
            case ConfirmSets(producer_id, places):
                return rules.confirm(state, producer_id, places)
            case TimeOutSets():
                return rules.time_out(state, now_us)
            case ExpireApplication():
                return None if rules.is_expired(state, now_us) else state

    def _check_room(self, before: SinkApplication | None, after: SinkApplication | None) -> Refusal | None:
        more_places = _count_places(after) - _count_places(before)
        more_named = _count_named(after) - _count_named(before)
        over = more_places > 0 and self._places + more_places > PLACES_MAX
        over = over or (more_named > 0 and self._named + more_named > NAMED_MAX)
        return Refusal.TOO_MANY if over else None

    def note_loss(self) -> None:
        """Leave every open transaction to an operator. Decided ones go on: their decisions are not lost."""
        for name, state in list(self._states.items()):
            if any(each.phase is Phase.OPEN for each in state.transactions.values()):
                self._put(name, rules.without_open(state))

    def _put(self, name: str, after: SinkApplication | None) -> None:
        """Replace the state of an application. None removes it."""
        before = self._states.pop(name, None)
        for state, sign in ((before, -1), (after, 1)):
            self._places += sign * _count_places(state)
            self._named += sign * _count_named(state)
        for producer_id in before.transactions if before is not None else ():
            del self._names[producer_id]
        if after is not None:
            self._states[name] = after
            self._names.update(dict.fromkeys(after.transactions, name))

    # ---- snapshots

    def dump(self) -> list[pb.ApplicationState]:
        """The state, sorted by name: equal states have equal bytes."""
        return [_pack_state(name, self._states[name]) for name in sorted(self._states)]

    @classmethod
    def load(cls, stored: Iterable[pb.ApplicationState]) -> SinkApplications:
        """The inverse of `dump`. Raises CorruptData."""
        loaded = cls()
        for message in stored:
            state = _parse_state(message)
            if message.name in loaded._states or not loaded._names.keys().isdisjoint(state.transactions):
                raise CorruptData("an application of the sink is stored twice")
            loaded._put(message.name, state)
        return loaded


def _count_places(state: SinkApplication | None) -> int:
    return 0 if state is None else sum(len(each.unconfirmed) for each in state.transactions.values())


def _count_named(state: SinkApplication | None) -> int:
    return 0 if state is None else sum(len(each.sets) for each in state.transactions.values())


def _pack_state(name: str, state: SinkApplication) -> pb.ApplicationState:
    version, query, since = state.committed or (None, "", 0)
    return pb.ApplicationState(
        name=name,
        committed_version=version,
        committed_query=query,
        query_since=since,
        used_us=state.used_us,
        temporary=state.temporary,
        transactions=[
            pb.SetsState(
                producer_id=each.producer_id,
                version=each.version,
                run=each.run,
                timeout_us=each.timeout_us,
                until_us=each.until_us,
                opened=each.opened,
                phase=pack_phase(each.phase),
                unconfirmed=pack_places(each.unconfirmed),
                sets=each.sets,
            )
            for each in state.transactions.values()
        ],
    )


def _parse_state(message: pb.ApplicationState) -> SinkApplication:
    known = message.HasField("committed_version")
    return SinkApplication(
        committed=Committed(message.committed_version, message.committed_query, message.query_since) if known else None,
        used_us=message.used_us,
        temporary=message.temporary,
        transactions={
            each.producer_id: SetsTransaction(
                producer_id=each.producer_id,
                version=each.version,
                run=each.run,
                timeout_us=each.timeout_us,
                until_us=each.until_us,
                opened=each.opened,
                phase=parse_phase(each.phase),
                unconfirmed=parse_places(each.unconfirmed),
                sets=tuple(each.sets),
            )
            for each in message.transactions
        },
    )
