"""A small world of one coordinator, two partitions and the owners of one transactional id, as states and steps.

The rules are those that ship (tinymq/broker/transactions). Around them: messages that are late and twice, batches and
ends that are appended and then lost with their leader, time-outs at any moment, an owner that registers while another
one works, and answers that do not arrive. A step leads from one state to the next, so that a search can visit all of
them. What a majority has not confirmed is said by nobody here, unless a `Flaw` lets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from tinymq.broker.members.group_members import PartitionId
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId

A, B = PartitionId(b"a" * 16, 0), PartitionId(b"b" * 16, 0)
NAMES = {A: "A", B: "B"}
TIMEOUT_US = 60


class Flaw(Enum):
    """What a broker could do wrong that no rule of `tinymq/broker/transactions` can prevent."""

    NONE = "none"
    DEPOSED_LEADERS_CONFIRM = "a leader that does not know that it was deposed says that nothing is staged"
    DEPOSED_COORDINATORS_ANSWER = "a coordinator that does not know that it was deposed answers by what it knew"


@dataclass(frozen=True)
class Scope:
    """How much may happen in one world."""

    batches: Mapping[
        int, Mapping[PartitionId, Sequence[int]]
    ]  # by transaction of the first owner: the writers of batches
    deliveries: int = 2  # of each batch
    ends: int = 1  # deliveries of each end; the coordinator sends it again until it is confirmed
    rollbacks: bool = False  # an owner may roll back at any moment
    elections: int = 1  # of partitions, together
    timeouts: int = 1
    owners: int = 1  # the second one registers at any moment, and has one transaction in A
    expires: bool = False  # the transactional id may expire once its transactions are over
    hasty: bool = False  # an owner may commit what has not been acknowledged
    flaw: Flaw = Flaw.NONE
    ordered: bool = False  # the same steps in each process, for random paths


class Message(NamedTuple):
    """What is on its way to a partition, and how often it may still arrive."""

    kind: str  # "stage", "answer", "end", "decided"
    place: PartitionId
    transaction: TransactionId
    detail: Any  # the batch; (question, open); whether to publish


class Entry(NamedTuple):
    """An entry of a partition's log."""

    transaction: TransactionId
    batch: StagedBatch | None  # None: the end
    publish: bool = False


class Part(NamedTuple):
    """One partition, as its present leader has it."""

    log: tuple[Entry, ...] = ()
    tail: tuple[Entry, ...] = ()
    asked: tuple[tuple[TransactionId, int], ...] = ()
    waiting: tuple[StagedBatch, ...] = ()
    serial: int = 0


class Owner(NamedTuple):
    """The program counter of one owner, and what it was told."""

    number: int  # of the owner, from 0
    step: int = -1  # -1: it has to register
    producer_id: int = 0
    epoch: int = 0
    transaction: TransactionId | None = None
    done: int = 0  # transactions
    told: tuple[tuple[TransactionId, Phase], ...] = ()


class Decision(NamedTuple):
    """A decision, as an observer of the coordinator's log has seen it."""

    transaction: TransactionId
    phase: Phase
    batches: frozenset[tuple[PartitionId, StagedBatch]] = frozenset()  # all that its owner wrote, if it was committed


class State(NamedTuple):
    """One state of the world."""

    coordinator: TransactionalId | None
    parts: tuple[tuple[PartitionId, Part], ...]
    owners: tuple[Owner, ...]
    net: frozenset[tuple[Message, int]]
    decided: tuple[Decision, ...]
    elections: int
    timeouts: int
    fresh: int  # the next producer id
    deposed: tuple[Any, ...] = ()  # what a deposed coordinator still knows

    @property
    def key(self) -> tuple[Any, ...]:
        """The state as a value that can be hashed."""
        return (_frozen(self.coordinator), *self[1:8], tuple(_frozen(each) for each in self.deposed))


def _frozen(state: TransactionalId | None) -> Any:
    if state is None:
        return None
    return (
        state.producer_id, state.epoch, state.number, state.outcome, tuple(state.transactions.items())
    )  # fmt: skip


