"""A small world of jobs that are acked in transactions: one partition of a queue group, and two workers of it.

A worker takes a job under a lease, writes what it makes of it in a transaction, stages its ack, and commits. Leases run
out while their worker goes on, sessions end, workers die, leaders change and know the leases only from the workers that
attach again, and messages are late. Meanwhile the group may be sought, and the record removed.

The rules are those that ship: the coordinator's state machine, the partition's leader (staging.py, staged_jobs.py,
queue_leases.py), and the partition's applied state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tests.broker.state.queue_commands import GROUP, ID, Queue
from tests.broker.transactions.staged_world import INPUT, TIMEOUT_US, Message, StagedWorld, id_of
from tests.broker.transactions.transaction_world import carry_out
from tests.broker.values import moves
from tinymq.base.errors import LeaseLost, NotReady, SessionEnded
from tinymq.broker.groups.lease_values import Grant, Lease, Proposal, QueueSettings, Session
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.groups.staged_jobs import StagedJobs
from tinymq.broker.state.queue_group import Charge, QueueGroup
from tinymq.broker.state.staged import StagedBatch, StagedEntry, TransactionId
from tinymq.broker.transactions.commands import Abort, Add, Begin, Register, pack_command
from tinymq.broker.transactions.staging import ACKS_WRITER, Question, Staging
from tinymq.broker.transactions.transactional_id import Phase, TransactionalId
from tinymq.broker.work.commands import pack_acks
from tinymq.proto import partition_pb2 as pb

SETTINGS = QueueSettings()
JOB = 0  # the offset of the only record
WAIT_OVER_S = 1000.0


@dataclass(frozen=True)
class AckScope:
    """How much may happen in one world."""

    workers: int = 2
    begins: int = 1  # transactions of each worker
    expiries: int = 0  # leases that run out while their worker goes on
    silences: int = 0  # sessions that end while their worker goes on
    deaths: int = 0  # of workers
    elections: int = 0  # of the partition's leader
    timeouts: int = 0
    seeks: int = 0  # to the record
    trims: int = 0  # of the record
    hasty: bool = False  # a worker may commit before its ack is acknowledged
    ordered: bool = False  # the same steps in each process, for random paths


class Entry(NamedTuple):
    """An entry of the partition's log."""

    kind: str  # "open", "close", "stage", "end", "seek", "trim"
    session: int = -1  # open, close, stage
    transaction: TransactionId = TransactionId(0, 0, 0)  # stage, end
    grant: Grant | None = None  # stage; close: of the record that the session had started
    publish: bool = False  # end


class Worker(NamedTuple):
    """A worker, and what it does."""

    number: int
    session: int
    step: str = "idle"  # "holds" a job, "staging", "committing", "dead"
    grant: Grant | None = None
    transaction: TransactionId = TransactionId(0, 0, 0)
    begun: int = 0


class Leased(NamedTuple):
    """The lease of the record, in the leader's memory."""

    session: int
    grant: Grant


class State(NamedTuple):
    """One state of the world."""

    coordinator: bytes
    log: tuple[Entry, ...]
    workers: tuple[Worker, ...]
    leased: Leased | None = None
    attached: frozenset[int] = frozenset()  # the sessions that this leader knows
    term: int = 1
    granted: int = 0  # the number of the newest grant
    tail: tuple[Entry, ...] = ()
    asked: tuple[tuple[TransactionId, int], ...] = ()
    waiting: tuple[Entry, ...] = ()
    net: frozenset[tuple[Message, int]] = frozenset()
    refused: frozenset[TransactionId] = frozenset()  # whose acks were refused
    handled: tuple[tuple[TransactionId, int], ...] = ()  # the generation in which each transaction took the record
    decided: tuple[tuple[TransactionId, Phase], ...] = ()
    expiries: int = 0
    silences: int = 0
    deaths: int = 0
    timeouts: int = 0
    seeks: int = 0
    trims: int = 0


def first(scope: AckScope) -> State:
    coordinator = b""
    for number in range(scope.workers):
        coordinator, _ = carry_out(coordinator, pack_command(id_of(number), Register(number + 1)), 0)
    workers = tuple(Worker(number, 10 * number) for number in range(scope.workers))
    opened = tuple(Entry("open", worker.session) for worker in workers)
    return State(coordinator, opened, workers, attached=frozenset(worker.session for worker in workers))


def session_id(session: int) -> bytes:
    return b"%02d" % session * 8


