"""A small world of read-process-write: one input partition with the cursor of a stream group, and two members of it.

Each member handles one record per transaction: it stages the offset behind the record, and its results become visible
when the coordinator decides COMMIT. The first member is replaced at any moment by the second one, whose epoch fences
it, and goes on working without knowing. A member that loses an answer goes back to the offset that the partition tells
it, while its commit may still be on its way.

The rules are those that ship: the coordinator's state machine, the partition's leader (staging.py), and the partition's
applied state. Messages are late, and what a leader has appended may be lost with it. That the results of a transaction
are visible exactly if it was committed, another search shows (transaction_world.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tests.broker.transactions.staged_world import INPUT, TIMEOUT_US, Message, StagedWorld, id_of, is_open
from tests.broker.transactions.transaction_world import carry_out, machine
from tests.broker.values import Applied, makes
from tinymq.broker.state.staged import StagedBatch, StagedEntry, TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions.commands import Abort, Add, Begin, Register, TimeOut, pack_command
from tinymq.broker.transactions.staging import OFFSETS_WRITER, Question, Staging
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId
from tinymq.format.entry import Kind
from tinymq.format.transactional import TRANSACTIONAL_VERSION, TransactionName, pack_discard
from tinymq.proto import partition_pb2 as pb

GROUP, GROUP_ID = "enricher", 1


@dataclass(frozen=True)
class OffsetScope:
    """How much may happen in one world."""

    records: int = 1  # in the input partition
    members: int = 2  # the second one takes the partition over at any moment
    deliveries: int = 1  # of each staged offset, and of each commit
    elections: int = 0  # of the partition's leader
    timeouts: int = 0
    unsure: int = 0  # how often a member gets no answer to its commit, and goes back to what the partition tells it
    begins: int = 2  # transactions of each member
    rollbacks: bool = False  # a member may roll back at any moment before its commit
    hasty: bool = False  # a member may commit before its offset is acknowledged
    ordered: bool = False  # the same steps in each process, for random paths


class Entry(NamedTuple):
    """An entry of the partition's log."""

    kind: str  # "open", "stage", "end"
    member: int = 0  # open
    transaction: TransactionId | None = None  # stage, end
    epoch: int = 0  # stage
    offset: int = 0  # stage
    publish: bool = False  # end


class Member(NamedTuple):
    """A member of the group, and what it does."""

    number: int  # from 0; its epoch is one more
    step: str = "opens"  # "opened": waits for its position; "reads", "staging", "committing", "over"
    position: int = 0
    transaction: TransactionId | None = None
    begun: int = 0  # transactions


class State(NamedTuple):
    """One state of the world."""

    coordinator: bytes
    log: tuple[Entry, ...]
    tail: tuple[Entry, ...]  # of the present leader
    asked: tuple[tuple[TransactionId, int], ...]
    waiting: tuple[Entry, ...]  # staged offsets, for an answer of the coordinator
    members: tuple[Member, ...]
    net: frozenset[tuple[Message, int]]
    outputs: tuple[tuple[TransactionId, int], ...]  # the record that each transaction handled
    decided: tuple[tuple[TransactionId, Phase], ...]
    elections: int = 0
    timeouts: int = 0
    unsure: int = 0


def first(scope: OffsetScope) -> State:
    coordinator = b""
    for number in range(scope.members):
        coordinator, _ = carry_out(coordinator, pack_command(id_of(number), Register(number + 1)), 0)
    members = tuple(Member(number) for number in range(scope.members))
    return State(
        coordinator,
        log=(),
        tail=(),
        asked=(),
        waiting=(),
        members=members,
        net=frozenset(),
        outputs=(),
        decided=(),
    )


@lru_cache(100_000)
def applied(log: tuple[Entry, ...], records: int) -> PartitionState:
    """The partition's state after this log."""
    partition = Applied()
    for _ in range(records):
        partition.batch()
    partition.run(makes(GROUP_ID, GROUP), version=2)
    for entry in log:
        append(partition, entry)
    return partition.state


