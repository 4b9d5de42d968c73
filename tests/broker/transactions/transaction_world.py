"""A small world of one coordinator, two partitions and the owners of one transactional id, as states and steps.

The rules are those that ship (tinymq/broker/transactions), and the coordinator's state is its snapshot's bytes, changed
by the bytes of commands. Around them: messages that are late and twice, batches and ends that are appended and then
lost with their leader, a coordinator that fails with a command on its way, time-outs at any moment, an owner that
registers while another one works, and answers that do not arrive. A step leads from one state to the next, so that a
search can visit all of them. What a majority has not confirmed is said by nobody here, unless a `Flaw` lets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.commands import (
    Abort,
    Add,
    Begin,
    Command,
    Commit,
    Confirm,
    Expire,
    NoteLoss,
    Register,
    TimeOut,
    pack_command,
)
from tinymq.broker.transactions.rules import EXPIRY_US, Refusal, Standing
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId
from tinymq.broker.transactions.transactional_ids import Applied, TransactionalIds
from tinymq.proto import group_pb2 as pb

A, B = PartitionId(b"a" * 16, 0), PartitionId(b"b" * 16, 0)
NAMES = {A: "A", B: "B"}
TIMEOUT_US = 60
ID = "billing-1"


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
    crashes: int = 0  # of the coordinator, while a command is on its way
    losses: int = 0  # of the newest part of the coordinator's log, which an operator accepts
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

    coordinator: bytes  # the snapshot of the coordinator's state
    parts: tuple[tuple[PartitionId, Part], ...]
    owners: tuple[Owner, ...]
    net: frozenset[tuple[Message, int]]
    decided: tuple[Decision, ...]
    elections: int
    timeouts: int
    fresh: int  # the next producer id
    deposed: tuple[bytes, ...] = ()  # what a deposed coordinator still knows
    proposed: tuple[bytes, ...] = ()  # a command that a failed coordinator has left behind: kept or lost
    crashes: int = 0
    left: tuple[bytes, ...] = ()  # the coordinator's state that a loss, still to come, will leave
    lost: bool = False

    @property
    def known(self) -> TransactionalId | None:
        """The coordinator's state of the transactional id."""
        return known(self.coordinator)


@lru_cache(200_000)
def known(coordinator: bytes) -> TransactionalId | None:
    return machine(coordinator).states.get(ID)


def machine(coordinator: bytes) -> TransactionalIds:
    """The coordinator's state machine, from its snapshot."""
    ids = TransactionalIds()
    ids.load_from(pb.CoordinatorState.FromString(coordinator))
    return ids


@lru_cache(200_000)
def carry_out(coordinator: bytes, payload: bytes, now_us: int) -> tuple[bytes, Applied]:
    """Apply a command: the snapshot of the state after it, and its result."""
    ids = machine(coordinator)
    applied = ids.apply(payload, now_us)
    assert isinstance(applied, Applied), "the command does not parse"
    stored = pb.CoordinatorState()
    ids.dump_into(stored)
    return stored.SerializeToString(deterministic=True), applied