@lru_cache(100_000)
def applied(log: tuple[Entry, ...]) -> Queue:
    """The partition after this log."""
    queue = Queue(1)
    queue.raise_mark(1000)
    for entry in log:
        append(queue, entry)
    return queue


def append(queue: Queue, entry: Entry) -> None:
    session, (producer_id, epoch, number) = session_id(entry.session), entry.transaction
    if entry.kind == "open":
        queue.open_session(session)
    elif entry.kind == "close":
        queue.end_session(session, failed=[(JOB, entry.grant.delivery, 0)] if entry.grant is not None else [])
    elif entry.kind == "seek":
        queue.seek(JOB, len(queue.entries))
        queue.raise_mark(1000)
    elif entry.kind == "trim":
        queue.run(moves(JOB + 1))
    elif entry.kind == "stage":
        assert entry.grant is not None
        era = entry.grant.era
        ref = pb.QueueRef(group=GROUP, group_id=ID, generation=era.generation, history=era.history)
        stage = pb.StageAcks(
            producer_id=producer_id, number=number, epoch=epoch, queue=ref, session=session, acked=pack_acks([JOB])
        )
        queue.run(pb.Command(stage_acks=stage), version=3)
    elif entry.publish:
        publish = pb.PublishOffsets(producer_id=producer_id, number=number, epoch=epoch)
        queue.run(pb.Command(publish_offsets=publish), version=3)
    else:
        queue.discard(entry.transaction)


class View:
    """The applied state, as leases see it (AppliedQueue)."""

    def __init__(self, queue: Queue) -> None:
        self.group: QueueGroup = queue.group
        self.position = max(queue.position, queue.state.log_start)


class Leader(NamedTuple):
    """The leader's memory of the group."""

    leases: QueueLeases
    jobs: StagedJobs

    @property
    def leased(self) -> Leased | None:
        lease = self.leases.leases.get(JOB)
        return None if lease is None else Leased(int(lease.session[:2]), lease.grant)