class World:
    """The steps that can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def first(self) -> State:
        owners = tuple(Owner(number) for number in range(self.scope.owners))
        return State(None, ((A, Part()), (B, Part())), owners, frozenset(), (), 0, 0, 1)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        moved = False
        for step in self._steps(state):
            moved = True
            yield step
        known = state.coordinator
        if not moved and known is not None and known.open is not None:
            yield "time-out, at last", self._move(state, rules.time_out(known, known.open.until_us))

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for owner in state.owners:
            yield from self._owner(state, owner)
        for message, _ in sorted(state.net, key=repr) if self.scope.ordered else state.net:
            yield from self._arrive(state, message)
        yield from self._coordinator(state)
        for place, part in state.parts:
            yield from self._partition(state, place, part)

    # ---- owners

    def plan(self, owner: Owner) -> Mapping[PartitionId, Sequence[int]] | None:
        """The partitions of the owner's next transaction, and the writer of each batch; None: it has no other."""
        if owner.number:
            return {A: [0]} if not owner.done else None
        return self.scope.batches.get(owner.done + 1)

    def _batches(self, owner: Owner) -> list[tuple[PartitionId, StagedBatch]]:
        plan, numbers, found = self.plan(owner) or {}, dict[tuple[PartitionId, int], int](), []
        assert owner.transaction is not None
        for place, writers in plan.items():
            for writer in writers:
                number = numbers.get((place, writer), 0)
                numbers[place, writer] = number + 1
                found.append((place, StagedBatch(owner.transaction, writer, number)))
        return found

    def _owner(self, state: State, owner: Owner) -> Iterator[tuple[str, State]]:
        plan, name = self.plan(owner), f"owner {owner.number}"
        if plan is None:
            return
        if owner.step == -1:
            new = rules.register(state.coordinator, state.fresh, 0)
            registered = owner._replace(step=0, producer_id=new.producer_id, epoch=new.epoch)
            yield f"{name} registers", self._move(state._replace(fresh=state.fresh + 1), new, registered)
        elif owner.step == 0:
            known = state.coordinator
            fenced = known is None or known.producer_id != owner.producer_id
            begun = Refusal.FENCED if known is None or fenced else rules.begin(known, owner.epoch, 0, TIMEOUT_US)
            if begun is Refusal.FENCED:
                yield f"{name} is fenced", self._told(state, owner, end=True)
            elif isinstance(begun, TransactionalId):
                transaction = TransactionId(begun.producer_id, begun.epoch, begun.number)
                added = rules.add(begun, transaction, plan.keys())
                assert isinstance(added, TransactionalId)
                moved = owner._replace(step=1, transaction=transaction)
                yield f"{name} begins {transaction.number}", self._move(state, added, moved)
        elif owner.step == 1:
            net = dict(state.net)
            for place, batch in self._batches(owner):
                net[Message("stage", place, batch.transaction, batch)] = self.scope.deliveries
            sent = owner._replace(step=2)
            yield f"{name} sends its batches", self._with_owner(state._replace(net=_net(net)), sent)
        else:
            yield from self._ending(state, owner, name)

    def _ending(self, state: State, owner: Owner, name: str) -> Iterator[tuple[str, State]]:
        assert owner.transaction is not None
        if state.coordinator is None:  # it has expired
            yield f"{name} is fenced", self._told(state, owner, end=True)
            return
        transaction, logs = owner.transaction, {place: part.log for place, part in state.parts}
        whole = all(Entry(transaction, batch) in logs[place] for place, batch in self._batches(owner))
        if whole or self.scope.hasty:
            expected: dict[PartitionId, int] = {}
            for place, _ in self._batches(owner):
                expected[place] = expected.get(place, 0) + 1
            held = {place: self._staging(part)[0].held(transaction) for place, part in state.parts}
            decided = rules.commit(state.coordinator, transaction, expected, held)
            yield from self._answer(state, owner, name, "commits", decided)
        if self.scope.rollbacks or not isinstance(rules.abort(state.coordinator, transaction), TransactionalId):
            yield from self._answer(state, owner, name, "rolls back", rules.abort(state.coordinator, transaction))

    def _answer(
        self, state: State, owner: Owner, name: str, verb: str, result: TransactionalId | Refusal
    ) -> Iterator[tuple[str, State]]:
        """The owner is told, or the answer is lost and it asks again."""
        assert owner.transaction is not None
        after = self._move(state, result, owner) if isinstance(result, TransactionalId) else state
        if after is not state:
            yield f"{name} {verb}, and gets no answer", after
        if isinstance(result, TransactionalId):
            phase = next(each.phase for each in after.decided if each.transaction == owner.transaction)
        elif result in (Refusal.COMMITTED, Refusal.ABORTED):
            phase = Phase.COMMITTED if result is Refusal.COMMITTED else Phase.ABORTED
        else:
            yield f"{name} {verb}: {result.value}", self._told(after, owner, end=result is Refusal.FENCED)
            return
        yield f"{name} {verb}: {phase.value}", self._told(after, owner, phase)

    def _told(self, state: State, owner: Owner, phase: Phase | None = None, *, end: bool = False) -> State:
        told = owner.told
        if phase is not None and owner.transaction is not None:
            told = (*told, (owner.transaction, phase))
        done = 99 if end else owner.done + 1
        return self._with_owner(state, owner._replace(step=0, transaction=None, done=done, told=told))

    # ---- messages to partitions

    def _arrive(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        net = dict(state.net)
        net[message] -= 1
        if not net[message]:
            del net[message]
        state = state._replace(net=_net(net))
        place, transaction = message.place, message.transaction
        part = dict(state.parts)[place]
        called = f"{message.kind} of {transaction.number} at {NAMES[place]}"
        if message.kind == "stage":
            yield called, self._judge(state, place, part, [message.detail])
        elif message.kind == "answer":
            serial, is_open = message.detail
            counts = (transaction, serial) in part.asked
            waiting = [batch for batch in part.waiting if batch.transaction == transaction]
            rest = tuple(batch for batch in part.waiting if batch.transaction != transaction)
            if waiting:
                answer = serial if counts else -1
                yield called, self._judge(state, place, part._replace(waiting=rest), waiting, answer, is_open)
        elif message.kind in ("end", "decided"):
            yield from self._end(state, message, part, called)

    def _judge(
        self, state: State, place: PartitionId, part: Part, batches: Sequence[StagedBatch], serial: int = -1,
        is_open: bool = False,
    ) -> State:  # fmt: skip
        """Have the leader decide about batches, with the answer to a question if `serial` names one that counts."""
        for batch in sorted(batches):
            staging, questions = self._staging(part)
            question = questions.get(serial)
            step = staging.judge(batch, question, is_open=is_open)
            if step is Step.APPEND:
                part = part._replace(tail=(*part.tail, Entry(batch.transaction, batch)))
            elif step in (Step.ASK, Step.WAIT):
                part = part._replace(waiting=tuple(sorted({*part.waiting, batch})))
                if step is Step.ASK:
                    part, state = self._ask(state, place, part, batch.transaction)
        if serial >= 0:
            staging, questions = self._staging(part)
            if serial in questions:
                staging.answered(questions[serial])
            part = part._replace(asked=_kept(part, staging, questions))
        return self._with_part(state, place, part)

    def _ask(self, state: State, place: PartitionId, part: Part, transaction: TransactionId) -> tuple[Part, State]:
        serial = part.serial + 1
        others = tuple(each for each in part.asked if each[0] != transaction)
        part = part._replace(asked=tuple(sorted((*others, (transaction, serial)))), serial=serial)
        is_open = rules.standing(state.coordinator, transaction, place) is Standing.OPEN
        net = {**dict(state.net), Message("answer", place, transaction, (serial, is_open)): 1}
        return part, state._replace(net=_net(net))

    def _end(self, state: State, message: Message, part: Part, called: str) -> Iterator[tuple[str, State]]:
        """A partition is told of a decision, by the coordinator ("end") or as an answer ("decided")."""
        place, transaction = message.place, message.transaction
        staging, questions = self._staging(part)
        step = staging.judge_end(transaction)
        part = part._replace(asked=_kept(part, staging, questions))
        if step is EndStep.APPEND:
            part = part._replace(tail=(*part.tail, Entry(transaction, None, message.detail)))
        after = self._with_part(state, place, part)
        if step is not EndStep.CONFIRM:
            yield called, after
        elif message.kind == "end":
            yield f"{called}: confirmed", self._confirm(after, place, transaction)
        else:
            yield called, after
        if message.kind == "end" and self.scope.flaw is Flaw.DEPOSED_LEADERS_CONFIRM:
            yield f"{called}: confirmed by a deposed leader", self._confirm(state, place, transaction)

    # ---- the coordinator and the leaders

    def _coordinator(self, state: State) -> Iterator[tuple[str, State]]:
        known = state.coordinator
        if known is None:
            return
        if self.scope.expires and not known.transactions:
            yield "the transactional id expires", state._replace(coordinator=None)
        if known.open is not None and state.timeouts < self.scope.timeouts:
            ended = rules.time_out(known, known.open.until_us)
            yield "time-out", self._move(state._replace(timeouts=state.timeouts + 1), ended)
        for end in rules.ends(known):
            message = Message("end", end.place, end.transaction, end.publish)
            if message not in dict(state.net):
                yield f"the coordinator ends {end.transaction.number}", self._send(state, message)
        if self.scope.flaw is Flaw.DEPOSED_COORDINATORS_ANSWER and not state.deposed:
            yield "a coordinator is deposed", state._replace(deposed=(known,))

    def _partition(self, state: State, place: PartitionId, part: Part) -> Iterator[tuple[str, State]]:
        name = NAMES[place]
        if part.tail:
            entry, *rest = part.tail
            applied = part._replace(log=(*part.log, entry), tail=tuple(rest))
            after = self._with_part(state, place, applied)
            if entry.batch is None:
                yield (
                    f"{name} applies the end of {entry.transaction.number}",
                    self._confirm(after, place, entry.transaction),
                )
            yield f"{name} applies an entry", after
        if state.elections < self.scope.elections and (part.tail or part.asked or part.waiting):
            for kept in {0, len(part.tail)}:
                new = Part(log=(*part.log, *part.tail[:kept]), serial=part.serial)
                after = self._with_part(state, place, new)
                yield f"{name} has a new leader", after._replace(elections=state.elections + 1)
        staging, _ = self._staging(part)
        for transaction in staging.undecided():
            for known in (state.coordinator, *state.deposed):
                answer = rules.standing(known, transaction, place)
                message = Message("decided", place, transaction, answer is Standing.PUBLISH)
                if answer in (Standing.PUBLISH, Standing.DISCARD) and message not in dict(state.net):
                    yield f"{name} asks about {transaction.number}: {answer.value}", self._send(state, message)

    def _confirm(self, state: State, place: PartitionId, transaction: TransactionId) -> State:
        if state.coordinator is None or state.coordinator.producer_id != transaction.producer_id:
            return state
        return self._move(state, rules.confirm(state.coordinator, transaction, place))

    # ---- parts of states

    @staticmethod
    def _staging(part: Part) -> tuple[Staging, dict[int, Question]]:
        """The leader's decisions, as they are with this log, tail and open questions."""
        staging = Staging(applied(part.log))
        for index, entry in enumerate(part.tail, len(part.log) + 1):
            if entry.batch is None:
                staging.end_appended(index, entry.transaction)
            else:
                staging.appended(index, entry.batch)
        return staging, {serial: staging.ask(transaction) for transaction, serial in part.asked}

    def _move(self, state: State, new: TransactionalId, owner: Owner | None = None) -> State:
        """Replicate the coordinator's next state, and note its decision."""
        decided, outcome = state.decided, new.outcome
        if outcome is not None and (outcome.transaction, outcome.phase) not in [each[:2] for each in decided]:
            wrote = owner is not None and owner.transaction == outcome.transaction and outcome.phase is Phase.COMMITTED
            batches = frozenset(self._batches(owner)) if owner is not None and wrote else frozenset()
            decided = (*decided, Decision(outcome.transaction, outcome.phase, batches))
        state = state._replace(coordinator=replace(new, used_us=0), decided=decided)
        return state if owner is None else self._with_owner(state, owner)

    def _send(self, state: State, message: Message) -> State:
        return state._replace(net=_net({**dict(state.net), message: self.scope.ends}))

    @staticmethod
    def _with_owner(state: State, owner: Owner) -> State:
        return state._replace(owners=tuple(owner if each.number == owner.number else each for each in state.owners))

    @staticmethod
    def _with_part(state: State, place: PartitionId, part: Part) -> State:
        return state._replace(parts=tuple((p, part if p == place else old) for p, old in state.parts))


def applied(log: Sequence[Entry]) -> StagedTransactions:
    """What is staged after this log."""
    staged = StagedTransactions()
    for index, entry in enumerate(log, 1):
        if entry.batch is None:
            staged.end(entry.transaction)
        else:
            staged.stage(entry.batch, StagedEntry(index, 1, 100, 0, 0))
    return staged


def visible(log: Sequence[Entry]) -> list[StagedBatch]:
    """The batches that readers of this log see, in the order of their offsets."""
    staged, batches, found = StagedTransactions(), dict[int, StagedBatch](), list[StagedBatch]()
    for index, entry in enumerate(log, 1):
        if entry.batch is not None:
            batches[index] = entry.batch
            staged.stage(entry.batch, StagedEntry(index, 1, 100, 0, 0))
            continue
        ended = staged.end(entry.transaction)
        found += [batches[each.entry_index] for each in ended] if entry.publish else []
    return found


def _kept(part: Part, staging: Staging, questions: Mapping[int, Question]) -> tuple[tuple[TransactionId, int], ...]:
    return tuple(
        (transaction, serial)
        for transaction, serial in part.asked
        if staging.asked.get(transaction) == questions[serial]
    )


def _net(net: Mapping[Message, int]) -> frozenset[tuple[Message, int]]:
    return frozenset(net.items())
