"""Random lives of a stream group in virtual time: the coordinators, replicas and members that ship, on a model of Raft.

Three brokers share one committed log. One leads it at a time, and one that was deposed may not know it for seconds.
Calls of members are late, doubled, lost before or behind their effect. Members crash, hang, leave and come back, and
take their time with a record. The cursors are those of real partitions.

What is checked while it happens (docs/groups.md, "What must never happen"): no record is skipped, no cursor moves over
a record that nobody handled, no epoch has two sessions, and no member hands out a partition that another one reads
already. At the end, all faults are over and the group has to come to rest with one reader for each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.broker.values import Applied, makes
from tests.chaos.coordinator_world import BROKERS, CoordinatorWorld
from tests.chaos.group_consumers import ATTEMPT_S, NAME, REJOIN_S, Consumer
from tests.chaos.raft_model import COORDINATOR
from tinymq.base.errors import UnknownGroup
from tinymq.base.group_config import GroupKind
from tinymq.base.meter import Unmetered
from tinymq.broker.coordinator.coordinator import Coordinator
from tinymq.broker.groups.definition import GroupDefinition, GroupPhase
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.member_state import Ownership
from tinymq.proto import partition_pb2 as stored
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually

TOPIC = b"t" * 16
REST_S = 25.0  # for the group to come to rest once all faults are over
RECORDS = 100_000


@dataclass(frozen=True)
class Life:
    """What may happen in a life."""

    seed: int
    seconds: float = 25.0
    members: int = 3
    partitions: int = 4
    failovers: bool = True
    gap_s: tuple[float, float] = (0.2, 3.0)  # between two faults
    stale_s: float = 6.0  # at most, until a coordinator that was deposed knows it
    loses: bool = True  # calls, and answers
    disturbs_members: bool = True  # they crash, hang, leave
    static: bool = False  # members have instance ids, and come back under them
    twins: bool = False  # two live sessions of one instance id
    revoke_ms: int = 60_000
    static_return_ms: int = 6_000
    slow_handlers: bool = False
    loses_log: bool = False  # once, the coordinator forgets its newest changes

    @property
    def strict(self) -> bool:
        """Whether no partition is taken from a member that still hands it out."""
        return self.revoke_ms >= 60_000 and not self.twins and not self.static and not self.loses_log


# ---- what a coordinator knows of its cluster ----------------------------------------------------------------------


@dataclass(frozen=True)
class Queue:
    partition: int


@dataclass(frozen=True)
class Topic:
    name: str
    topic_id: bytes
    queues: Sequence[Queue]


class Cluster:
    """The registry and the groups, as a broker's coordinator reads them."""

    def __init__(self, life: Life, group: GroupDefinition) -> None:
        self.topic = Topic("orders", TOPIC, [Queue(n) for n in range(life.partitions)])
        self.known = {NAME: group}

    def watch(self, changed: Callable[[Any], None]) -> None: ...

    def watch_records(self, kind: str, changed: Callable[[], None]) -> None:
        """The record of the group does not change."""

    def get_topic(self, name: str) -> Topic:
        return Topic(name, COORDINATOR.topic_id, [Queue(0)])

    def get_all_topics(self) -> list[Topic]:
        return [self.topic]

    async def refresh(self) -> None: ...

    async def get(self, name: str) -> GroupDefinition:
        if name not in self.known:
            raise UnknownGroup(f"no group {name}")
        return self.known[name]


# ---- the world -----------------------------------------------------------------------------------------------


