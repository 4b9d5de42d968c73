"""Queue groups beside a plain model of each record, under commands that come late, twice and from before a seek.

The model says of each record whether it is settled, how often it failed, and whether it is being buried. What must
never happen is checked after each command: a cursor that passes an unsettled record or moves back without a seek, a
charge that counts twice, a later record of a key that is settled first, a burial that is lost. Replicas that start
from a snapshot stay equal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.broker.state.queue_commands import Queue
from tests.seeds import first_of
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb

RECORDS = 12
KEYS = 3  # offset % KEYS is the key of a record
SESSIONS = [bytes([n]) * 16 for n in range(3)]


@dataclass
class Model:
    """One generation of the group."""

    settled: set[int] = field(default_factory=set)
    failed: dict[int, int] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    burials: dict[int, bytes] = field(default_factory=dict)
    sessions: set[bytes] = field(default_factory=set)
    charged: set[tuple[int, int]] = field(default_factory=set)  # the deliveries that failed at all

    def open(self, offset: int) -> bool:
        return offset not in self.settled and offset not in self.burials

    def charge(self, failed: list[tuple[int, int, int]]) -> None:
        for offset, delivery, _ in failed:
            self.charged.add((offset, delivery))
            if self.open(offset):
                self.failed[offset] = max(self.failed.get(offset, 0), delivery)


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.queue = Queue(RECORDS)
        self.model = Model()
        self.late: list[tuple[str, object]] = []  # commands that were sent before, and may come again
        self.generations = [self.queue.group.generation]
        self.seeks = 0
        self.position = 0

    def ref(self) -> pb.QueueRef:
        return self.queue.ref(self.rng.choice([self.queue.group.generation] * 5 + self.generations))

    def some(self, most: int = 3) -> list[int]:
        return self.rng.sample(range(RECORDS), self.rng.randint(0, most))

    def failures(self) -> list[tuple[int, int, int]]:
        return [(offset, self.rng.randint(1, 4), self.rng.randint(0, 9)) for offset in self.some(2)]

    def new(self) -> tuple[str, object]:
        """A command as some leader might send it."""
        rng, ref = self.rng, self.ref()
        match rng.randrange(8):
            case 0 | 1:
                spans = [(o, o + rng.randint(1, 3)) for o in self.some(2)]
                return "settle", (spans, [], self.failures(), ref)
            case 2:
                in_order = [(o, o - KEYS) for o in self.some() if o >= KEYS]
                return "settle", ([], in_order, [], ref)
            case 3:
                return "open_session", rng.choice(SESSIONS)
            case 4:
                return "end_session", (rng.choice(SESSIONS), self.failures(), self.some(2), ref)
            case 5:
                offset = rng.randrange(RECORDS)
                return "bury", (offset, self.burial_id(offset, ref.generation), rng.choice(SESSIONS), ref)
            case 6:
                return "end_burial", self.burial_id(rng.randrange(RECORDS), rng.choice(self.generations))
            case _:
                return "seek", rng.randrange(RECORDS + 1)

    def burial_id(self, offset: int, generation: int) -> bytes:
        return offset.to_bytes(8, "little") + generation.to_bytes(8, "little")

    def step(self) -> None:
        again = self.late and self.rng.random() < 0.3
        name, arguments = self.rng.choice(self.late) if again else self.new()
        if name == "seek" and (again or self.rng.random() < 0.7):
            return
        self.late = [*self.late[-20:], (name, arguments)]
        getattr(self, name)(arguments)
        self.check(sought=name == "seek")

    # ---- each command, in the product and in the model

    def settle(self, arguments: tuple[list[tuple[int, int]], list[tuple[int, int]], list, pb.QueueRef]) -> None:  # type: ignore[type-arg]
        spans, in_order, failed, ref = arguments
        self.queue.settle(*spans, in_order=in_order, failed=failed, ref=ref)
        if ref.generation != self.queue.group.generation:
            return
        for start, end in spans:
            for offset in range(start, min(end, RECORDS)):
                self.ack(offset)
        for offset, prior in sorted(in_order):
            if prior in self.model.settled:
                self.ack(offset)
        self.model.charge(failed)

    def ack(self, offset: int) -> None:
        if self.model.open(offset):
            self.model.settled.add(offset)
            self.model.failed.pop(offset, None)
            self.model.returned.pop(offset, None)

    def open_session(self, session: bytes) -> None:
        self.queue.open_session(session)
        self.model.sessions.add(session)

    def end_session(self, arguments: tuple[bytes, list, list[int], pb.QueueRef]) -> None:  # type: ignore[type-arg]
        session, failed, returned, ref = arguments
        self.queue.end_session(session, failed, returned, ref)
        if session in self.model.sessions and ref.generation == self.queue.group.generation:
            self.model.charge(failed)
            for offset in returned:
                if self.model.open(offset):
                    self.model.returned[offset] = self.model.returned.get(offset, 0) + 1
        self.model.sessions.discard(session)

    def bury(self, arguments: tuple[int, bytes, bytes, pb.QueueRef]) -> None:
        offset, message_id, topic_id, ref = arguments
        self.queue.bury(offset, message_id, topic_id=topic_id, ref=ref)
        if self.model.burials.get(offset) == message_id:
            assert self.queue.group.burials[offset].topic_id == topic_id
        elif ref.generation == self.queue.group.generation and self.model.open(offset):
            self.model.burials[offset] = message_id
            self.model.failed.pop(offset, None)
            self.model.returned.pop(offset, None)

    def end_burial(self, message_id: bytes) -> None:
        self.queue.end_burial(message_id)
        for offset, known in list(self.model.burials.items()):
            if known == message_id:
                del self.model.burials[offset]
                self.ack(offset)

    def seek(self, offset: int) -> None:
        self.seeks += 1
        assert self.queue.seek(offset, self.seeks).error is None
        self.generations.append(self.queue.group.generation)
        burials, sessions = self.model.burials, self.model.sessions
        self.model = Model(settled=set(range(offset)), burials=burials, sessions=sessions)

    # ---- what holds always

    def check(self, sought: bool) -> None:
        queue, model, group = self.queue, self.model, self.queue.group
        assert set(queue.settled) == model.settled
        assert sought or queue.position >= self.position, "the cursor moved back"
        assert set(range(queue.position)) <= model.settled, "the cursor passed an unsettled record"
        self.position = queue.position
        counts = {o: (model.failed.get(o, 0), model.returned.get(o, 0)) for o in {**model.failed, **model.returned}}
        assert {o: (f.deliveries, f.returns) for o, f in group.failures.items()} == counts
        assert all((o, n) in model.charged for o, (n, _) in counts.items() if n), "a charge counted twice"
        assert {o: burial.message_id for o, burial in group.burials.items()} == model.burials
        assert set(group.sessions) == model.sessions


@pytest.mark.parametrize("seed", first_of(range(400), 60))
def test_random_lives(seed: int) -> None:
    life = Life(seed)
    for _ in range(120):
        life.step()
    replica = PartitionState()
    for number, entry in enumerate(life.queue.entries):
        replica.apply(entry)
        if number % 7 == 0:
            copy = PartitionState()
            copy.load(replica.dump())
            replica = copy
    assert replica.dump() == life.queue.state.dump(), f"seed {seed}"


def test_keyed_settlements_stay_in_order() -> None:
    """However acks of a keyed group are mixed, a record is settled only behind the one of its key before it."""
    for seed in range(30):
        rng, queue = random.Random(seed), Queue(RECORDS)
        queue.settle((0, KEYS))
        for _ in range(30):
            pairs = [(o, o - KEYS) for o in rng.sample(range(KEYS, RECORDS), 3)]
            queue.settle(in_order=pairs)
            settled = set(queue.settled)
            assert all(offset < KEYS or offset - KEYS in settled for offset in settled), f"seed {seed}"