def append(partition: Applied, entry: Entry) -> None:
    if entry.kind == "open":
        opens = pb.OpenChannel(
            channel=GROUP, epoch=entry.member + 1, kind=pb.STREAM, group_id=GROUP_ID, session=b"%d" % entry.member
        )
        partition.run(pb.Command(open=opens), version=2)
        return
    assert entry.transaction is not None
    producer_id, epoch, number = entry.transaction
    if entry.kind == "stage":
        commit = pb.Commit(
            channel=GROUP, epoch=entry.epoch, generation=1, offset=entry.offset, kind=pb.STREAM, group_id=GROUP_ID
        )
        stage = pb.StageOffset(producer_id=producer_id, number=number, epoch=epoch, commit=commit)
        partition.run(pb.Command(stage_offset=stage), version=3)
    elif entry.publish:
        publish = pb.PublishOffsets(producer_id=producer_id, number=number, epoch=epoch)
        partition.run(pb.Command(publish_offsets=publish), version=3)
    else:
        name = TransactionName(producer_id, number, epoch)
        partition.add(Kind.DISCARD, pack_discard(name), version=TRANSACTIONAL_VERSION)


def settles(state: State, partition: PartitionState) -> list[TransactionId]:
    """The transactions that have to be over before an owner of the partition gets its position."""
    return partition.transactions_of(GROUP)


