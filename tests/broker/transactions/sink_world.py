"""A small world of one application of Spark's sink: drivers, attempts at tasks, and two partitions.

The rules are those that ship, and the coordinator's state is its snapshot's bytes, changed by the bytes of commands.
Around them: several attempts at one task, of which the driver takes any; a run that goes on while another run of the
same version has begun (a zombie); a version that is run again after its commit; another query under the same name;
batches twice; time-outs; entries that are lost with a partition's leader; a coordinator that fails with a command on
its way; and commits and aborts without an answer, at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tests.broker.transactions.transaction_world import NAMES, A, B, Entry, applied, machine
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.transactions import sink_rules
from tinymq.broker.transactions.commands import pack_command
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.sink_application import Committed, SinkApplication
from tinymq.broker.transactions.sink_commands import (
    AddToSets,
    CommitSets,
    ConfirmSets,
    DiscardSets,
    OpenSet,
    SinkCommand,
    TimeOutSets,
)
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.broker.transactions.transactional_ids import SinkApplied
from tinymq.proto import group_pb2 as pb

APPLICATION = "nightly"
TIMEOUT_US = 60
Places = Sequence[PartitionId]


@dataclass(frozen=True)
class Run:
    """One attempt at a version: its tasks, each with its attempts, and where each attempt writes a batch."""

    version: int
    tasks: Sequence[Sequence[Places]]
    query: str = "q"


@dataclass(frozen=True)
class Scope:
    """How much may happen in one world."""

    runs: Sequence[Run]
    deliveries: int = 1  # of each batch
    elections: int = 0  # of partitions, together
    timeouts: int = 0
    crashes: int = 0  # of the coordinator, while a command is on its way
    aborts: int = 0  # by drivers, at any moment, together
    hasty: bool = False  # a task may be done with what has not been acknowledged
    ordered: bool = False  # the same steps in each process, for random paths


class Attempt(NamedTuple):
    """The program counter of one attempt at a task."""

    run: int
    task: int
    number: int
    step: int = 0  # 0: it opens its set; 1: it sends; 2: it waits; 3: its message is with the driver; 4: no more
    transaction: TransactionId | None = None
    writer: int = -1


class Driver(NamedTuple):
    """What a driver was told: "" yet nothing."""

    told: str = ""


class Decision(NamedTuple):
    """A committed version, as an observer of the coordinator's log has seen it."""

    committed: Committed
    transaction: TransactionId | None
    batches: frozenset[tuple[PartitionId, StagedBatch]]
    whole: bool = True  # one set of each task


class Part(NamedTuple):
    """One partition, as its present leader has it. `published`: (transaction, batches) of each PUBLISH, in order."""

    log: tuple[Entry, ...] = ()
    tail: tuple[Entry, ...] = ()
    ends: tuple[tuple[TransactionId, frozenset[int]], ...] = ()  # the sets that each PUBLISH in log or tail names
    asked: tuple[tuple[TransactionId, bool], ...] = ()  # questions whose answers are on their way, and the answers
    waiting: tuple[StagedBatch, ...] = ()


class State(NamedTuple):
    """One state of the world."""

    coordinator: bytes
    parts: tuple[tuple[PartitionId, Part], ...]
    attempts: tuple[Attempt, ...]
    drivers: tuple[Driver, ...]
    net: frozenset[tuple[tuple[PartitionId, StagedBatch], int]]  # batches on their way, and how often
    decided: tuple[Decision, ...] = ()
    fresh: int = 1
    elections: int = 0
    timeouts: int = 0
    crashes: int = 0
    aborts: int = 0
    proposed: tuple[bytes, ...] = ()

    @property
    def known(self) -> SinkApplication:
        return known(self.coordinator)


@lru_cache(200_000)
def known(coordinator: bytes) -> SinkApplication:
    return machine(coordinator).sinks.states.get(APPLICATION, sink_rules.NEW)


