"""A small world of jobs that are acked in transactions, as states and steps: a design, of which no code ships yet.

One partition of a queue group, and two workers. Each takes a job under a lease, stages its ack in a transaction of its
own, and commits: what it made of the job is visible if the coordinator decides COMMIT. Leases end at any moment,
leaders change and forget them, a worker dies, and a staged ack is late. The rules are switches, so that a search can
show what each of them prevents (docs/adr/0131-a-staged-ack-is-the-only-one.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Rule(Enum):
    """What the leader and the replicated state have to do."""

    ONE_ACK = "a job with a staged ack takes no other one"
    REPLICATED = "a staged ack is in the state of every replica"
    FREED = "a rolled back transaction gives its jobs back"
    SETTLED = "a committed transaction settles its jobs"
    COUNTED = "the coordinator commits what the partition has applied, and nothing else"
    ENDED = "the transaction of a worker that is gone is rolled back"


@dataclass(frozen=True)
class AckScope:
    """How much may happen in one world."""

    without: frozenset[Rule] = field(default_factory=frozenset)
    expiries: int = 1  # leases that end while their worker goes on
    elections: int = 0
    deaths: int = 0  # of workers
    begins: int = 2  # transactions of each worker


class Step(Enum):
    """How far a worker is."""

    IDLE = "idle"
    HOLDS = "has the job"
    STAGES = "has sent its ack"
    COMMITS = "has asked for the decision"
    DEAD = "is dead"


class Worker(NamedTuple):
    """A worker and its session."""

    step: Step = Step.IDLE
    transaction: int = 0
    grant: int = 0
    begun: int = 0


class Entry(NamedTuple):
    """What the leader has appended."""

    kind: str  # "stage", "publish", "discard"
    transaction: int


class State(NamedTuple):
    """One state of the world. Transaction numbers are 10 * worker + attempt."""

    workers: tuple[Worker, ...] = (Worker(), Worker())
    job: str = "free"  # applied: "free", "staged", "settled"
    staged_by: int = 0
    tail: tuple[Entry, ...] = ()
    leased_to: int = -1  # in the leader's memory: the worker
    newest_grant: int = 0  # as above: of the lease
    grants: int = 0
    sent: frozenset[tuple[int, int]] = frozenset()  # late acks: (transaction, grant)
    decided: tuple[tuple[int, bool], ...] = ()  # (transaction, committed)
    expiries: int = 0
    elections: int = 0
    deaths: int = 0


class AckWorld:
    """The steps that can happen in a scope."""

    def __init__(self, scope: AckScope) -> None:
        self.scope = scope

    def has(self, rule: Rule) -> bool:
        return rule not in self.scope.without

    def first(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, worker in enumerate(state.workers):
            yield from self._worker(state, number, worker)
        for transaction, grant in state.sent:
            yield from self._arrive(state, transaction, grant)
        yield from self._leader(state)

    # ---- workers

    def _worker(self, state: State, number: int, worker: Worker) -> Iterator[tuple[str, State]]:
        name, decided = f"worker {number}", dict(state.decided)
        if worker.step is Step.DEAD:
            return
        if worker.step is Step.IDLE and self._may_grant(state) and worker.begun < self.scope.begins:
            grant, begun = state.grants + 1, worker.begun + 1
            holds = Worker(Step.HOLDS, 10 * number + begun, grant, begun)
            granted = _with(state, number, holds)
            yield f"{name} gets the job", granted._replace(leased_to=number, newest_grant=grant, grants=grant)
        elif worker.step is Step.HOLDS:
            sent = state._replace(sent=state.sent | {(worker.transaction, worker.grant)})
            yield f"{name} sends its ack", _with(sent, number, worker._replace(step=Step.STAGES))
        elif worker.step is Step.STAGES:
            # It may ask before it has an answer: the coordinator has to count.
            held = state.job == "staged" and state.staged_by == worker.transaction
            commits = held or not self.has(Rule.COUNTED)
            asked = _with(state, number, worker._replace(step=Step.COMMITS))
            if worker.transaction not in decided:
                yield f"{name} commits", _decide(asked, worker.transaction, committed=commits)
            else:
                yield f"{name} hears that it was rolled back", asked
        elif worker.step is Step.COMMITS:
            yield f"{name} goes on", _with(state, number, worker._replace(step=Step.IDLE))
        if state.deaths < self.scope.deaths:
            gone = _with(state, number, worker._replace(step=Step.DEAD))._replace(deaths=state.deaths + 1)
            yield f"{name} dies", gone

    def _may_grant(self, state: State) -> bool:
        if state.leased_to >= 0 or any(entry.kind == "publish" for entry in state.tail):
            return False
        if state.job == "settled":
            return False
        staged = state.job == "staged" or any(entry.kind == "stage" for entry in state.tail)
        return not staged  # it would be in vain, because that worker's ack is refused

    # ---- the leader

    def _arrive(self, state: State, transaction: int, grant: int) -> Iterator[tuple[str, State]]:
        state = state._replace(sent=state.sent - {(transaction, grant)})
        number = transaction // 10
        ended = transaction in dict(state.decided)  # the leader asks the coordinator first
        newer = state.leased_to >= 0 and state.newest_grant > grant
        taken = state.job == "staged" or any(entry.kind == "stage" for entry in state.tail)
        lost = newer or (taken and self.has(Rule.ONE_ACK))
        if ended or lost or state.job == "settled":
            refused = state if ended else _decide(state, transaction, committed=False)
            yield f"the ack of {transaction} is refused", refused
            return
        leased = -1 if state.leased_to == number else state.leased_to  # it is in no lease from now on
        staged = state._replace(tail=(*state.tail, Entry("stage", transaction)), leased_to=leased)
        yield f"the ack of {transaction} is appended", staged

    def _leader(self, state: State) -> Iterator[tuple[str, State]]:
        decided = dict(state.decided)
        if state.tail:
            yield f"{state.tail[0].kind} is applied", self._apply(state)
        if state.leased_to >= 0:
            holder = state.workers[state.leased_to]
            over = holder.step in (Step.DEAD, Step.IDLE) or holder.grant != state.newest_grant
            if over:
                yield "the lease of a worker that is gone ends", state._replace(leased_to=-1)
            elif state.expiries < self.scope.expiries:
                yield "the lease ends", state._replace(leased_to=-1, expiries=state.expiries + 1)
        if state.elections < self.scope.elections:
            for kept in {0, len(state.tail)}:
                after = state
                for _ in range(kept):
                    after = self._apply(after)
                after = after._replace(tail=(), leased_to=-1, newest_grant=0, elections=state.elections + 1)
                if not self.has(Rule.REPLICATED) and after.job == "staged":
                    after = after._replace(job="free", staged_by=0)
                yield "a new leader", after
        ending = any(entry.kind != "stage" for entry in state.tail)
        if state.job == "staged" and not ending:
            transaction = state.staged_by
            if transaction in decided:
                end = Entry("publish" if decided[transaction] else "discard", transaction)
                yield f"{end.kind} of {transaction}", state._replace(tail=(*state.tail, end))
            elif state.workers[transaction // 10].step is Step.DEAD and self.has(Rule.ENDED):
                yield f"{transaction} is rolled back", _decide(state, transaction, committed=False)

    def _apply(self, state: State) -> State:
        entry, *rest = state.tail
        state = state._replace(tail=tuple(rest))
        if entry.kind == "stage":
            settled = state.job == "settled"
            return state if settled else state._replace(job="staged", staged_by=entry.transaction)
        if state.job != "staged" or state.staged_by != entry.transaction:
            return state
        settles = self.has(Rule.SETTLED) if entry.kind == "publish" else not self.has(Rule.FREED)
        return state._replace(job="settled" if settles else "free", staged_by=0)


def _with(state: State, number: int, worker: Worker) -> State:
    workers = list(state.workers)
    workers[number] = worker
    return state._replace(workers=tuple(workers))


def _decide(state: State, transaction: int, *, committed: bool) -> State:
    """The coordinator's decision."""
    if transaction in dict(state.decided):
        return state
    return state._replace(decided=(*state.decided, (transaction, committed)))


def anomaly(state: State) -> str:
    """Name the promise that this state breaks; "": it breaks none."""
    committed = sum(each for _, each in state.decided)
    if committed > 1:
        return "a job was handled twice"
    if state.job == "settled" and not committed:
        return "a job is lost: no committed transaction has handled it"
    return ""


def left_over(scope: AckScope, state: State) -> str:
    """Name the promise that this last state of a path breaks; "": it breaks none."""
    if state.job == "staged":
        return "an ack is staged for ever"
    if any(committed for _, committed in state.decided) and state.job != "settled":
        return "a job that was handled comes again"
    able = [each for each in state.workers if each.step is Step.IDLE and each.begun < scope.begins]
    return "a job is left" if able and state.job == "free" else ""
