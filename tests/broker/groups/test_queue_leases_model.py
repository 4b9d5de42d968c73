"""Leases of a queue group in random worlds: leaders that do not know they are deposed, workers that lose connections,
messages that are late across connections, and seeks.

What is committed is a real partition's state, and each leader has its own replica of it, which stops with its
leadership. The rules of the leases are checked at each step: no record is granted while a worker that the newest leader
counts holds it, none is settled without a delivery in its generation, and only what was started is charged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from tests.broker.state.queue_commands import GROUP, Queue
from tests.seeds import first_of
from tinymq.base.errors import SessionEnded
from tinymq.broker.groups import queue_leases
from tinymq.broker.groups.lease_values import Grant, Proposal, QueueSettings, SettlementResult, has_settled
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.state.queue_group import QueueGroup
from tinymq.broker.state.state import PartitionState

RECORDS = 6
STEPS = 200
SETTINGS = QueueSettings(lease_s=30.0, ask_s=2.0, session_s=1000.0, rejoin_s=3.0)


class Replica:
    """A leader's own state of the partition, and its leases."""

    def __init__(self, world: World, term: int) -> None:
        self.world, self.term = world, term
        self.state = PartitionState()
        self.applied = 0
        self.catch_up()
        self.leases = QueueLeases(term, self, 0, world.settings, world.now_s)
        self.under_way: list[Proposal] = []
        self.began_s = world.now_s
        self.seen: set[bytes] = set()  # sessions that have attached to this leader

    @property
    def group(self) -> QueueGroup:
        return self.state.queue_groups.by_name[GROUP]

    @property
    def position(self) -> int:
        return max(self.state.cursors[GROUP].position, self.state.log_start)

    def catch_up(self) -> None:
        for entry in self.world.log.entries[self.applied :]:
            self.state.apply(entry)
        self.applied = len(self.world.log.entries)


def key_of(offset: int) -> int | None:
    """The key of a record, in worlds with keyed order."""
    return (None, 1, 2)[offset % 3]


@dataclass
class Held:
    grant: Grant
    started: bool = False
    valid: bool = True  # the newest leader counts it, or will when the worker attaches


@dataclass
class Worker:
    name: str
    sessions: int = 0
    connection: tuple[int, int] | None = None  # (term of the leader, number)
    newest_term: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    unanswered: dict[int, tuple[str, Grant]] = field(default_factory=dict)

    @property
    def session(self) -> bytes:
        return f"{self.name}{self.sessions}".encode().ljust(16, b".")


