"""A small world of one record, two workers and a leader that changes: what may a worker take for the answer to its ack?

A worker whose answer was lost lists its grant when it attaches again. The leader says which listed grants are lost, and
which of those are of records that are settled. `explore` visits every state that a few grants, failovers, cuts and
seeks can reach. It ends at the first state in which a worker takes something else for an answer.

The rules of the answer are switches, so that a test can leave one out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class Rule(Enum):
    """The conditions under which a worker takes a lost grant for settled by its ack."""

    APPLIED = "the leader has applied what settled the record; a proposal is not enough"
    SAME_ERA = "the grant is of the generation that the leader is in"
    ACKS = "the worker has sent an ack, and not a nack"
    THAT_LEASE = "the ack was for this very grant, and not for an earlier one of the record"


class Grant(NamedTuple):
    number: int
    generation: int
    delivery: int


class Held(NamedTuple):
    """The record in a worker's hand, or with a verb that has no answer yet."""

    grant: Grant
    verb: str = ""  # "ack" or "nack"; "": the application handles the record
    sent: bool = False
    waits: bool = False  # for the answer on this connection


class Worker(NamedTuple):
    connected: int = 0  # the term of the leader; 0: no connection
    attached: bool = False  # the leader has answered
    newest_term: int = 0
    held: Held | None = None
    acked_before: bool = False  # it has sent an ack for some grant of the record
    up: tuple[tuple[object, ...], ...] = ()  # messages on their way, the first one first
    down: tuple[tuple[object, ...], ...] = ()


class Proposal(NamedTuple):
    kind: str  # "ack" or "charge"
    grant: Grant


class State(NamedTuple):
    # Committed.
    generation: int = 1
    settled: bool = False  # in this generation
    deliveries: int = 0  # that failed, in this generation
    sessions: frozenset[int] = frozenset((0, 1))
    # What was ever true: the judge's, and no part of the protocol.
    settled_in: frozenset[int] = frozenset()  # generations
    charged: frozenset[tuple[int, int]] = frozenset()  # (generation, delivery)
    # The newest leader's memory, and what a deposed one knows that still answers.
    term: int = 1
    waits: bool = False
    lease: tuple[int, Grant] | None = None
    pending: tuple[Proposal, ...] = ()
    deposed: tuple[int, int, bool] | None = None  # its term, generation, and whether the record is settled
    workers: tuple[Worker, Worker] = (Worker(1, True, 1), Worker(1, True, 1))
    # What may still happen.
    grants: int = 0
    failovers: int = 1
    cuts: int = 2
    seeks: int = 1


class Wrong(Exception):
    """A worker took something else for an answer."""


Step = tuple[str, State]
RULES = frozenset(Rule)
GRANTS_MAX = 2


def explore(rules: frozenset[Rule], start: State | None = None, states_max: int = 1_000_000) -> tuple[int, list[str]]:
    """The number of states, and the steps to the first wrong one; [] if there is none."""
    first = start or State()
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        try:
            for step, after in _steps(state, rules):
                if after not in came:
                    came[after] = (state, step)
                    waiting.append(after)
        except Wrong as wrong:
            steps = [str(wrong)]
            at = came[state]
            while at is not None:
                steps.append(at[1])
                at = came[at[0]]
            return len(came), steps[::-1]
        assert len(came) <= states_max, "the world is larger than the test"
    return len(came), []


def _steps(state: State, rules: frozenset[Rule]) -> Iterator[Step]:
    yield from _leader_steps(state)
    for number, worker in enumerate(state.workers):
        yield from _worker_steps(state, number, worker)
        if worker.up:
            yield from _served(_with(state, number, worker._replace(up=worker.up[1:])), number, worker.up[0], rules)
        if worker.down:
            rest = worker._replace(down=worker.down[1:])
            yield _received(_with(state, number, rest), number, worker.down[0], rules)


def _with(state: State, number: int, worker: Worker) -> State:
    first, second = state.workers
    return state._replace(workers=(worker, second) if number == 0 else (first, worker))


# ---- the newest leader