class AckWorld(StagedWorld):
    """The steps that can happen in a scope."""

    writer = ACKS_WRITER

    def __init__(self, scope: AckScope) -> None:
        self.scope = scope
        carry_out.cache_clear()  # a test may have changed the rules
        applied.cache_clear()

    def first(self) -> State:
        return first(self.scope)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for worker in state.workers:
            yield from self._worker(state, worker)
        for message, _ in sorted(state.net, key=repr) if self.scope.ordered else state.net:
            for called, after in self._arrive(state, message):
                if after is not None:
                    yield called, after
        yield from self._coordinator(state)
        yield from self._partition(state)
        yield from self._sessions(state)

    # ---- workers

    def _worker(self, state: State, worker: Worker) -> Iterator[tuple[str, State]]:
        name, decided, scope = f"worker {worker.number}", dict(state.decided), self.scope
        phase = decided.get(worker.transaction)
        if worker.step == "dead":
            return
        if worker.step == "idle" and worker.begun < scope.begins:
            yield from self._grant(state, worker)
        elif worker.step == "holds":
            sent = self._send_ack(state, worker)
            yield f"{name} acks", _with(sent, worker._replace(step="staging"))
        elif worker.step == "staging":
            held = applied(state.log).state.staged_acks.held(worker.transaction)
            if held or scope.hasty:
                sent = self._send(state, Message("commit", worker.transaction), 1)
                yield f"{name} commits", _with(sent, worker._replace(step="committing"))
            if phase is not None or worker.transaction in state.refused:
                after, _ = self._decide(state, id_of(worker.number), Abort(worker.transaction))
                yield f"{name} rolls back", self._idle(after, worker)
            elif not held and not self._under_way(state, worker.transaction):
                yield f"{name} acks again", self._send_ack(state, worker)
        elif worker.step == "committing" and phase is not None:
            yield f"{name} is told: {phase.value}", self._idle(state, worker)
        if state.deaths < scope.deaths:
            gone = _with(state, worker._replace(step="dead"))._replace(deaths=state.deaths + 1)
            yield f"{name} dies", gone._replace(attached=gone.attached - {worker.session})

    def _grant(self, state: State, worker: Worker) -> Iterator[tuple[str, State]]:
        leader = self._leader(state)
        granted = leader.leases.grant(session_id(worker.session), 1, JOB + 1, applied(state.log).now_us, 0.0)
        if not granted:
            return
        (grant,) = granted
        name, owner = id_of(worker.number), worker.number + 1
        state = state._replace(leased=leader.leased, granted=grant.number)
        begun, result = self._decide(state, name, Begin(owner, 0, TIMEOUT_US))
        assert isinstance(result, TransactionalId)
        transaction = TransactionId(owner, 0, result.number)
        added, _ = self._decide(begun, name, Add(transaction, frozenset({INPUT})))
        added = added._replace(handled=(*added.handled, (transaction, grant.era.generation)))
        holds = worker._replace(step="holds", grant=grant, transaction=transaction, begun=worker.begun + 1)
        yield f"worker {worker.number} takes the job", _with(added, holds)

    def _send_ack(self, state: State, worker: Worker) -> State:
        entry = Entry("stage", worker.session, worker.transaction, worker.grant)
        return self._send(state, Message("stage", worker.transaction, entry), 1)

    def _under_way(self, state: State, transaction: TransactionId) -> bool:
        sent = [message.transaction for message, _ in state.net if message.kind in ("stage", "answer")]
        return transaction in [*sent, *(entry.transaction for entry in (*state.tail, *state.waiting))]

    def _idle(self, state: State, worker: Worker) -> State:
        """The worker goes on. A job whose ack is not staged comes back into its hand, and it gives that back."""
        leased, grant = state.leased, worker.grant
        if leased is not None and grant is not None:
            # A new leader has the grant as started: term and number name it.
            own = (leased.session, *leased.grant[1:3]) == (worker.session, *grant[1:3])
            state = state._replace(leased=None) if own else state
        return _with(state, worker._replace(step="idle", grant=None))

    # ---- sessions

    def _sessions(self, state: State) -> Iterator[tuple[str, State]]:
        """Sessions end: of workers that are dead, and of others that were silent. Workers attach to a new leader."""
        group = applied(state.log).group
        opening = {entry.session for entry in state.tail if entry.kind == "open"}
        closing = {entry.session for entry in state.tail if entry.kind == "close"}
        for worker in state.workers:
            session, known = worker.session, session_id(worker.session) in group.sessions
            if not known and session not in opening:
                if worker.step != "dead":
                    yield f"worker {worker.number} begins a new session", self._attach(state, worker, session + 1)
            elif session in closing:
                continue
            elif worker.step == "dead":
                yield f"the session of worker {worker.number} ends", self._close(state, session)
            elif session not in state.attached:
                yield f"worker {worker.number} attaches", self._attach(state, worker, session)
            elif known and state.silences < self.scope.silences:
                silent = self._close(state, session)
                yield f"worker {worker.number} is silent", silent._replace(silences=state.silences + 1)

    def _attach(self, state: State, worker: Worker, session: int) -> State:
        leader = self._leader(state)
        holds = worker.step in ("holds", "staging") and worker.grant is not None
        held = [worker.grant._replace(started=True)] if holds and worker.grant is not None else []
        try:
            leader.leases.attach(session_id(session), 1, held, 0.0)
        except SessionEnded:
            return state
        opens = [Entry("open", session) for each in leader.leases.take_proposals() if each.opens]
        after = state._replace(
            leased=leader.leased, attached=state.attached - {worker.session} | {session}, tail=(*state.tail, *opens)
        )
        return _with(after, worker._replace(session=session))

    def _close(self, state: State, session: int) -> State:
        leader = self._leader(state)
        leader.leases.end_session(session_id(session))
        started = leader.leases.take_proposals()[-1].charges
        leased = state.leased
        grant = leased.grant if started and leased is not None else None
        tail = (*state.tail, Entry("close", session, grant=grant))
        return state._replace(leased=leader.leased, attached=state.attached - {session}, tail=tail)

    # ---- the leader

    def append(self, state: State, entry: Entry) -> State:
        assert entry.grant is not None
        leader, session = self._leader(state), session_id(entry.session)
        try:
            leader.jobs.check(session, [entry.grant])
        except LeaseLost:
            return self.refuse(state, entry)
        except NotReady:
            return state  # the worker acks again
        leader.jobs.stage([entry.grant])
        return state._replace(leased=leader.leased, tail=(*state.tail, entry))

    def refuse(self, state: State, entry: Entry) -> State:
        return state._replace(refused=state.refused | {entry.transaction})

    def end_entry(self, transaction: TransactionId, publish: bool) -> Entry:
        return Entry("end", transaction=transaction, publish=publish)

    def _partition(self, state: State) -> Iterator[tuple[str, State]]:
        scope, queue = self.scope, applied(state.log)
        if state.tail:
            yield from self._apply(state)
        if state.leased is not None and state.expiries < scope.expiries:
            leader = self._leader(state)
            leader.leases.take_back(JOB)
            yield "the lease runs out", state._replace(leased=None, expiries=state.expiries + 1)
        if state.term <= scope.elections and (state.tail or state.asked or state.waiting or state.leased):
            for kept in {0, len(state.tail)}:
                after = state._replace(log=(*state.log, *state.tail[:kept]), tail=(), asked=(), waiting=())
                after = after._replace(term=state.term + 1, leased=None, attached=frozenset(), granted=0)
                yield "a new leader", self._note_refused(after)
        if state.seeks < scope.seeks and not any(entry.kind == "seek" for entry in state.tail):
            yield "a seek", state._replace(tail=(*state.tail, Entry("seek")), seeks=state.seeks + 1)
        if state.trims < scope.trims:
            yield "a trim", state._replace(tail=(*state.tail, Entry("trim")), trims=state.trims + 1)
        for transaction in self.staging(state)[0].undecided():
            yield from self._told(state, transaction, f"the leader asks about {transaction}")
        acks, group = queue.state.staged_acks, queue.group
        for transaction in acks.orphans(GROUP, group.generation, group.sessions):
            ended, _ = self._decide(state, id_of(transaction.producer_id - 1), Abort(transaction))
            yield from self._told(ended, transaction, f"the leader asks to end {transaction}")

    def _apply(self, state: State) -> Iterator[tuple[str, State]]:
        entry, *rest = state.tail
        after = state._replace(log=(*state.log, entry), tail=tuple(rest))
        if entry.kind == "seek":  # all grants are over
            after = after._replace(leased=None)
        if entry.kind == "stage":
            after = self._note_refused(after)
        if entry.kind == "end":
            yield "the end is applied and confirmed", self._confirm(after, entry.transaction)
        yield f"{entry.kind} is applied", after

    def _note_refused(self, state: State) -> State:
        """Tell the workers of acks that were refused when they were applied."""
        acks = applied(state.log).state.staged_acks
        ended = {entry.transaction for entry in state.log if entry.kind == "end"}
        staged = {entry.transaction for entry in state.log if entry.kind == "stage"}
        refused = {each for each in staged - ended if not acks.held(each)}
        return state._replace(refused=state.refused | refused)

    def _leader(self, state: State) -> Leader:
        """The leader's memory, as it is with this log, tail and lease."""
        view = View(applied(state.log))
        leases = QueueLeases(state.term, view, 0, SETTINGS, 0.0)
        for session in state.attached:
            leases.sessions[session_id(session)] = Session(1, 0.0)
            leases.absent.discard(session_id(session))
        for entry in state.tail:
            if entry.kind == "close":
                charges = () if entry.grant is None else (Charge(JOB, entry.grant.delivery, 0),)
                leases.absent.discard(session_id(entry.session))
                leases._ending.add(session_id(entry.session))
                leases.block(Proposal(leases.era, ends=session_id(entry.session), charges=charges))
            elif entry.kind == "open":
                leases._opening.add(session_id(entry.session))
            elif entry.kind == "stage":
                leases.block(Proposal(leases.era, staged=(JOB,)))
        leases.end_wait(0.0)
        leases._number = state.granted
        if state.leased is not None:
            session, grant = state.leased
            leases.leases[JOB] = Lease(session_id(session), grant, 0.0, SETTINGS.lease_s, started=True)
        return Leader(leases, StagedJobs(leases, view))

    def staging(self, state: State) -> tuple[Staging, dict[int, Question]]:
        partition = applied(state.log).state
        staging = Staging(partition.staged, partition.staged_offsets, partition.staged_acks)
        for index, entry in enumerate(state.tail, partition.applied_index + 1):
            if entry.kind == "end":
                staging.end_appended(index, entry.transaction)
            elif entry.kind == "stage":
                batch = StagedBatch(entry.transaction, ACKS_WRITER, 0)
                staging.appended(batch, StagedEntry(index, 0, 0, 0, 0))
        return staging, {serial: staging.ask(transaction) for transaction, serial in state.asked}


def _with(state: State, worker: Worker) -> State:
    workers = tuple(worker if each.number == worker.number else each for each in state.workers)
    return state._replace(workers=workers)