class World:
    def __init__(self, seed: int, keyed: bool = False) -> None:
        self.settings = replace(SETTINGS, keyed=keyed)
        self.rng = random.Random(seed)
        self.log = Queue(RECORDS)
        self.now_s = 0.0
        self.term = 1
        self.leaders = {1: Replica(self, 1)}
        self.workers = {name: Worker(name) for name in "AB"}
        self.net: list[tuple[tuple[str, int, int], str, tuple]] = []  # type: ignore[type-arg]
        self.connections = 0
        self.delivered: set[tuple[int, int]] = set()  # (generation, offset)
        self.started: set[tuple[int, int, int]] = set()  # (generation, offset, delivery)
        self.seeks = 0
        self.answers = 0  # acks that workers were told of when they attached
        self.settled_in: set[tuple[int, int]] = set()  # (generation, offset)
        self.trace: list[str] = []

    @property
    def newest(self) -> Replica:
        return self.leaders[self.term]

    # ---- what may happen

    def step(self) -> None:
        rng = self.rng
        often = [
            self.grant,
            self.settle,
            self.deliver,
            self.deliver,
            self.deliver,
            self.commit,
            self.commit,
            self.start,
        ]
        seldom = [self.attach, self.cut, self.expire, self.time]
        actions = often if rng.random() < 0.9 else seldom
        if any(worker.connection is None for worker in self.workers.values()) and rng.random() < 0.3:
            actions = [self.attach]
        if len(self.leaders) < 3 and rng.random() < 0.012:
            actions = [self.fail_over]
        if self.seeks < 2 and rng.random() < 0.01:
            actions = [self.seek]
        rng.choice(actions)()
        self.look()

    def grant(self) -> None:
        leader = self.rng.choice(list(self.leaders.values()))
        worker = self.rng.choice(list(self.workers.values()))
        known = leader.leases.sessions.get(worker.session)
        leader.leases.end_wait(self.now_s)
        keys = leader.leases.keys
        if keys is not None and keys.known_end < RECORDS:
            keys.learn(keys.known_end, [key_of(offset) for offset in range(keys.known_end, RECORDS)])
        self.look()
        for new in leader.leases.grant(worker.session, self.rng.randint(1, 3), RECORDS, self.log.now_us, self.now_s):
            assert known is not None
            if leader is self.newest:
                self.check_grant(worker, new)
            self.delivered.add((new.era.generation, new.offset))
            if new.started:  # alone, because three sessions have died with it
                self.started.add((new.era.generation, new.offset, new.delivery))
            self.send(worker, leader.term, known.connection, "down", ("grant", new))
            self.trace.append(f"{leader.term} grants {new.offset} to {worker.name} ({new.number})")

    def check_grant(self, worker: Worker, new: Grant) -> None:
        assert new.offset not in self.log.settled, "a settled record is granted"
        assert worker.session in self.log.group.sessions, "a session gets a record before the log has it"
        assert new.offset < self.log.group.granted_below, "a record is granted at the mark, or above it"
        if self.settings.keyed and key_of(new.offset) is not None:
            earlier = [offset for offset in range(new.offset) if key_of(offset) == key_of(new.offset)]
            position = self.newest.position
            assert all(o < position or o in self.log.settled for o in earlier), "an earlier record of its key waits"
        for other in self.workers.values():
            held = other.held.get(new.offset)
            nacked = other.unanswered.get(new.offset, ("", None))[0] == "nack"
            if other is worker or held is None or not held.valid or nacked or held.grant.era != new.era:
                continue
            raise AssertionError(f"{other.name} holds {new.offset}, and it is granted to {worker.name}")

    def attach(self) -> None:
        absent = [worker for worker in self.workers.values() if worker.connection is None]
        worker = self.rng.choice(absent or list(self.workers.values()))
        term = self.rng.choice([t for t in self.leaders if t >= worker.newest_term])
        self.connections += 1
        worker.connection, worker.newest_term = (term, self.connections), term
        held = [each.grant._replace(started=each.started) for each in worker.held.values()]
        self.send(worker, term, self.connections, "up", ("attach", worker.session, held))

    def settle(self) -> None:
        worker = self.rng.choice(list(self.workers.values()))
        if worker.connection is None:
            return
        for offset, held in list(worker.held.items()):
            if self.rng.random() < 0.5 and held.started:
                kind, grant = worker.unanswered.setdefault(
                    offset, (self.rng.choice(["ack", "ack", "nack"]), held.grant)
                )
                self.send(worker, *worker.connection, "up", (kind, worker.session, grant))

    def start(self) -> None:
        worker = self.rng.choice(list(self.workers.values()))
        ready = [held for held in worker.held.values() if not held.started]
        if ready and worker.connection is not None:  # it starts nothing while it is not attached
            held = self.rng.choice(ready)
            held.started = True
            self.started.add((held.grant.era.generation, held.grant.offset, held.grant.delivery))
            self.send(worker, *worker.connection, "up", ("start", worker.session, held.grant))

    def send(self, worker: Worker, term: int, connection: int, way: str, message: tuple) -> None:  # type: ignore[type-arg]
        self.net.append(((worker.name, term, connection), way, message))

    def deliver(self) -> None:
        """Within one connection and direction messages stay in order; otherwise any of them may come next."""
        firsts = {(line, way): at for at, (line, way, _) in reversed(list(enumerate(self.net)))}
        if firsts:
            line, way, message = self.net.pop(self.rng.choice(sorted(firsts.values())))
            worker, leader = self.workers[line[0]], self.leaders.get(line[1])
            if way == "down":
                self.receive(worker, line, message)
            elif leader is not None:
                self.serve(worker, leader, line[2], message)

    def receive(self, worker: Worker, line: tuple[str, int, int], message: tuple) -> None:  # type: ignore[type-arg]
        if worker.connection != line[1:]:
            return  # attaching has ended the older connection on both sides
        if message[0] == "grant":
            new = message[1]
            lease = self.newest.leases.leases.get(new.offset)
            worker.held[new.offset] = Held(new, new.started, valid=lease is not None and lease.grant == new)
            worker.unanswered.pop(new.offset, None)
        elif message[0] == "lost":
            for offset, grant in message[1]:
                self.forget(worker, offset, grant)
        elif message[0] == "ended" and message[1] == worker.session:
            worker.sessions, worker.connection = worker.sessions + 1, None
            worker.held.clear()
            worker.unanswered.clear()

    def forget(self, worker: Worker, offset: int, grant: Grant) -> None:
        if worker.unanswered.get(offset, ("", None))[1] == grant:
            del worker.unanswered[offset]
        if offset in worker.held and worker.held[offset].grant[:4] == grant[:4]:
            del worker.held[offset]

    def serve(self, worker: Worker, leader: Replica, connection: int, message: tuple) -> None:  # type: ignore[type-arg]
        leases, kind, session = leader.leases, message[0], message[1]
        if kind == "attach":
            known = leases.sessions.get(session)
            if known is not None and known.connection > connection:
                return
            try:
                lost = leases.attach(session, connection, message[2], self.now_s)
            except SessionEnded:
                self.send(worker, leader.term, connection, "down", ("ended", session))
                return
            pairs = [(grant.offset, grant) for grant in message[2] if grant.offset in lost]
            for offset, grant in pairs:
                if has_settled(leader, leases.era, grant):  # what the worker may take for the answer to its ack
                    assert (grant.era.generation, offset) in self.settled_in, f"{offset} is not settled"
                    self.answers += 1
            self.send(worker, leader.term, connection, "down", ("lost", pairs))
            return
        grant = message[2]
        if kind == "start":
            leases.extend(session, connection, grant, True, self.now_s)
            return
        before = dict(leases.leases)
        if kind == "ack":
            verdict = leases.ack(session, connection, grant, self.now_s)
        else:
            verdict = leases.nack(session, connection, grant, 0, self.now_s)
        lease = before.get(grant.offset)
        if verdict is SettlementResult.PROPOSED and lease is not None and leader is self.newest:
            assert lease.grant[:4] == grant[:4], "a settlement of an older grant ends a newer lease"
        if verdict in (SettlementResult.DONE, SettlementResult.LOST):
            self.send(worker, leader.term, connection, "down", ("lost", [(grant.offset, grant)]))

    # ---- the log

    def commit(self) -> None:
        leader = self.newest
        leader.under_way += leader.leases.take_proposals()
        if leader.under_way:
            self.apply(leader.under_way.pop(0))

    def apply(self, proposal: Proposal) -> None:
        """Commit a proposal of the newest leader."""
        log, ref = self.log, self.log.ref(proposal.era.generation)
        current = ref.generation == log.group.generation
        for offset in proposal.acks if current else ():
            assert (ref.generation, offset) in self.delivered, f"{offset} is settled, and was never delivered"
        for charge in proposal.charges if current else ():
            key = (ref.generation, charge.offset, charge.delivery)
            assert key in self.started, f"{charge.offset} is charged, and was never started"
        charges = [tuple(charge) for charge in proposal.charges]
        if proposal.opens:
            log.open_session(proposal.opens)
        elif proposal.ends:
            log.end_session(proposal.ends, charges, proposal.returned, ref)
        elif proposal.granted_below:
            log.raise_mark(proposal.granted_below, ref)
        else:
            log.settle(*((offset, offset + 1) for offset in proposal.acks), failed=charges, ref=ref)
        self.newest.catch_up()
        self.newest.leases.applied(proposal)
        if log.group.generation != self.newest.leases.era.generation:
            self.newest.leases.begin_era(0)

    def fail_over(self) -> None:
        old = self.newest
        old.under_way += old.leases.take_proposals()
        for proposal in old.under_way[: self.rng.randint(0, len(old.under_way))]:
            self.apply(proposal)
        old.under_way = []
        if self.rng.random() < 0.5:
            del self.leaders[old.term]
        self.term += 1
        self.leaders[self.term] = Replica(self, self.term)
        self.trace.append(f"{self.term} leads")

    def seek(self) -> None:
        self.seeks += 1
        self.log.seek(self.rng.randrange(RECORDS), self.seeks)
        self.newest.catch_up()
        self.newest.leases.begin_era(0)

    # ---- time

    def cut(self) -> None:
        worker = self.rng.choice(list(self.workers.values()))
        if worker.connection is not None and self.rng.random() < 0.4:
            term, connection = worker.connection
            worker.connection = None
            if term in self.leaders:
                self.leaders[term].leases.close(worker.session, connection, self.rng.random() < 0.3, self.now_s)

    def time(self) -> None:
        self.now_s += self.rng.choice([0.1, 1.0, 1.0, 1.0, 4.0, 31.0])

    def expire(self) -> None:
        for leader in self.leaders.values():
            for session, grant in leader.leases.expire(self.now_s).asked:
                worker = next((w for w in self.workers.values() if w.session == session), None)
                if worker is not None and self.rng.random() < 0.5 and grant.offset in worker.held:
                    known = leader.leases.sessions.get(session)
                    if known is not None:  # it answers in time
                        leader.leases.extend(session, known.connection, grant, False, self.now_s)

    # ---- what holds always

    def look(self) -> None:
        """Say of each held record whether the newest leader counts it."""
        leases = self.newest.leases
        for worker in self.workers.values():
            if worker.session in leases.sessions:
                self.newest.seen.add(worker.session)
            for offset, held in worker.held.items():
                if worker.session in leases.sessions:
                    lease = leases.leases.get(offset)
                    held.valid = lease is not None and lease.grant[:4] == held.grant[:4]
                elif worker.session in self.newest.seen or self.now_s >= self.newest.began_s + SETTINGS.rejoin_s:
                    held.valid = False  # its session has ended, or its time to attach is up
        generation, position = self.log.group.generation, self.newest.position
        self.settled_in |= {(generation, o) for o in range(RECORDS) if self.log.group.is_settled(o, position)}
        for offset, failure in self.log.group.failures.items():
            most = max((n for g, o, n in self.started if (g, o) == (self.log.group.generation, offset)), default=0)
            assert failure.deliveries <= most, "more deliveries failed than were started"


@pytest.mark.parametrize("seed", first_of(range(600), 110))
def test_random_worlds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_leases, "MARK_STEP", 2)
    world = World(seed)
    for _ in range(STEPS):
        world.step()


@pytest.mark.parametrize("seed", first_of(range(600), 40))
def test_random_worlds_of_keys(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is granted when all earlier ones of its key are settled, whoever leads."""
    monkeypatch.setattr(queue_leases, "MARK_STEP", 2)
    world = World(seed, keyed=True)
    for _ in range(STEPS):
        world.step()


@pytest.mark.parametrize("keyed", [False, True])
def test_worlds_get_somewhere(keyed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds settle records, change leaders and charge: a search that stands still would find nothing."""
    monkeypatch.setattr(queue_leases, "MARK_STEP", 2)
    settled = terms = failures = answers = 0
    for seed in range(40):
        world = World(seed, keyed)
        for _ in range(STEPS):
            world.step()
        settled += len(world.log.settled)
        terms += world.term
        failures += len(world.log.group.failures)
        answers += world.answers
    assert settled > 40
    assert terms > 60
    assert failures > 0
    assert answers > 0