class World:
    """The steps that can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        carry_out.cache_clear()  # a test may have changed the rules

    def first(self) -> State:
        owners = tuple(Owner(number) for number in range(self.scope.owners))
        return State(
            coordinator=b"", parts=((A, Part()), (B, Part())), owners=owners, net=frozenset(), decided=(),
            elections=0, timeouts=0, fresh=1,
        )  # fmt: skip

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        moved = False
        for step in self._steps(state):
            moved = True
            yield step
        if not moved and state.known is not None and state.known.open is not None:
            yield "time-out, at last", self._decide(state, TimeOut(), now_us=TIMEOUT_US)[0]

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.proposed:  # the next coordinator answers nobody before it knows what became of the command
            lost = state._replace(proposed=())
            yield "the command of the failed coordinator is lost", lost
            yield "the next coordinator applies the command", self._apply(lost, state.proposed[0])[0]
        else:
            for owner in state.owners:
                yield from self._owner(state, owner)
        for message, _ in sorted(state.net, key=repr) if self.scope.ordered else state.net:
            yield from self._arrive(state, message)
        if not state.proposed:
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
            register = Register(state.fresh)
            yield from self._crash(state, register, f"{name} registers")
            after, new = self._decide(state._replace(fresh=state.fresh + 1), register)
            if isinstance(new, TransactionalId):
                registered = owner._replace(step=0, producer_id=new.producer_id, epoch=new.epoch)
                yield f"{name} registers", self._with_owner(after, registered)
        elif owner.step == 0:
            begin = Begin(owner.producer_id, owner.epoch, TIMEOUT_US)
            begun, result = self._decide(state, begin)
            if result is Refusal.FENCED:
                yield f"{name} is fenced", self._told(state, owner, end=True)
            elif isinstance(result, TransactionalId):
                yield from self._crash(state, begin, f"{name} begins")
                transaction = TransactionId(result.producer_id, result.epoch, result.number)
                after, added = self._decide(begun, Add(transaction, frozenset(plan)))
                assert isinstance(added, TransactionalId)
                moved = owner._replace(step=1, transaction=transaction)
                yield f"{name} begins {transaction.number}", self._with_owner(after, moved)
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
        if state.known is None:  # it has expired
            yield f"{name} is fenced", self._told(state, owner, end=True)
            return
        transaction, logs = owner.transaction, {place: part.log for place, part in state.parts}
        whole = all(Entry(transaction, batch) in logs[place] for place, batch in self._batches(owner))
        if whole or self.scope.hasty:
            expected: dict[PartitionId, int] = {}
            for place, _ in self._batches(owner):
                expected[place] = expected.get(place, 0) + 1
            held = {place: self._staging(part)[0].held(transaction) for place, part in state.parts}
            commit = Commit(transaction, expected, held)
            yield from self._crash(state, commit, f"{name} commits")
            yield from self._answer(state, owner, name, "commits", commit)
        rolls_back = Abort(transaction)
        if self.scope.rollbacks or isinstance(self._decide(state, rolls_back)[1], Refusal):
            yield from self._answer(state, owner, name, "rolls back", rolls_back)

    def _answer(
        self, state: State, owner: Owner, name: str, verb: str, command: Command
    ) -> Iterator[tuple[str, State]]:
        """The owner is told, or the answer is lost and it asks again."""
        assert owner.transaction is not None
        after, result = self._decide(state, command, owner)
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
        is_open = standing(state.coordinator, transaction, place) is Standing.OPEN
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
        if self.scope.losses and not state.lost:
            if not state.left:
                yield "what the coordinator stores from now on will be lost", state._replace(left=(state.coordinator,))
            else:
                fallen_back = state._replace(coordinator=state.left[0], left=(), lost=True)
                after, _ = self._decide(fallen_back, NoteLoss(1, state.fresh))
                yield "an operator accepts the loss", after
        if state.known is None:
            return
        if self.scope.expires and not state.known.transactions:
            yield "the transactional id expires", self._decide(state, Expire(), now_us=EXPIRY_US)[0]
        if state.known.open is not None and state.timeouts < self.scope.timeouts:
            ended, _ = self._decide(state._replace(timeouts=state.timeouts + 1), TimeOut(), now_us=TIMEOUT_US)
            yield "time-out", ended
        for end in rules.ends(state.known):
            message = Message("end", end.place, end.transaction, end.publish)
            if message not in dict(state.net):
                yield f"the coordinator ends {end.transaction.number}", self._send(state, message)
        if self.scope.flaw is Flaw.DEPOSED_COORDINATORS_ANSWER and not state.deposed:
            yield "a coordinator is deposed", state._replace(deposed=(state.coordinator,))

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
            for coordinator in (*([] if state.proposed else [state.coordinator]), *state.deposed):
                answer = standing(coordinator, transaction, place)
                message = Message("decided", place, transaction, answer is Standing.PUBLISH)
                if answer in (Standing.PUBLISH, Standing.DISCARD) and message not in dict(state.net):
                    yield f"{name} asks about {transaction.number}: {answer.value}", self._send(state, message)

    def _confirm(self, state: State, place: PartitionId, transaction: TransactionId) -> State:
        if state.proposed or state.known is None or state.known.producer_id != transaction.producer_id:
            return state  # nobody takes the confirmation: the next coordinator sends the end again
        return self._decide(state, Confirm(transaction, frozenset({place})))[0]

    # ---- parts of states

    @staticmethod
    def _staging(part: Part) -> tuple[Staging, dict[int, Question]]:
        """The leader's decisions, as they are with this log, tail and open questions."""
        staging = Staging(applied(part.log))
        for index, entry in enumerate(part.tail, len(part.log) + 1):
            if entry.batch is None:
                staging.end_appended(index, entry.transaction)
            else:
                staging.appended(entry.batch, StagedEntry(index, 1, 100, 0, 0))
        return staging, {serial: staging.ask(transaction) for transaction, serial in part.asked}

    def _decide(
        self, state: State, command: Command, owner: Owner | None = None, now_us: int = 0
    ) -> tuple[State, TransactionalId | Refusal | None]:
        """Have the coordinator replicate a command, of `owner` if it is a commit."""
        name = "" if isinstance(command, NoteLoss) else ID
        return self._apply(state, pack_command(name, command), owner, now_us)

    def _apply(
        self, state: State, payload: bytes, owner: Owner | None = None, now_us: int = 0
    ) -> tuple[State, TransactionalId | Refusal | None]:
        """Apply a command at the coordinator, and note its decision."""
        coordinator, (_, result) = carry_out(state.coordinator, payload, now_us)
        outcome = result.outcome if isinstance(result, TransactionalId) else None
        decided = state.decided
        if outcome is not None and (outcome.transaction, outcome.phase) not in [each[:2] for each in decided]:
            wrote = owner or next((each for each in state.owners if each.transaction == outcome.transaction), None)
            committed = outcome.phase is Phase.COMMITTED
            batches = frozenset(self._batches(wrote)) if wrote is not None and committed else frozenset()
            decided = (*decided, Decision(outcome.transaction, outcome.phase, batches))
        return state._replace(coordinator=coordinator, decided=decided), result

    def _crash(self, state: State, command: Command, what: str) -> Iterator[tuple[str, State]]:
        """The coordinator fails with a command on its way: the owner gets no answer."""
        if state.crashes < self.scope.crashes and not isinstance(self._decide(state, command)[1], Refusal):
            left = state._replace(proposed=(pack_command(ID, command),), crashes=state.crashes + 1)
            yield f"{what}, and the coordinator fails", left

    def _send(self, state: State, message: Message) -> State:
        return state._replace(net=_net({**dict(state.net), message: self.scope.ends}))

    @staticmethod
    def _with_owner(state: State, owner: Owner) -> State:
        return state._replace(owners=tuple(owner if each.number == owner.number else each for each in state.owners))

    @staticmethod
    def _with_part(state: State, place: PartitionId, part: Part) -> State:
        return state._replace(parts=tuple((p, part if p == place else old) for p, old in state.parts))


