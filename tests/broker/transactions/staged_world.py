"""What worlds of staged commands share: the coordinator, the messages, and the decisions of a partition's leader.

A staged command is judged by the rules that ship (staging.py), on each side of a question to the coordinator. What it
does, the worlds say: offsets of stream groups (offset_world.py), and acks of queue groups (ack_world.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tests.broker.transactions.transaction_world import carry_out, machine
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.commands import Commit, Confirm, IdCommand, TimeOut, pack_command
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step
from tinymq.broker.transactions.transactional_id import TransactionalId

INPUT = PartitionId(b"i" * 16, 0)
TIMEOUT_US = 60

State = Any
"""A NamedTuple with these fields: coordinator, tail, asked, waiting, net, decided, timeouts. An entry of `tail`
and `waiting` names its `kind` and its `transaction`."""


class Message(NamedTuple):
    """What is on its way, and may arrive late."""

    kind: str  # to the partition: "stage", "answer", "end"; to the coordinator: "commit", "counted"
    transaction: TransactionId
    detail: Any = None


def id_of(number: int) -> str:
    """The transactional id of a member, whose producer id is `number` + 1."""
    return f"member-{number}"


def is_open(coordinator: bytes, transaction: TransactionId) -> bool:
    return machine(coordinator).standing(transaction, INPUT) is Standing.OPEN


class StagedWorld:
    """The steps that are the same for each kind of staged command. One partition, in which each transaction stages one
    command."""

    writer: ClassVar[int]  # under which the commands are numbered
    scope: Any

    def staging(self, state: State) -> tuple[Staging, dict[int, Question]]:
        """The leader's decisions, as they are with this log, tail and open questions."""
        raise NotImplementedError

    def append(self, state: State, entry: Any) -> State:
        """Append a staged command that Staging has let through, or refuse it for another reason."""
        return state._replace(tail=(*state.tail, entry))

    def refuse(self, state: State, entry: Any) -> State:
        """The command comes after the end of its transaction, or was refused."""
        return state

    def end_entry(self, transaction: TransactionId, publish: bool) -> Any:
        raise NotImplementedError

    # ---- messages

    def _arrive(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        net = dict(state.net)
        net[message] -= 1
        if not net[message]:
            del net[message]
        state = state._replace(net=frozenset(net.items()))
        transaction, called = message.transaction, f"{message.kind} of {message.transaction}"
        if message.kind == "stage":
            yield called, self._judge(state, [message.detail])
        elif message.kind == "answer":
            serial, is_open = message.detail
            mine = [each for each in state.waiting if each.transaction == transaction]
            rest = tuple(each for each in state.waiting if each.transaction != transaction)
            counts = (transaction, serial) in state.asked
            yield called, self._judge(state._replace(waiting=rest), mine, serial if counts else -1, is_open)
        elif message.kind == "end":
            yield called, self._end(state, transaction, message.detail)
        elif message.kind == "commit":  # the coordinator asks the leader
            held = self.staging(state)[0].held(transaction)
            yield called, self._send(state, Message("counted", transaction, held), 1)
        elif message.kind == "counted":
            name = id_of(transaction.producer_id - 1)
            yield called, self._decide(state, name, Commit(transaction, {INPUT: 1}, {INPUT: message.detail}))[0]

    def _judge(self, state: State, staged: Sequence[Any], serial: int = -1, is_open: bool = False) -> State:
        for entry in staged:
            assert entry.transaction is not None
            staging, questions = self.staging(state)
            batch = StagedBatch(entry.transaction, self.writer, 0)
            step = staging.judge(batch, questions.get(serial), is_open=is_open)
            if step is Step.APPEND:
                state = self.append(state, entry)
            elif step is Step.ENDED:
                state = self.refuse(state, entry)
            elif step in (Step.ASK, Step.WAIT):
                state = state._replace(waiting=tuple(sorted({*state.waiting, entry})))
                if step is Step.ASK:
                    state = self._ask(state, entry.transaction)
        staging, questions = self.staging(state)
        if serial in questions:
            staging.answered(questions[serial])
        return state._replace(asked=_kept(state, staging, questions))

    def _ask(self, state: State, transaction: TransactionId) -> State:
        answers = [message.detail[0] for message, _ in state.net if message.kind == "answer"]
        serial = 1 + max([*answers, *(serial for _, serial in state.asked)], default=0)  # no late answer has it
        others = tuple(each for each in state.asked if each[0] != transaction)
        asking = state._replace(asked=tuple(sorted((*others, (transaction, serial)))))
        answer = Message("answer", transaction, (serial, is_open(state.coordinator, transaction)))
        return self._send(asking, answer, 1)

    def _end(self, state: State, transaction: TransactionId, publish: bool) -> State:
        staging, questions = self.staging(state)
        step = staging.judge_end(transaction)
        state = state._replace(asked=_kept(state, staging, questions))
        if step is EndStep.APPEND:
            return state._replace(tail=(*state.tail, self.end_entry(transaction, publish)))
        return self._confirm(state, transaction) if step is EndStep.CONFIRM else state

    def _told(self, state: State, transaction: TransactionId, called: str) -> Iterator[tuple[str, State]]:
        """The coordinator answers the partition, which ends what is decided."""
        answer = machine(state.coordinator).standing(transaction, INPUT)
        message = Message("end", transaction, answer is Standing.PUBLISH)
        if answer in (Standing.PUBLISH, Standing.DISCARD) and message not in dict(state.net):
            yield f"{called}: {answer.value}", self._send(state, message, 1)

    def _coordinator(self, state: State) -> Iterator[tuple[str, State]]:
        for name, known in machine(state.coordinator).states.items():
            if known.open is not None and state.timeouts < self.scope.timeouts:
                late = state._replace(timeouts=state.timeouts + 1)
                yield f"time-out of {name}", self._decide(late, name, TimeOut(), now_us=TIMEOUT_US)[0]
            for end in rules.ends(known):
                message = Message("end", end.transaction, end.publish)
                if message not in dict(state.net):
                    yield f"the coordinator ends {end.transaction}", self._send(state, message, 1)

    def _confirm(self, state: State, transaction: TransactionId) -> State:
        name = id_of(transaction.producer_id - 1)
        return self._decide(state, name, Confirm(transaction, frozenset({INPUT})))[0]

    def _decide(
        self, state: State, name: str, command: IdCommand, now_us: int = 0
    ) -> tuple[State, TransactionalId | Refusal | None]:
        """Have the coordinator replicate a command, and note its decision."""
        coordinator, (_, result) = carry_out(state.coordinator, pack_command(name, command), now_us)
        outcome = result.outcome if isinstance(result, TransactionalId) else None
        decided = state.decided
        if outcome is not None and (outcome.transaction, outcome.phase) not in decided:
            decided = (*decided, (outcome.transaction, outcome.phase))
        return state._replace(coordinator=coordinator, decided=decided), result

    @staticmethod
    def _send(state: State, message: Message, deliveries: int) -> State:
        return state._replace(net=frozenset({**dict(state.net), message: deliveries}.items()))


def _kept(state: State, staging: Staging, questions: Mapping[int, Question]) -> tuple[tuple[TransactionId, int], ...]:
    return tuple(
        (transaction, serial)
        for transaction, serial in state.asked
        if staging.asked.get(transaction) == questions[serial]
    )