def _leader_steps(state: State) -> Iterator[Step]:
    if state.pending:
        yield f"commit {state.pending[0].kind}", _committed(state)
    is_open = not (state.settled or state.lease or state.pending or state.waits)
    for number, worker in enumerate(state.workers):
        attached = worker.connected == state.term and worker.attached and number in state.sessions
        if is_open and attached and state.grants < GRANTS_MAX:
            grant = Grant(state.grants + 1, state.generation, state.deliveries + 1)
            leased = state._replace(lease=(number, grant), grants=state.grants + 1)
            got = worker._replace(down=(*worker.down, ("grant", grant)))
            yield f"grant {grant.number} to {number}", _with(leased, number, got)
        if worker.connected != state.term and number in state.sessions and not state.waits:
            yield f"session {number} ends", _session_ended(state, number)
    if state.lease is not None:
        charge = Proposal("charge", state.lease[1])
        yield "the lease runs out", state._replace(lease=None, pending=(*state.pending, charge))
    if state.waits:
        present = frozenset(n for n in state.sessions if state.workers[n].connected == state.term)
        yield "the wait is over", state._replace(waits=False, sessions=present)
    if state.failovers:
        for kept in range(len(state.pending) + 1):
            yield f"fail over, {kept} proposals survive", _failed_over(state, kept)
    if state.seeks:
        sought = state._replace(generation=state.generation + 1, settled=False, deliveries=0, lease=None)
        yield "seek", sought._replace(seeks=state.seeks - 1)


def _committed(state: State) -> State:
    (kind, grant), rest = state.pending[0], state.pending[1:]
    state = state._replace(pending=rest)
    if grant.generation != state.generation or state.settled:
        return state
    if kind == "ack":
        done = state._replace(settled=True, settled_in=state.settled_in | {state.generation})
        for number, worker in enumerate(state.workers):
            if worker.connected == state.term and worker.held is not None and worker.held.grant == grant:
                done = _with(done, number, worker._replace(down=(*worker.down, ("done", grant))))
        return done
    charged = state.charged | {(grant.generation, grant.delivery)}
    return state._replace(deliveries=max(state.deliveries, grant.delivery), charged=charged)


def _session_ended(state: State, number: int) -> State:
    state = state._replace(sessions=state.sessions - {number})
    if state.lease is not None and state.lease[0] == number:
        return state._replace(lease=None, pending=(*state.pending, Proposal("charge", state.lease[1])))
    return state


def _failed_over(state: State, kept: int) -> State:
    deposed = (state.term, state.generation, state.settled)
    for _ in range(kept):
        state = _committed(state)
    return state._replace(
        term=state.term + 1, waits=True, lease=None, pending=(), deposed=deposed, failovers=state.failovers - 1
    )


# ---- a worker


def _worker_steps(state: State, number: int, worker: Worker) -> Iterator[Step]:
    for term in {state.term} | ({state.deposed[0]} if state.deposed else set()):
        if term > worker.connected and term >= worker.newest_term:
            listed = worker.held.grant if worker.held is not None else None
            up = (("attach", listed),)
            held = worker.held._replace(waits=False) if worker.held is not None else None
            new = worker._replace(connected=term, attached=False, newest_term=term, held=held, up=up, down=())
            yield f"{number} attaches to leader {term}", _with(state, number, new)
    if worker.connected and state.cuts:
        cut = worker._replace(connected=0, attached=False, up=(), down=())
        yield f"{number} is cut off", _with(state, number, cut)._replace(cuts=state.cuts - 1)
    held = worker.held
    if held is None:
        return
    for verb in ("ack", "nack") if not held.verb else ():
        yield f"{number} says {verb}", _with(state, number, worker._replace(held=held._replace(verb=verb)))
    if held.verb and worker.attached and not held.waits:
        sent = worker._replace(
            held=held._replace(sent=True, waits=True),
            acked_before=worker.acked_before or held.verb == "ack",
            up=(*worker.up, (held.verb, held.grant)),
        )
        yield f"{number} sends {held.verb} of grant {held.grant.number}", _with(state, number, sent)