class OffsetWorld(StagedWorld):
    """The steps that can happen in a scope."""

    writer = OFFSETS_WRITER

    def __init__(self, scope: OffsetScope) -> None:
        self.scope = scope
        carry_out.cache_clear()  # a test may have changed the rules
        applied.cache_clear()

    def first(self) -> State:
        return first(self.scope)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        moved = False
        for step in self._steps(state):
            moved = True
            yield step
        if not moved:
            for name, known in machine(state.coordinator).states.items():
                if known.open is not None:
                    yield "time-out, at last", self._decide(state, name, TimeOut(), now_us=TIMEOUT_US)[0]

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for member in state.members:
            yield from self._member(state, member)
        for message, _ in sorted(state.net, key=repr) if self.scope.ordered else state.net:
            yield from self._arrive(state, message)
        yield from self._coordinator(state)
        yield from self._partition(state)

    def end_entry(self, transaction: TransactionId, publish: bool) -> Entry:
        return Entry("end", 0, transaction, publish=publish)

    def applied(self, state: State) -> PartitionState:
        return applied(state.log, self.scope.records)

    # ---- members

    def _member(self, state: State, member: Member) -> Iterator[tuple[str, State]]:
        name, epoch = f"member {member.number}", member.number + 1
        partition = self.applied(state)
        cursor = partition.cursors[GROUP]
        if member.step == "opens":
            if member.number and all(each.step == "opens" for each in state.members):
                return  # the first member comes first
            opening = Entry("open", member.number)
            opened = self._with(state, member._replace(step="opened"))
            yield f"{name} opens the partition", opened._replace(tail=(*state.tail, opening))
        elif member.step == "opened":
            if cursor.epoch > epoch:
                yield f"{name} is fenced", self._with(state, member._replace(step="over"))
            elif cursor.epoch < epoch:
                if Entry("open", member.number) not in state.tail:
                    yield f"{name} opens again", self._with(state, member._replace(step="opens"))
            else:
                yield from self._settle(state, member, partition)
        elif member.step == "reads":
            if member.position < self.scope.records and member.begun < self.scope.begins:
                yield from self._begin(state, member)
        elif member.step == "staging":
            assert member.transaction is not None
            if self.scope.hasty or partition.staged_offsets.held(member.transaction):
                sent = self._send(state, Message("commit", member.transaction), self.scope.deliveries)
                yield f"{name} commits", self._with(sent, member._replace(step="committing"))
            if self.scope.rollbacks or dict(state.decided).get(member.transaction) is Phase.ABORTED:
                yield from self._back(state, member, name)
        elif member.step == "committing":
            phase = dict(state.decided).get(member.transaction)  # type: ignore[arg-type]
            if phase is Phase.COMMITTED:
                done = member._replace(step="reads", position=member.position + 1, transaction=None)
                yield f"{name} is told: committed", self._with(state, done)
            elif phase is Phase.ABORTED:
                yield from self._back(state, member, name)
            if state.unsure < self.scope.unsure:
                unsure = state._replace(unsure=state.unsure + 1)
                yield f"{name} gets no answer", self._with(unsure, member._replace(step="opened", transaction=None))

    def _begin(self, state: State, member: Member) -> Iterator[tuple[str, State]]:
        name, owner = id_of(member.number), member.number + 1
        begun, result = self._decide(state, name, Begin(owner, 0, TIMEOUT_US))
        if not isinstance(result, TransactionalId):
            return
        transaction = TransactionId(owner, 0, result.number)
        added, _ = self._decide(begun, name, Add(transaction, frozenset({INPUT})))
        stage = Entry("stage", 0, transaction, epoch=owner, offset=member.position + 1)
        sent = self._send(added, Message("stage", transaction, stage), self.scope.deliveries)
        sent = sent._replace(outputs=(*sent.outputs, (transaction, member.position)))
        moved = member._replace(step="staging", transaction=transaction, begun=member.begun + 1)
        yield f"member {member.number} handles record {member.position}", self._with(sent, moved)

    def _back(self, state: State, member: Member, name: str) -> Iterator[tuple[str, State]]:
        """The transaction is rolled back: the member goes back to the offset that the partition tells it."""
        assert member.transaction is not None
        after, _ = self._decide(state, id_of(member.number), Abort(member.transaction))
        yield f"{name} goes back", self._with(after, member._replace(step="opened", transaction=None))

    def _settle(self, state: State, member: Member, partition: PartitionState) -> Iterator[tuple[str, State]]:
        """An owner has opened: the leader has what is staged ended, and then tells the position."""
        staged = settles(state, partition)
        if not staged:
            position = partition.cursors[GROUP].position
            reads = member._replace(step="reads", position=position)
            yield f"member {member.number} reads from {position}", self._with(state, reads)
        for transaction in staged:
            ended = state
            if is_open(state.coordinator, transaction):  # the leader says that it has to end
                ended, _ = self._decide(state, id_of(transaction.producer_id - 1), Abort(transaction))
            yield from self._told(ended, transaction, f"the leader asks to end {transaction}")

    # ---- the coordinator and the leader

    def _partition(self, state: State) -> Iterator[tuple[str, State]]:
        if state.tail:
            entry, *rest = state.tail
            after = state._replace(log=(*state.log, entry), tail=tuple(rest))
            if entry.kind == "end":
                assert entry.transaction is not None
                yield "the end is applied and confirmed", self._confirm(after, entry.transaction)
            yield f"{entry.kind} is applied", after
        if state.elections < self.scope.elections and (state.tail or state.asked or state.waiting):
            for kept in {0, len(state.tail)}:
                log = (*state.log, *state.tail[:kept])
                after = state._replace(log=log, tail=(), asked=(), waiting=(), elections=state.elections + 1)
                yield "a new leader", after
        for transaction in self.staging(state)[0].undecided():
            yield from self._told(state, transaction, f"the leader asks about {transaction}")

    # ---- parts of states

    def staging(self, state: State) -> tuple[Staging, dict[int, Question]]:
        """The leader's decisions, as they are with this log, tail and open questions."""
        partition = self.applied(state)
        staging = Staging(partition.staged, partition.staged_offsets)
        for index, entry in enumerate(state.tail, partition.applied_index + 1):
            if entry.kind == "end" and entry.transaction is not None:
                staging.end_appended(index, entry.transaction)
            elif entry.kind == "stage" and entry.transaction is not None:
                batch = StagedBatch(entry.transaction, OFFSETS_WRITER, 0)
                staging.appended(batch, StagedEntry(index, 0, 0, 0, 0))
        return staging, {serial: staging.ask(transaction) for transaction, serial in state.asked}

    @staticmethod
    def _with(state: State, member: Member) -> State:
        members = tuple(member if each.number == member.number else each for each in state.members)
        return state._replace(members=members)