def standing(coordinator: bytes, transaction: TransactionId, place: PartitionId) -> Standing:
    """The answer of a coordinator with this state."""
    return machine(coordinator).standing(transaction, place)


def applied(log: Sequence[Entry]) -> StagedTransactions:
    """What is staged after this log."""
    staged = StagedTransactions()
    for index, entry in enumerate(log, 1):
        if entry.batch is None:
            staged.end(entry.transaction)
        else:
            staged.stage(entry.batch, StagedEntry(index, 1, 100, 0, 0), 0)
    return staged


def visible(log: Sequence[Entry]) -> list[StagedBatch]:
    """The batches that readers of this log see, in the order of their offsets."""
    staged, batches, found = StagedTransactions(), dict[int, StagedBatch](), list[StagedBatch]()
    for index, entry in enumerate(log, 1):
        if entry.batch is not None:
            batches[index] = entry.batch
            staged.stage(entry.batch, StagedEntry(index, 1, 100, 0, 0), 0)
            continue
        ended = staged.end(entry.transaction)
        if entry.publish and ended is not None:
            found += [batches[each.entry_index] for each in ended.entries]
    return found


def dropped(log: Sequence[Entry]) -> list[TransactionId]:
    """The transactions of which something was staged, and discarded."""
    staged, found = StagedTransactions(), list[TransactionId]()
    for index, entry in enumerate(log, 1):
        if entry.batch is not None:
            staged.stage(entry.batch, StagedEntry(index, 1, 100, 0, 0), 0)
        elif staged.end(entry.transaction) and not entry.publish:
            found.append(entry.transaction)
    return found


def _kept(part: Part, staging: Staging, questions: Mapping[int, Question]) -> tuple[tuple[TransactionId, int], ...]:
    return tuple(
        (transaction, serial)
        for transaction, serial in part.asked
        if staging.asked.get(transaction) == questions[serial]
    )


def _net(net: Mapping[Message, int]) -> frozenset[tuple[Message, int]]:
    return frozenset(net.items())