def _received(state: State, number: int, message: tuple[object, ...], rules: frozenset[Rule]) -> Step:
    worker, kind, grant = state.workers[number], message[0], message[1]
    held = worker.held
    if kind == "grant":
        assert isinstance(grant, Grant)
        return f"{number} gets grant {grant.number}", _with(state, number, worker._replace(held=Held(grant)))
    if kind == "attached":
        worker = worker._replace(attached=True)
        lost, settled = message[2], message[3]
        if not lost or held is None or held.grant != grant:
            return f"{number} is attached", _with(state, number, worker)
        if settled and _takes_for_answered(worker, held, rules):
            _judge(state, number, held)
        return f"{number} is attached, and its grant is lost", _with(state, number, worker._replace(held=None))
    if held is not None and held.grant == grant:
        worker = worker._replace(held=held._replace(waits=False) if kind == "later" else None)
    return f"{number} hears {kind}", _with(state, number, worker)


def _takes_for_answered(worker: Worker, held: Held, rules: frozenset[Rule]) -> bool:
    if Rule.THAT_LEASE not in rules:
        return worker.acked_before
    return held.sent and (held.verb == "ack" or Rule.ACKS not in rules)


def _judge(state: State, number: int, held: Held) -> None:
    """Raise Wrong unless what the worker asked for has come about, durably, in the generation of its grant."""
    grant = held.grant
    place = f"{number} takes grant {grant.number} of generation {grant.generation} for answered"
    if not held.verb:
        raise Wrong(f"{place}, and handles it still")
    if held.verb == "ack" and grant.generation not in state.settled_in:
        raise Wrong(f"{place}, and it was never settled")
    if held.verb == "nack" and (grant.generation, grant.delivery) not in state.charged:
        raise Wrong(f"{place}, and its nack does not count")


# ---- a leader, serving


def _served(state: State, number: int, message: tuple[object, ...], rules: frozenset[Rule]) -> Iterator[Step]:
    worker, kind, grant = state.workers[number], message[0], message[1]
    assert grant is None or isinstance(grant, Grant)
    newest = worker.connected == state.term
    if kind == "attach":
        yield f"leader {worker.connected} takes {number}", _attached(state, number, grant, rules)
    elif newest and grant is not None:
        yield f"leader {state.term} takes {kind} of {number}", _settled(state, number, str(kind), grant)
    else:
        yield f"the deposed leader keeps {kind} of {number} for good", state  # it commits nothing any more


def _attached(state: State, number: int, grant: Grant | None, rules: frozenset[Rule]) -> State:
    worker = state.workers[number]
    if worker.connected != state.term:
        assert state.deposed is not None
        _, generation, settled = state.deposed  # its memory still has the lease, so it takes none for lost
        lost = grant is not None and (settled or grant.generation != generation)
        listed = settled and (grant is None or grant.generation == generation or Rule.SAME_ERA not in rules)
        return _with(state, number, worker._replace(down=(*worker.down, ("attached", grant, lost, listed))))
    known = number in state.sessions
    state = state._replace(sessions=state.sessions | {number})
    settled = state.settled or (Rule.APPLIED not in rules and any(p.kind == "ack" for p in state.pending))
    lost = listed = False
    if grant is not None:
        own = state.lease == (number, grant) or (state.lease is None and state.waits)
        holds = known and grant.generation == state.generation and not (state.settled or state.pending) and own
        lost = not holds
        listed = lost and settled and (grant.generation == state.generation or Rule.SAME_ERA not in rules)
        if holds:
            state = state._replace(lease=(number, grant))
    elif state.lease is not None and state.lease[0] == number:
        state = state._replace(lease=None)  # granted on an older connection, and never arrived
    return _with(state, number, worker._replace(down=(*worker.down, ("attached", grant, lost, listed))))


def _settled(state: State, number: int, verb: str, grant: Grant) -> State:
    """As `QueueLeases.ack` and `nack`."""
    worker = state.workers[number]

    def say(word: str) -> State:
        return _with(state, number, worker._replace(down=(*worker.down, (word, grant))))

    if grant.generation != state.generation:
        return say("lost")
    if state.settled:
        return say("done")
    if state.pending:
        return say("later")
    if state.lease != (number, grant) and (verb == "nack" or state.lease is not None):
        return say("lost")
    kind = "ack" if verb == "ack" else "charge"
    return state._replace(lease=None, pending=(*state.pending, Proposal(kind, grant)))
