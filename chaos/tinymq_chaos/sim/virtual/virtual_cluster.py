"""Three brokers in virtual time, from the disk up to the partitions: all of `BrokerApp` except gRPC.

The disks are faulty, the network is in memory, and one seed is one run. Tests decide what is right.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

from tinymq.base.config import BrokerConfig, Limits, Timing
from tinymq.base.errors import TinymqError
from tinymq.base.types import METADATA_GROUP, PeerAddress
from tinymq.broker.cluster.formation import Formation
from tinymq.broker.metadata_member import MemberEnv, MetadataMember
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.serve.broker import Broker as RunningBroker
from tinymq.format.batch import check_batch
from tinymq.format.entry import crc32c
from tinymq.log.engine.store import Store
from tinymq.raft import Host, Replica, make_first_entry
from tinymq.registry.state.values import BrokerRecord, TopicRecord
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.simulation.memory_network import HOST, MemoryNetwork
from tinymq_chaos.sim.virtual.disk import SimDisk
from tinymq_chaos.sim.virtual.event_loop import ProcessTransport, SimProcess, VirtualClock, VirtualLoop, run_virtually

CLUSTER_ID = b"c" * 16
SECRET = b"a secret of the tests"
VOTERS = tuple(PeerAddress(n, HOST, n) for n in (1, 2, 3))
LIMITS = Limits(segment_bytes=16 << 10, tail_cache_bytes_max=64 << 10)


class VirtualBroker:
    """A disk that stays, and processes that come and go on it."""

    def __init__(self, cluster: VirtualCluster, broker_id: int) -> None:
        self.id = broker_id
        self.files = FaultyFiles(random.Random(f"{cluster.seed}/disk/{broker_id}"))
        self.skew_us = 0  # the error of its wall clock from the next start on
        self.failures: list[BaseException] = []  # errors that ended the broker
        self._rng = random.Random(f"{cluster.seed}/broker/{broker_id}")
        self._cluster = cluster
        self._sessions = 0
        self._process: SimProcess | None = None
        self._disk: SimDisk | None = None
        self._formation: Formation | None = None
        self._env: MemberEnv | None = None
        self._member: MetadataMember | None = None

    @property
    def process(self) -> SimProcess:
        assert self._process is not None, f"broker {self.id} is down"
        return self._process

    @property
    def formation(self) -> Formation:
        assert self._formation is not None, f"broker {self.id} is down"
        return self._formation

    @property
    def runs(self) -> bool:
        """Whether it has joined its cluster, and its power was not cut since."""
        return self._member is not None

    @property
    def member(self) -> MetadataMember:
        assert self._member is not None, f"broker {self.id} does not run"
        return self._member

    @property
    def broker(self) -> RunningBroker:
        return self.member.broker

    @property
    def host(self) -> Host:
        assert self._env is not None, f"broker {self.id} is down"
        return self._env.host

    async def start(self) -> None:
        """Start the broker as `BrokerApp` does. A broker without a cluster waits for `join`."""
        loop, cluster = self._cluster.loop, self._cluster
        self._sessions += 1
        self._process = process = SimProcess(f"broker {self.id}", self.id)
        clock = VirtualClock(loop, process, start_s=self._rng.uniform(10, 10_000))
        clock.wall_skew_us = self.skew_us
        self._disk = SimDisk(loop, process, self.files, random.Random(self._rng.random()))
        store = await process.run(
            Store.open(self.files, self._disk, clock, broker_id=self.id, limits=LIMITS, rng=self._rng)
        )
        transport = cluster.network.transport(lambda: store.identity, SECRET, self.id * 1000 + self._sessions)
        for voter in VOTERS:
            transport.set_peer(voter)
        host = Host(
            self.id,
            store,
            ProcessTransport(transport, process),
            clock=clock,
            rng=self._rng,
            limits=LIMITS,
            timing=cluster.timing,
        )
        host.on_failed = self.failures.append
        host.on_group_changed = lambda group: self._member.group_changed(group) if self._member else None
        await process.run(host.start())
        config = BrokerConfig(self.id, "data", VOTERS, SECRET, limits=LIMITS, timing=cluster.timing)
        self._env = MemberEnv(config, store, host, clock, self._rng, self._disk)
        self._formation = Formation(self.id, [v.broker_id for v in VOTERS], store, self.files, self._disk)
        if await process.run(self._formation.load()) is not None:
            await self.join()

    async def join(self) -> None:
        """Join the cluster to which the data directory belongs."""
        first, env = self.formation.first_entry, self._env
        assert first is not None
        assert env is not None
        incarnation = env.store.identity.incarnation
        record = BrokerRecord(self.id, incarnation, self._sessions, f"{HOST}:{self.id}", f"{HOST}:{self.id}")
        self._member = MetadataMember(env, record, self.failures.append)
        await self.process.run(self._member.start(first))

    def power_cut(self) -> None:
        """Cut the power: synced bytes stay, and a random part of the others."""
        self.process.kill()
        self._cluster.network.crash(self.id)
        if self._disk is not None:
            self._disk.die()
        self.files.power_cut()
        self._process = self._disk = self._formation = self._env = self._member = None

    def partition(self, topic: TopicRecord, number: int) -> Partition | None:
        return self.broker.replica_host.get(topic.topic_id, number) if self._member is not None else None


class VirtualCluster:
    """Brokers 1 to 3. A leader is a broker that may accept writes, as far as it knows."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.timing = Timing()
        self.clock = VirtualClock(loop)
        self.rng = random.Random(f"{seed}/cluster")
        self.network = MemoryNetwork(self.clock, random.Random(f"{seed}/network"), LIMITS)
        self.brokers = {n: VirtualBroker(self, n) for n in (1, 2, 3)}

    async def start(self) -> None:
        await asyncio.gather(*(b.start() for b in self.brokers.values()))

    async def form(self) -> None:
        """Form the cluster once, after the first start, as `tinymq cluster init` does."""
        replicas = [Replica(b.id, b.formation.incarnation) for b in self.brokers.values()]
        entry = make_first_entry(METADATA_GROUP, replicas, 1_000_000)
        for broker in self.brokers.values():
            await broker.process.run(broker.formation.form(CLUSTER_ID, entry.head + entry.payload))
            await broker.join()
        await self.until(lambda: all(len(b.broker.registry.get_all_brokers()) == 3 for b in self.brokers.values()))

    async def create_topic(self, name: str, partitions: int, at: int = 1) -> TopicRecord:
        broker = self.brokers[at]
        topic = await broker.process.run(broker.broker.create_topic(name, partitions, 3, 5.0))
        assert isinstance(topic, TopicRecord)
        return topic

    def leader(self, topic: TopicRecord, number: int) -> tuple[VirtualBroker, Partition] | None:
        """Return the leader of the newest term."""
        held = [(b, p) for b in self.brokers.values() if (p := b.partition(topic, number)) is not None and p.leading]
        return max(held, key=lambda pair: pair[1].group.term) if held else None

    async def produce(self, topic: TopicRecord, number: int, data: bytes, wait_s: float = 1.0) -> Produced | None:
        """Write once; return the answer when a quorum has the write. None: no answer, or an unknown outcome."""
        leader = self.leader(topic, number)
        if leader is None:
            await self.clock.sleep(0.01)
            return None
        broker, partition = leader
        answer: asyncio.Future[Produced | TinymqError] = self.loop.create_future()

        def done(outcome: Produced | TinymqError) -> None:
            if not answer.done():
                answer.set_result(outcome)

        batch, crc = check_batch(data, LIMITS), crc32c(data)
        self.clock.call_later(wait_s, lambda: done(TinymqError("no answer")))  # the process may be gone
        try:
            broker.process.do(lambda: partition.produce(batch, data, crc, Acks.QUORUM, wait_s, done))
        except TinymqError:
            await self.clock.sleep(0.01)
            return None
        outcome = await answer
        return outcome if isinstance(outcome, Produced) else None

    def power_cut(self) -> None:
        """Cut the power of all brokers at one instant."""
        for broker in self.brokers.values():
            broker.power_cut()

    async def until(self, holds: Callable[[], object], within_s: float = 10.0, what: str = "") -> None:
        end_s = self.loop.time() + within_s
        while not holds():
            failures = [f"broker {b.id}: {error!r}" for b in self.brokers.values() for error in b.failures]
            assert self.loop.time() < end_s, f"not within {within_s} s: {what or holds}; {failures}"
            await self.clock.sleep(0.002)


def simulate(scenario: Callable[[VirtualCluster], Awaitable[None]], seed: int) -> None:
    """Run a scenario on a new cluster. Raises the first error from anywhere."""

    async def main(loop: VirtualLoop) -> None:
        cluster = VirtualCluster(loop, seed)
        for a, b in ((1, 2), (1, 3), (2, 3)):
            cluster.network.delay(a, b, 0.0002, jitter_s=0.0005)
        await cluster.start()
        await cluster.form()
        await scenario(cluster)

    try:
        run_virtually(main)
    except BaseException as error:
        error.add_note(f"seed {seed}. To replay it: pytest '{os.environ.get('PYTEST_CURRENT_TEST', '').split(' ')[0]}'")
        raise