@lru_cache(200_000)
def carry_out(coordinator: bytes, payload: bytes, now_us: int) -> tuple[bytes, SinkApplication | Refusal | None]:
    ids = machine(coordinator)
    done = ids.apply(payload, now_us)
    assert isinstance(done, SinkApplied), "the command does not parse"
    stored = pb.CoordinatorState()
    ids.dump_into(stored)
    return stored.SerializeToString(deterministic=True), done.result


def same_transaction(messages: Sequence[Attempt]) -> bool:
    """Whether the sets of all messages are in one transaction: the client's rule."""
    return len({each.transaction for each in messages}) == 1


class World:
    """The steps that can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        carry_out.cache_clear()  # a test may have changed the rules

    def first(self) -> State:
        attempts = [
            Attempt(run, task, number)
            for run, each in enumerate(self.scope.runs)
            for task, some in enumerate(each.tasks)
            for number in range(len(some))
        ]
        return State(
            coordinator=b"", parts=((A, Part()), (B, Part())), attempts=tuple(attempts),
            drivers=tuple(Driver() for _ in self.scope.runs), net=frozenset(),
        )  # fmt: skip

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        moved = False
        for step in self._steps(state):
            moved = True
            yield step
        open_ = [each for each in state.known.transactions.values() if each.phase is Phase.OPEN]
        if not moved and open_:
            yield "time-out, at last", self._decide(state, TimeOutSets(), TIMEOUT_US)[0]

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.proposed:
            lost = state._replace(proposed=())
            yield "the command of the failed coordinator is lost", lost
            yield "the next coordinator applies the command", self._apply(lost, state.proposed[0], 0)[0]
        else:
            for index, attempt in enumerate(state.attempts):
                yield from self._attempt(state, index, attempt)
            for number in range(len(self.scope.runs)):
                yield from self._driver(state, number)
            yield from self._coordinator(state)
        for (place, batch), _ in sorted(state.net, key=repr) if self.scope.ordered else state.net:
            net = dict(state.net)
            net[place, batch] -= 1
            left = frozenset((each, count) for each, count in net.items() if count)
            yield f"{_name(batch)} arrives at {NAMES[place]}", self._stage(state._replace(net=left), place, [batch])
        for place, part in state.parts:
            yield from self._partition(state, place, part)

    # ---- tasks

    def _attempt(self, state: State, index: int, attempt: Attempt) -> Iterator[tuple[str, State]]:
        run = self.scope.runs[attempt.run]
        places = run.tasks[attempt.task][attempt.number]
        name = f"run {attempt.run}, task {attempt.task}, attempt {attempt.number}"
        if attempt.step == 0:
            command = OpenSet(run.version, f"run-{attempt.run}", run.query, state.fresh, TIMEOUT_US)
            after, result = self._decide(state._replace(fresh=state.fresh + 1), command)
            if isinstance(result, Refusal):
                yield f"{name}: {result.value}", _with(state, index, attempt._replace(step=4))
                return
            yield from self._crash(state._replace(fresh=state.fresh + 1), command, f"{name} opens")
            assert result is not None
            found = sink_rules.open_of(result, run.version, f"run-{attempt.run}")
            assert found is not None
            added, refused = self._decide(after, AddToSets(found.producer_id, frozenset(places)))
            assert not isinstance(refused, Refusal)
            opened = attempt._replace(step=1, transaction=found.id, writer=found.opened - 1)
            yield f"{name} opens set {found.opened - 1} of {found.producer_id}", _with(added, index, opened)
        elif attempt.step == 1:
            net = dict(state.net)
            for place, batch in _batches(attempt, places):
                net[place, batch] = self.scope.deliveries
            sent = state._replace(net=frozenset(net.items()))
            yield f"{name} sends", _with(sent, index, attempt._replace(step=2))
        elif attempt.step == 2:
            parts = dict(state.parts)
            there = all(_is_in(batch, parts[place].log) for place, batch in _batches(attempt, places))
            if there or self.scope.hasty:
                yield f"{name} is done", _with(state, index, attempt._replace(step=3))

    # ---- drivers

    def _driver(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        run, driver = self.scope.runs[number], state.drivers[number]
        if driver.told:
            return
        mine = [each for each in state.attempts if each.run == number]
        skipped = all(any(e.task == task and e.step == 4 for e in mine) for task in range(len(run.tasks)))
        for messages in self._messages(mine, len(run.tasks)):
            if same_transaction(messages):
                yield from self._commit(state, number, run, messages)
        if skipped:  # all tasks were told that the version is committed, or of another query
            commit = CommitSets(run.version, run.query, 0, (), {}, {})
            yield from self._answered(state, number, f"driver {number} commits nothing", commit)
        if state.aborts < self.scope.aborts:
            names = {each.transaction.producer_id for each in mine if each.step == 3 and each.transaction is not None}
            after = state._replace(aborts=state.aborts + 1)
            for producer_id in sorted(names):
                after = self._decide(after, DiscardSets(producer_id))[0]
            yield f"driver {number} aborts", _told(after, number, "aborted by itself")
            yield f"driver {number} aborts, and goes on", after

    def _messages(self, mine: Sequence[Attempt], tasks: int) -> Iterator[tuple[Attempt, ...]]:
        """Every choice of one message for each task."""
        chosen: list[tuple[Attempt, ...]] = [()]
        for task in range(tasks):
            done = [each for each in mine if each.task == task and each.step == 3]
            chosen = [(*some, each) for some in chosen for each in done]
        yield from chosen

    def _commit(self, state: State, number: int, run: Run, messages: Sequence[Attempt]) -> Iterator[tuple[str, State]]:
        transaction = messages[0].transaction
        assert transaction is not None
        sets = tuple(sorted({each.writer for each in messages}))
        expected: dict[PartitionId, int] = {}
        for each in messages:
            for place in run.tasks[each.task][each.number]:
                expected[place] = expected.get(place, 0) + 1
        held = {place: self._staging(part)[0].held(transaction, sets) for place, part in state.parts}
        commit = CommitSets(run.version, run.query, transaction.producer_id, sets, expected, held)
        yield from self._answered(state, number, f"driver {number} commits sets {sets}", commit, messages)

    def _answered(
        self, state: State, number: int, what: str, commit: CommitSets, messages: Sequence[Attempt] = ()
    ) -> Iterator[tuple[str, State]]:
        yield from self._crash(state, commit, what)
        after, result = self._decide(state, commit, 0, messages)
        if after is not state:
            yield f"{what}, and gets no answer", after
        told = "committed"
        if isinstance(result, Refusal) and result is not Refusal.COMMITTED:
            told = result.value
        elif isinstance(result, SinkApplication) and (result.committed or (-1,))[0] != commit.version:
            told = "aborted"
        yield f"{what}: {told}", _told(after, number, told)

    # ---- the coordinator and the partitions

    def _coordinator(self, state: State) -> Iterator[tuple[str, State]]:
        open_ = [each for each in state.known.transactions.values() if each.phase is Phase.OPEN]
        if open_ and state.timeouts < self.scope.timeouts:
            yield "time-out", self._decide(state._replace(timeouts=state.timeouts + 1), TimeOutSets(), TIMEOUT_US)[0]
        for end in sink_rules.ends(state.known):
            publish = end.transaction.phase is Phase.COMMITTED
            yield from self._end(state, end.place, end.transaction.id, publish, end.transaction.sets, told=True)

    def _end(
        self, state: State, place: PartitionId, transaction: TransactionId, publish: bool, sets: Sequence[int], *,
        told: bool,
    ) -> Iterator[tuple[str, State]]:  # fmt: skip
        """The leader of a partition carries out an end: told by the coordinator, or as the answer to its question."""
        part = dict(state.parts)[place]
        staging, _ = self._staging(part)
        step = staging.judge_end(transaction)
        part = part._replace(asked=tuple(each for each in part.asked if each[0] != transaction))
        what = f"{NAMES[place]} ends {transaction.producer_id}"
        if step is EndStep.APPEND:
            entries = staging.entries_of(transaction, sets if told and publish else None)
            publish = publish and bool(entries)
            tail = (*part.tail, Entry(transaction, None, publish))
            indexes = frozenset(entry.entry_index for entry in entries) if publish else frozenset()
            yield what, _with_part(state, place, part._replace(tail=tail, ends=(*part.ends, (transaction, indexes))))
        elif step is EndStep.CONFIRM and told:
            yield f"{what}: confirmed", self._confirm(_with_part(state, place, part), place, transaction)

    def _partition(self, state: State, place: PartitionId, part: Part) -> Iterator[tuple[str, State]]:
        name = NAMES[place]
        for transaction, is_open in part.asked:
            mine = [batch for batch in part.waiting if batch.transaction == transaction]
            rest = tuple(batch for batch in part.waiting if batch.transaction != transaction)
            without = _with_part(state, place, part._replace(waiting=rest))
            after = self._stage(without, place, mine, (transaction, is_open))
            yield f"{name} is answered about {transaction.producer_id}: {is_open}", after
        if part.tail:
            entry, *tail = part.tail
            after = _with_part(state, place, part._replace(log=(*part.log, entry), tail=tuple(tail)))
            if entry.batch is None and not state.proposed:
                yield f"{name} applies an end", self._confirm(after, place, entry.transaction)
            else:
                yield f"{name} applies an entry", after
        if state.elections < self.scope.elections and (part.tail or part.asked or part.waiting):
            for kept in {0, len(part.tail)}:
                log = (*part.log, *part.tail[:kept])
                ends = part.ends[: sum(entry.batch is None for entry in log)]
                after = _with_part(state, place, Part(log=log, ends=ends))
                yield f"{name} has a new leader", after._replace(elections=state.elections + 1)
        if not state.proposed:
            for transaction in self._staging(part)[0].undecided():
                answer = machine(state.coordinator).standing(transaction, place)
                if answer in (Standing.PUBLISH, Standing.DISCARD):
                    yield from self._end(state, place, transaction, answer is Standing.PUBLISH, (), told=False)

    def _stage(
        self, state: State, place: PartitionId, batches: Sequence[StagedBatch],
        answer: tuple[TransactionId, bool] | None = None,
    ) -> State:  # fmt: skip
        part = dict(state.parts)[place]
        for batch in sorted(batches):
            staging, questions = self._staging(part)
            question = None if answer is None else questions.get(answer[0])
            step = staging.judge(batch, question, is_open=answer is not None and answer[1])
            if step is Step.APPEND:
                part = part._replace(tail=(*part.tail, Entry(batch.transaction, batch)))
            elif step in (Step.ASK, Step.WAIT):
                part = part._replace(waiting=tuple(sorted({*part.waiting, batch})))
                if step is Step.ASK:
                    standing = machine(state.coordinator).standing(batch.transaction, place)
                    asked = (batch.transaction, standing is Standing.OPEN)
                    part = part._replace(asked=tuple(sorted((*part.asked, asked))))
        if answer is not None:
            part = part._replace(asked=tuple(each for each in part.asked if each[0] != answer[0]))
        return _with_part(state, place, part)

    def _confirm(self, state: State, place: PartitionId, transaction: TransactionId) -> State:
        return self._decide(state, ConfirmSets(transaction.producer_id, frozenset({place})))[0]

    # ---- parts of states

    @staticmethod
    def _staging(part: Part) -> tuple[Staging, dict[TransactionId, Question]]:
        staging = Staging(applied(part.log))
        for index, entry in enumerate(part.tail, len(part.log) + 1):
            if entry.batch is None:
                staging.end_appended(index, entry.transaction)
            else:
                staging.appended(entry.batch, StagedEntry(index, 1, 100, 0, 0))
        return staging, {transaction: staging.ask(transaction) for transaction, _ in part.asked}

    def _decide(
        self, state: State, command: SinkCommand, now_us: int = 0, messages: Sequence[Attempt] = ()
    ) -> tuple[State, SinkApplication | Refusal | None]:
        return self._apply(state, pack_command(APPLICATION, command), now_us, messages)

    def _apply(
        self, state: State, payload: bytes, now_us: int, messages: Sequence[Attempt] = ()
    ) -> tuple[State, SinkApplication | Refusal | None]:
        """Apply a command, and note a version that it commits."""
        coordinator, result = carry_out(state.coordinator, payload, now_us)
        decided, before = state.decided, known(state.coordinator).committed
        old = {each.transaction for each in decided}
        found = next(
            (e for e in known(coordinator).transactions.values() if e.phase is Phase.COMMITTED and e.id not in old),
            None,
        )
        if (
            isinstance(result, SinkApplication)
            and result.committed is not None
            and (found or result.committed != before)
        ):
            sets = () if found is None else found.sets
            named = [each for each in state.attempts if found is not None and each.transaction == found.id]
            batches = {
                pair
                for each in named
                if each.writer in sets
                for pair in _batches(each, self.scope.runs[each.run].tasks[each.task][each.number])
            }
            tasks = sorted(each.task for each in named if each.writer in sets)
            whole = not named or tasks == list(range(len(self.scope.runs[named[0].run].tasks)))
            decided = (*decided, Decision(result.committed, found and found.id, frozenset(batches), whole))
        return state._replace(coordinator=coordinator, decided=decided), result

    def _crash(self, state: State, command: SinkCommand, what: str) -> Iterator[tuple[str, State]]:
        if state.crashes < self.scope.crashes and not isinstance(self._decide(state, command)[1], Refusal):
            payload = pack_command(APPLICATION, command)
            yield f"{what}, and the coordinator fails", state._replace(proposed=(payload,), crashes=state.crashes + 1)


def visible(part: Part) -> list[tuple[TransactionId, frozenset[StagedBatch]]]:
    """What each PUBLISH in the log shows to readers, in their order."""
    batches, found, ends = (
        dict[int, StagedBatch](),
        list[tuple[TransactionId, frozenset[StagedBatch]]](),
        iter(part.ends),
    )
    staged = StagedTransactions()
    for index, entry in enumerate(part.log, 1):
        if entry.batch is not None:
            batches[index] = entry.batch
            staged.stage(entry.batch, StagedEntry(index, 1, 100, 0, 0), 0)
            continue
        transaction, indexes = next(ends)
        if staged.end(transaction) is not None and entry.publish:
            found.append((transaction, frozenset(batches[each] for each in indexes)))
    return found


def of_producer(state: State, transaction: TransactionId) -> Decision | None:
    return next((each for each in state.decided if each.transaction == transaction), None)


def _batches(attempt: Attempt, places: Places) -> list[tuple[PartitionId, StagedBatch]]:
    assert attempt.transaction is not None
    numbers: Mapping[PartitionId, int] = {}
    found = []
    for place in places:
        number = numbers.get(place, 0)
        numbers = {**numbers, place: number + 1}
        found.append((place, StagedBatch(attempt.transaction, attempt.writer, number)))
    return found


def _is_in(batch: StagedBatch, log: Sequence[Entry]) -> bool:
    return any(entry.batch == batch for entry in log)


def _name(batch: StagedBatch) -> str:
    return f"batch {batch.number} of set {batch.writer} of {batch.transaction.producer_id}"


def _with(state: State, index: int, attempt: Attempt) -> State:
    return state._replace(attempts=(*state.attempts[:index], attempt, *state.attempts[index + 1 :]))


def _told(state: State, number: int, told: str) -> State:
    return state._replace(drivers=(*state.drivers[:number], Driver(told), *state.drivers[number + 1 :]))


def _with_part(state: State, place: PartitionId, part: Part) -> State:
    return state._replace(parts=tuple((p, part if p == place else old) for p, old in state.parts))
