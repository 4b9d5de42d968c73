"""Random lives of transactions in virtual time: the decisions that ship, on a model of Raft.

Owners send batches to several partitions and commit, roll back, or go away. Each transactional id is registered again
and again, also while another owner works. Coordinators and leaders of partitions are replaced at any moment, and the
calls between all of them are late, doubled and lost.

What is checked: no batch is visible twice, or out of a transaction that was not committed; transactions of one producer
become visible in their order; no decision is undone; and at rest every committed transaction is visible as a whole,
nothing is staged, and nothing is unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.chaos.coordinator_world import BROKERS, CoordinatorWorld
from tests.chaos.raft_model import COORDINATOR
from tests.chaos.transaction_partition import PartitionModel
from tinymq.base.errors import Fenced, OutcomeUnknown, TinymqError, TransactionAborted, Unavailable
from tinymq.base.meter import Unmetered
from tinymq.base.topic_config import TopicConfig
from tinymq.base.types import GroupId, PartitionId
from tinymq.broker.coordinator.peer_transaction_calls import PeerTransactionCalls
from tinymq.broker.coordinator.transaction_coordinator import RegisteredOwner, TransactionCoordinator
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.transactions.transactional_id import Phase
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually

TOPIC = b"t" * 16
CALL_S = 1.5  # deadline of one call
REST_S = 20.0
TIMEOUT_US = 4_000_000


@dataclass(frozen=True)
class TransactionLife:
    """What may happen in a life."""

    seed: int
    seconds: float = 30.0
    ids: int = 2
    partitions: int = 3
    twins: bool = True  # two programs use one transactional id
    coordinators_fail: bool = True
    leaders_fail: bool = True


class Registry:
    """The registry as a coordinator reads it, and the producer ids of its broker."""

    def __init__(self, partitions: int) -> None:
        queues = [SimpleNamespace(partition=number) for number in range(partitions)]
        self.topic = SimpleNamespace(topic_id=TOPIC, queues=queues, config=TopicConfig())
        self.coordinators = SimpleNamespace(topic_id=COORDINATOR.topic_id, queues=[SimpleNamespace(partition=0)])
        self.taken = 0

    def get_topic(self, name: str) -> Any:
        return self.coordinators

    def get_topic_by_id(self, topic_id: bytes) -> Any:
        return self.topic if topic_id == TOPIC else None

    async def refresh(self, timeout_s: float) -> None: ...

    async def take_producer_ids(self, count: int) -> range:
        self.taken += count
        return range(self.taken + 1 - count, self.taken + 1)

    async def take(self) -> int:
        self.taken += 1
        return self.taken


class TransactionWorld(CoordinatorWorld):
    """One life, from `run` to its end."""

    def __init__(self, life: TransactionLife, loop: VirtualLoop) -> None:
        super().__init__(life.seed, loop, loses=True, stale_s=4.0)
        self.life = life
        self.registry = Registry(life.partitions)
        self.partitions = {
            PartitionId(TOPIC, n): PartitionModel(self, PartitionId(TOPIC, n)) for n in range(life.partitions)
        }
        self.coordinators: dict[int, TransactionCoordinator] = {}
        self.decided: dict[TransactionId, Phase] = {}  # as committed in the coordinator's log
        self.sent: dict[TransactionId, set[tuple[PartitionId, StagedBatch]]] = {}  # acknowledged batches of commits
        self.told: list[tuple[TransactionId, Phase]] = []
        self.over = False
        self.commits = 0
        self.peers = {raft.number: BrokerPeers(self) for raft in self.rafts}
        self.calls = {number: PeerTransactionCalls(peers, self.partitions.get) for number, peers in self.peers.items()}
        for raft in self.rafts:
            registry: Any = self.registry
            own, calls = {(COORDINATOR.topic_id, 0): raft.machine}, self.calls[raft.number]
            coordinator = TransactionCoordinator(registry, partial(dict, own), registry, calls, self.clock, Unmetered())
            calls.attach(coordinator)
            raft.machine.on_role, raft.machine.on_decided = coordinator.on_role, self._decided(coordinator)
            self.coordinators[raft.number] = coordinator

    def _decided(self, coordinator: TransactionCoordinator) -> Any:
        def on_decided(replica: Any, name: str) -> None:
            state = replica.transactional_ids.states.get(name)
            if state is not None and state.outcome is not None:
                transaction, phase = state.outcome.transaction, state.outcome.phase
                if self.decided.setdefault(transaction, phase) is not phase:
                    self.anomalies.append(f"the decision on {transaction} was undone")
            coordinator.on_decided(replica, name)

        return on_decided

    # ---- calls

    async def ask_coordinator(self, transaction: TransactionId, place: PartitionId) -> Standing:
        """A partition's question to the broker that it believes to lead. Raises TinymqError without an answer."""
        calls = self.calls[1 + place.partition % BROKERS]
        (standing,) = await calls.standings(COORDINATOR, [(transaction, place, 0)])
        return standing

    async def at_coordinator(self, method: str, *arguments: Any) -> Any:
        """A call of an owner, repeated until it is answered."""
        while True:
            broker = self.believed_leader()
            try:
                coordinator = self.coordinators[broker]
                return await self.call(partial(getattr(coordinator, method), *arguments), CALL_S)
            except (Unavailable, OutcomeUnknown):
                if self.over:
                    raise
                await self.clock.sleep(0.1)

    # ---- checks

    def published(self, partition: PartitionModel, transaction: TransactionId) -> None:
        visible = partition.visible
        if len(set(visible)) != len(visible):
            self.anomalies.append(f"a batch of {transaction} is visible twice")
        if self.decided.get(transaction) is not Phase.COMMITTED:
            self.anomalies.append(f"{transaction} is visible, and was not committed")
        of_producer = [each.transaction for each in visible if each.transaction.producer_id == transaction.producer_id]
        if of_producer != sorted(of_producer):
            self.anomalies.append(f"{transaction} is visible in another order")

    def check_rest(self) -> None:
        for transaction, phase in self.told:
            if self.decided.get(transaction) is not phase:
                self.anomalies.append(f"an owner was told that {transaction} is {phase.value}")
        for transaction, batches in self.sent.items():
            if self.decided.get(transaction) is Phase.COMMITTED:
                missing = [batch for place, batch in batches if batch not in self.partitions[place].visible]
                if missing:
                    self.anomalies.append(f"{transaction} is committed, and {missing} are not visible")
        for partition in self.partitions.values():
            if len(partition.staged):
                self.anomalies.append(f"staged for ever: {list(partition.staged)}")
        ids = self.rafts[self.ruler - 1].machine.transactional_ids
        if list(ids.unfinished):
            self.anomalies.append(f"never over: {[ids.states[name] for name in ids.unfinished]}")

    # ---- what happens

    async def own(self, name: str, writer: int) -> None:
        """A program that uses a transactional id, until the life is over."""
        rng, owner = self.rng, None
        while not self.calm:
            await self.clock.sleep(rng.uniform(0.0, 1.5))
            try:
                if owner is None or rng.random() < 0.1:
                    owner = await self.at_coordinator("register", name)
                await self._transact(name, owner, writer)
            except Fenced:
                owner = None
                await self.clock.sleep(rng.uniform(1.0, 5.0))
            except TinymqError as error:
                self.say(f"{name}: {error.code}: {error.message}")

    async def _transact(self, name: str, owner: RegisteredOwner, writer: int) -> None:
        rng = self.rng
        transaction: TransactionId = await self.at_coordinator("begin", name, owner, TIMEOUT_US)
        places = rng.sample(sorted(self.partitions), rng.randint(1, len(self.partitions)))
        await self.at_coordinator("add", name, transaction, places)
        counts, staged = dict.fromkeys(places, 0), set()
        for place in rng.choices(places, k=rng.randint(1, 5)):
            batch = StagedBatch(transaction, writer, counts[place])
            await self._stage(place, batch)
            counts[place] += 1
            staged.add((place, batch))
        self.sent[transaction] = staged
        match rng.choice(["commit", "commit", "commit", "abort", "leave"]):
            case "commit":
                await self._commit(name, transaction, counts)
            case "abort":
                await self.at_coordinator("abort", name, transaction)
                self.told.append((transaction, Phase.ABORTED))
            case _:
                await self.clock.sleep(rng.uniform(0.0, 6.0))

    async def _stage(self, place: PartitionId, batch: StagedBatch) -> None:
        for _ in range(20):
            try:
                return await self.call(lambda: self.partitions[place].stage(batch), CALL_S)
            except (Unavailable, OutcomeUnknown):
                await self.clock.sleep(0.1)
        raise OutcomeUnknown("the partition does not answer")

    async def _commit(self, name: str, transaction: TransactionId, counts: Mapping[PartitionId, int]) -> None:
        try:
            await self.at_coordinator("commit", name, transaction, counts, 1.0)
        except TransactionAborted:
            self.told.append((transaction, Phase.ABORTED))
            raise
        self.told.append((transaction, Phase.COMMITTED))
        self.commits += 1
        if await self.at_coordinator("wait_over", name, transaction, 1.0):
            missing = [b for p, b in self.sent[transaction] if b not in self.partitions[p].visible]
            if missing:
                self.anomalies.append(f"{transaction} is called visible, and {missing} are not")

    async def run(self) -> None:
        life, rng = self.life, self.rng
        for coordinator in self.coordinators.values():
            coordinator.start()
        self.elect(1)
        for partition in self.partitions.values():
            partition.elect()
        tasks = []
        for number in range(life.ids):
            twins = 1 + (life.twins and number == 0)
            tasks += [asyncio.ensure_future(self.own(f"id-{number}", writer)) for writer in range(twins)]
        while self.loop.time() < life.seconds and not self.anomalies:
            await self.clock.sleep(rng.uniform(0.2, 3.0))
            if life.coordinators_fail and rng.random() < 0.5:
                self.elect(rng.randint(1, BROKERS))
            if life.leaders_fail and rng.random() < 0.5:
                rng.choice(list(self.partitions.values())).elect()
        self.calm = True
        until_s = self.loop.time() + REST_S
        while self.loop.time() < until_s and not self.anomalies:
            await self.clock.sleep(0.5)
        if not self.anomalies:
            self.check_rest()
        self.over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition in self.partitions.values():
            partition.stop()
        for coordinator in self.coordinators.values():
            await coordinator.stop()


class BrokerPeers:
    """The other brokers, as one broker reaches them (tinymq.broker.groups.groups.Peers)."""

    def __init__(self, world: TransactionWorld) -> None:
        self._world = world
        self.answer: Callable[[bytes], Awaitable[bytes]]

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None:
        if group_id == COORDINATOR:
            return self._world.believed_leader(), 1
        return 1 + group_id.partition % BROKERS, 1

    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.answer = answer

    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        peers = self._world.peers[broker_id]
        reply: bytes = await self._world.call(lambda: peers.answer(body), min(timeout_s, CALL_S))
        return reply


def live(life: TransactionLife) -> TransactionWorld:
    """Run one life to its end."""

    async def main(loop: VirtualLoop) -> TransactionWorld:
        world = TransactionWorld(life, loop)
        await world.run()
        return world

    return run_virtually(main)