class World(CoordinatorWorld):
    """One life, from `run` to its end."""

    def __init__(self, life: Life, loop: VirtualLoop) -> None:
        super().__init__(life.seed, loop, loses=life.loses, stale_s=life.stale_s)
        self.life = life
        settings = {
            "rejoin_ms": int(REJOIN_S * 1000), "revoke_ms": life.revoke_ms, "static_return_ms": life.static_return_ms
        }  # fmt: skip
        texts = tuple((name, str(value)) for name, value in settings.items())
        self.group = GroupDefinition(
            NAME, GroupKind.STREAM, ("orders",), settings=texts, group_id=7, phase=GroupPhase.READY
        )
        self.cluster = Cluster(life, self.group)
        self.partitions = [Applied() for _ in range(life.partitions)]
        for partition in self.partitions:
            partition.batch(RECORDS, size=100)
            partition.run(makes(7), version=2)
        self.generations = [partition.state.cursors[NAME].generation for partition in self.partitions]
        self.handled: list[set[int]] = [set() for _ in self.partitions]
        self.checked = [0 for _ in self.partitions]  # every record before was handled
        self.sessions: dict[tuple[int, int], bytes] = {}  # by (partition, epoch)
        self.readers: dict[int, tuple[int, Consumer]] = {}  # by partition: the newest (epoch, reader)
        self.consumers: list[Consumer] = []
        self.coordinators: dict[int, Coordinator] = {}

    async def at_partition(self, number: int, command: stored.Command, by: Consumer | None = None) -> Any:
        """Have a partition carry out a command of a member, and check what it did."""

        async def serve() -> Any:
            (outcome,) = self.partitions[number].run(command, version=2)
            if outcome.error is not None:
                raise outcome.error
            self.check_cursor(number, command)
            return outcome

        return await self.call(serve, ATTEMPT_S)

    # ---- what must never happen

    def check_cursor(self, number: int, command: stored.Command) -> None:
        cursor = self.partitions[number].state.cursors[NAME]
        if command.HasField("open"):
            session = self.sessions.setdefault((number, command.open.epoch), command.open.session)
            if session != command.open.session:
                self.anomalies.append(f"rule 4: epoch {command.open.epoch:#x} of partition {number} has two sessions")
        if cursor.position < self.checked[number]:
            self.anomalies.append(f"rule 2: the cursor of partition {number} moved back to {cursor.position}")
        while self.checked[number] < cursor.position:
            if self.checked[number] not in self.handled[number]:
                self.anomalies.append(f"rule 1: record {self.checked[number]} of partition {number} was skipped")
                return
            self.checked[number] += 1

    def opened(self, consumer: Consumer, place: TopicPartition, grant: Ownership) -> None:
        self.say(f"{consumer.name} reads {place.partition} under {grant.epoch & 0xFFFFFFFF}")
        if grant.epoch >= self.readers.get(place.partition, (0, consumer))[0]:
            self.readers[place.partition] = grant.epoch, consumer

    def handed_out(self, consumer: Consumer, place: TopicPartition, grant: Ownership) -> None:
        epoch, other = self.readers.get(place.partition, (0, consumer))
        if self.life.strict and epoch > grant.epoch:
            self.anomalies.append(
                f"rule 4: {consumer.name} hands out of partition {place.partition} under {grant.epoch & 0xFFFFFFFF}, "
                f"and {other.name} reads it under {epoch & 0xFFFFFFFF}"
            )

    # ---- what happens

    def cut(self) -> None:
        """Let some members reach nobody but the broker that was their coordinator."""
        for consumer in self.consumers if self.life.loses and not self.calm else ():
            if self.rng.random() < 0.5:
                consumer.calls.cut_until_s = self.loop.time() + self.rng.uniform(1.0, 9.0)

    def join(self, name: str, instance_id: str | None = None) -> None:
        consumer = Consumer(self, name, instance_id)
        self.consumers.append(consumer)
        self.say(f"{name} joins")
        consumer.start()

    def disturb(self) -> None:
        """One fault, by chance."""
        life, rng = self.life, self.rng
        kinds = ["failover"] * life.failovers + ["crash", "hang", "leave", "join"] * life.disturbs_members
        kinds += ["twin"] * life.twins
        match rng.choice(kinds):
            case "failover":
                self.elect(rng.randint(1, BROKERS))
            case "hang" if self.running:
                some = rng.choice(self.running)
                some.process.pause()
                self.say(f"{some.name} hangs")
                self.later(rng.choice((0.5, 2.9, 4.0, 9.0)), lambda: self.resume(some))
            case "crash" | "leave" as how if len(self.running) > 1:
                self.end(rng.choice(self.running), how)
            case "twin" if self.running:
                some = rng.choice(self.running)
                self.join(f"{some.me.name}~{len(self.consumers)}", some.me.instance_id)
            case "join" if len(self.running) < life.members + 1 and not life.static:
                self.join(f"m{len(self.consumers)}")
            case _:
                pass

    @property
    def running(self) -> list[Consumer]:
        return [each for each in self.consumers if each.process.alive and each.error is None]

    def resume(self, consumer: Consumer) -> None:
        if consumer.process.alive and consumer.process.paused:
            self.say(f"{consumer.name} goes on")
            consumer.process.resume()

    def end(self, consumer: Consumer, how: str) -> None:
        self.say(f"{consumer.name}: {how}")
        if how == "crash" or consumer.process.paused:
            consumer.process.kill()
        else:
            consumer.error = UnknownGroup("it left")
            stay = consumer.me.instance_id is not None and self.rng.random() < 0.7
            consumer.process.spawn(consumer.membership.leave(stay=stay))
        if self.life.static:
            name, instance_id = f"{consumer.me.name}~{len(self.consumers)}", consumer.me.instance_id
            self.later(self.rng.choice((0.3, 2.0, 8.0)), lambda: self.join(name, instance_id))

    def begin(self) -> None:
        """Start the brokers, and let the first one lead."""
        for raft in self.rafts:
            cluster: Any = self.cluster
            own = {(COORDINATOR.topic_id, 0): raft.machine}
            coordinator = Coordinator(cluster, cluster, lambda own=own: own, self.clock, Unmetered())  # type: ignore[misc]
            raft.machine.on_role, raft.machine.on_change = coordinator.on_role, coordinator.on_change
            self.coordinators[raft.number] = coordinator
            coordinator.start()
        self.elect(1)

    async def run(self) -> None:
        life, rng = self.life, self.rng
        self.begin()
        for number in range(life.members):
            name = f"m{number}"
            self.later(rng.uniform(0.0, 2.0), lambda name=name: self.join(name, name if life.static else None))  # type: ignore[misc]
        lost = not life.loses_log
        while self.loop.time() < life.seconds and not self.anomalies:
            await self.clock.sleep(rng.uniform(*life.gap_s))
            if self.loop.time() > 3.0:
                self.disturb()
            if not lost and self.loop.time() > life.seconds / 2:
                self.lose_log()
                lost = True
        self.calm = True
        for consumer in self.consumers:
            consumer.calls.cut_until_s = 0.0
            self.resume(consumer)
        until_s = self.loop.time() + REST_S
        while self.loop.time() < until_s and not self.anomalies:
            await self.clock.sleep(0.5)
        if not self.anomalies:
            self.check_rest()
        await self.end_brokers()

    async def end_brokers(self) -> None:
        for coordinator in self.coordinators.values():
            await coordinator.stop()

    def check_rest(self) -> None:
        """All partitions are read, by one live member each, evenly, and the coordinator knows it."""
        state = self.rafts[self.ruler - 1].machine.groups.get(NAME)
        members = {each.me.name: each for each in self.running}
        listed = set(state.members) if state is not None else set()
        if listed != set(members):
            self.anomalies.append(f"stall: the members are {sorted(members)}, and the coordinator has {sorted(listed)}")
            return
        counts = []
        for name, member in members.items():
            grants = {place.partition: grant.epoch for place, (grant, _) in member.reading.items()}
            given = {place.partition: at.epoch for place, at in (state.of(name) if state is not None else {}).items()}
            counts.append(len(grants))
            if grants != given or not member.membership.alive:
                self.anomalies.append(f"stall: {name} reads {grants}, and the coordinator gave it {given}")
        if members and (sum(counts) != self.life.partitions or max(counts) - min(counts) > 1):
            self.anomalies.append(f"stall: {counts} of {self.life.partitions} partitions are read")


def live(life: Life) -> World:
    """Run one life to its end."""

    async def main(loop: VirtualLoop) -> World:
        world = World(life, loop)
        await world.run()
        return world

    return run_virtually(main)
