"""A world: the brokers, the clients and the network between them that one seed makes.

observations.py records what happens in it. Nothing here chooses a fault (../faults) or judges a run (../../checkers).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from tinymq.base.config import KIB, BrokerConfig, Limits, Timing
from tinymq.base.types import METADATA_GROUP, GroupId, PeerAddress
from tinymq.client import AsyncClient
from tinymq.client.facade.async_client import client_of
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Replica, Role, make_first_entry
from tinymq.rpc.common.proof import NONCE_BYTES, describe_proof, form_proof
from tinymq.simulation.link_conditions import Direction, NetworkConditions
from tinymq.simulation.memory_network import HOST, MemoryNetwork
from tinymq_chaos.checkers.cluster.ledger import Ledger
from tinymq_chaos.history import History
from tinymq_chaos.sim.network.client_network import ClientNetwork
from tinymq_chaos.sim.network.links import AnyBroker, MemoryConnector, client_connector
from tinymq_chaos.sim.network.stream_ports import STREAM_PORTS, StreamConnector
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop
from tinymq_chaos.sim.virtual.transcript import Transcript
from tinymq_chaos.sim.virtual.user_threads import UserThreads
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.observations import Observations
from tinymq_chaos.sim.world.sync_clients import SimClient
from tinymq_chaos.workloads.clients.threaded_client import ThreadedClient

TWINS = 50_000  # numbers of machines on which second brokers of an id run
STREAMS = 0.75  # share of brokers with a stream port; clients use gRPC with the others
LINK_S = (0.0002, 0.0005)  # delay and jitter, without faults
SEGMENT_BYTES = (4 * KIB, 16 * KIB, 64 * KIB)  # small: a run writes some hundred records
TAIL_SEGMENTS = (0.5, 1, 4)  # of all groups of a broker together: replicas further behind get entries from the disk
INFLIGHT_BYTES = 32 * KIB  # as small as segments: otherwise no follower would ever be too slow
POLL_S = 0.02
RETENTION_CHECK_S = 1.0  # a run is short
VOTERS, JOINING = 3, 0.5  # this share of the worlds with more brokers has three voters, which the others join
VOTERS_MAX = 5  # an even number of brokers has one voter less


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """The options of a world."""

    nodes: int = 3
    segment_bytes: int | None = None  # None: the seed chooses
    latency_s: float = LINK_S[0]  # of every link
    joining: bool | None = None  # whether there are only VOTERS voters; None: the seed chooses
    registry: str = "replicated"  # or "memory", for one broker alone
    replicas: int | None = None  # of each partition; None: one on each broker, at most three
    threaded: float = 0.0  # share of the clients that are synchronous, on threads
    client_bytes_per_s: int = 0  # each client's quota for writes, and for reads; 0: none


class World:
    """Brokers 1 to `nodes`. Make it inside the running loop."""

    def __init__(self, loop: VirtualLoop, seed: int, like: WorldOptions, transcript: Transcript) -> None:
        self.loop = loop
        self.seed = seed
        self.rng = random.Random(f"{seed}/world")
        self.secret = self.rng.randbytes(32)
        chosen = self.rng.choice(SEGMENT_BYTES)
        segment_bytes = like.segment_bytes if like.segment_bytes is not None else chosen
        share = random.Random(f"{seed}/tails").choice(TAIL_SEGMENTS)
        self.limits = Limits(
            segment_bytes=segment_bytes, tail_cache_bytes_max=int(share * segment_bytes),
            inflight_bytes_max=INFLIGHT_BYTES, client_produce_bytes_per_s=like.client_bytes_per_s,
            client_fetch_bytes_per_s=like.client_bytes_per_s,
        )  # fmt: skip
        self.timing = Timing(retention_check_s=RETENTION_CHECK_S)
        self.clock = VirtualClock(loop)
        self.transcript = transcript
        self.conditions = NetworkConditions(self.clock, random.Random(f"{seed}/weather"))
        network_rng = random.Random(f"{seed}/network")
        self.network = MemoryNetwork(self.clock, network_rng, self.limits, self.conditions)
        self.clients = ClientNetwork(loop, self.conditions, random.Random(f"{seed}/pieces"))
        self.link_s = (like.latency_s, LINK_S[1])
        self.history = History(self.clock.monotonic)
        self.history.link_s = like.latency_s
        self.history.brokers = {n: f"{HOST}:{n}" for n in range(1, like.nodes + 1)}
        self.ledger = Ledger(self.clock.monotonic)
        self.faults: Counter[str] = Counter()  # how many faults of each kind began
        self.over = False  # no broker starts any more
        self.damages = False  # faults of this run take synced bytes
        self.brokers = {n: SimBroker(self, n) for n in range(1, like.nodes + 1)}
        self.machines = dict(self.brokers)  # by number: with those of second brokers of an id
        self.seen = Observations(self.brokers, self.network, self.history, self.ledger)
        joining = random.Random(f"{seed}/joining").random() < JOINING if like.joining is None else like.joining
        most = min(VOTERS_MAX, like.nodes - (1 - like.nodes % 2))
        self.voters = [*self.brokers][: min(VOTERS, most) if joining else most]
        self.replication_factor = like.replicas if like.replicas is not None else min(like.nodes, 3)
        self.registry = like.registry
        self.threads = UserThreads(loop, random.Random(f"{seed}/threads"))
        self._threaded = like.threaded
        self._opened: list[Any] = []
        self._cuts: dict[object, frozenset[Direction]] = {}  # by the name of the fault, or the paused process
        self._pauses: dict[SimProcess, set[str]] = {}  # the faults that pause a process

    def say(self, line: str) -> None:
        self.transcript.add(self.loop.time(), line)

    def changed(self, what: str) -> None:
        """Report that a fault began or ended, or that a broker started."""
        self.say(what)
        self.history.changed(what, [b.id for b in self.brokers.values() if b.up and b.process.paused])

    # ---- brokers and clients --------------------------------------------------------------------------

    def config(self, broker_id: int, number: int | None = None) -> BrokerConfig:
        """Return the configuration of a broker. `number`: of its machine, if that is not the broker's own."""
        number = broker_id if number is None else number
        voters = tuple(PeerAddress(n, HOST, n) for n in self.voters)
        at, joins = f"{HOST}:{number}", broker_id not in self.voters
        streams = random.Random(f"{self.seed}/stream ports/{broker_id}").random() < STREAMS
        join = tuple(f"{HOST}:{voter.port}" for voter in voters) if joins else ()
        return BrokerConfig(
            broker_id, "data", () if joins else voters, self.secret, listen=at, peer_listen=at,
            stream_listen=f"{HOST}:{STREAM_PORTS + number}" if streams else "", limits=self.limits,
            timing=self.timing, registry=self.registry, join=join,
        )  # fmt: skip

    async def form(self) -> None:
        """Start every broker, and form the cluster of the voters as `tinymq cluster init` does.

        The others join by themselves.
        """
        for broker_id in self.brokers:
            self.links(broker_id, *self.link_s)
            self.brokers[broker_id].start()
        await self.until(lambda: all(b.running or b.app._ports for b in self.brokers.values()), 10.0, "brokers listen")
        await self.clock.sleep(0.05)
        replicas = []
        voters = [self.brokers[n] for n in self.voters]
        for broker in voters:
            nonce = self.rng.randbytes(NONCE_BYTES)
            ask = pb.DescribeSelfRequest(nonce=nonce, proof=describe_proof(self.secret, nonce))
            described = await self._admin(broker, "DescribeSelf", ask)
            replicas.append(Replica(broker.id, described.incarnation))
        entry = make_first_entry(METADATA_GROUP, replicas, self.clock.wall_us())
        cluster_id, packed = self.rng.randbytes(16), entry.head + entry.payload
        for broker in voters:
            nonce = self.rng.randbytes(NONCE_BYTES)
            proof = form_proof(self.secret, nonce, cluster_id, packed)
            form = pb.FormRequest(cluster_id=cluster_id, first_entry=packed, nonce=nonce, proof=proof)
            formed = await self._admin(broker, "Form", form)
            assert not formed.HasField("error"), formed.error
        await self.healthy(20.0)

    async def _admin(self, broker: SimBroker, method: str, request: Any) -> Any:
        ports = broker.app._ports
        assert ports is not None
        return await broker.process.run(ports.server.servicer(f"tinymq.v1.Admin/{method}")(request, None))  # type: ignore[attr-defined]

    def add_broker(self) -> SimBroker:
        """Add a machine whose broker joins the voters when it starts."""
        broker_id = max(self.brokers) + 1
        broker = self.brokers[broker_id] = self.machines[broker_id] = SimBroker(self, broker_id)
        self.history.brokers[broker_id] = f"{HOST}:{broker_id}"
        self.links(broker_id, *self.link_s)
        for client in self.clients.clients:
            self._link(client, broker_id)
        return broker

    def add_twin(self, broker: SimBroker) -> SimBroker:
        """Add a machine for a second process with the id of `broker`. The caller gives it a disk, and starts it."""
        assert broker.twin is None, broker.id
        broker.twin = twin = SimBroker(self, broker.id, TWINS + len(self.machines))
        self.machines[twin.number] = twin
        for other in self.brokers:
            if other != broker.id:
                self.network.delay(twin.number, other, *self.link_s)
        return twin

    def client(self, rng: random.Random, **settings: Any) -> AsyncClient:
        """Return a new client with a place of its own in the network. It may be a ThreadedClient."""
        servers, clock = [f"{HOST}:{n}" for n in self.brokers], VirtualClock(self.loop)

        def make() -> ClientCore:
            connector = StreamConnector(self.clients, self.connector(), self.limits, clock, self.threads)
            return ClientCore(servers, connector=connector, clock=clock, rng=rng, **settings)

        number = len(self._opened) + 1
        threaded = random.Random(f"{self.seed}/threaded/{number}").random() < self._threaded
        client: Any
        if threaded:
            client = ThreadedClient(SimClient(servers, make, self.threads, **settings), make, self.threads.run)
        else:
            client = client_of(make())
        self._opened.append(client)
        return cast(AsyncClient, client)

    def caller(self, rng: random.Random) -> AnyBroker:
        """Return a caller without tinymq's client, with a place of its own in the network."""
        connector = self.connector()
        return AnyBroker([connector.link(f"{HOST}:{n}") for n in self.brokers], rng)

    def connector(self) -> MemoryConnector:
        """Return a place in the network for calls without tinymq's client."""
        connector = client_connector(self.clients)
        for broker_id in self.brokers:
            self._link(connector.number, broker_id)
        return connector

    def _link(self, client: int, broker_id: int) -> None:
        for direction in ((client, broker_id), (broker_id, client)):
            conditions = self.conditions.of(direction)
            conditions.seconds, conditions.jitter_s = self.link_s

    async def close_clients(self) -> None:
        for client in self._opened:
            await client.close()

    # ---- links ---------------------------------------------------------------------------------------

    def links(self, broker_id: int, seconds: float, jitter_s: float) -> None:
        """Set how long messages between this broker and the others take."""
        for other in self.brokers:
            if other != broker_id:
                self.network.delay(broker_id, other, seconds, jitter_s)

    def cut(self, why: object, directions: Iterable[Direction]) -> None:
        """Cut these directions until `mend(why)`."""
        self._cuts[why] = frozenset(directions)
        self.conditions.cut(self._cuts[why])

    def mend(self, why: object) -> None:
        if self._cuts.pop(why, None) is not None:
            self.conditions.heal()
            for directions in self._cuts.values():
                self.conditions.cut(directions)
            self.network.healed()
            self.clients.healed()

    def pause(self, broker: SimBroker, why: str = "pause") -> None:
        """SIGSTOP: the broker's process does nothing, and messages to it wait in buffers.

        `why` names the fault. The process goes on when each fault that paused it has resumed it.
        """
        process = broker.process
        whys = self._pauses.setdefault(process, set())
        if not whys:
            process.pause()
            others = [*self.brokers, *self.clients.clients]
            self.cut(process, [(n, broker.id) for n in others if n != broker.id])
        whys.add(why)

    def resume(self, process: SimProcess, why: str = "pause") -> None:
        """SIGCONT, by the fault `why`. It changes nothing for another process of the broker."""
        whys = self._pauses.get(process, set())
        whys.discard(why)
        if not whys:
            self.wake(process)

    def wake(self, process: SimProcess) -> None:
        """SIGCONT whatever paused the process: before it ends."""
        if self._pauses.pop(process, None) is not None:
            self.mend(process)
            process.resume()

    # ---- health --------------------------------------------------------------------------------------

    def unhealthy(self) -> str:
        """Return how the brokers differ from healthy ones; "" when all is well."""
        for broker in self.brokers.values():
            if bad := broker.unhealthy():
                return bad
        commits: dict[GroupId, set[int]] = {}
        for broker in self.brokers.values():
            for group in broker.groups():
                commits.setdefault(group.id, set()).add(group.applied_index)
        behind = next((g for g, at in commits.items() if max(at) - min(at) > 50), None)
        return f"{behind} is applied up to {sorted(commits[behind])}" if behind is not None else ""

    def leader(self, group: GroupId) -> SimBroker | None:
        """Return the broker that believes it leads, in the newest term."""
        led = [
            (g.term, b.id) for b in self.brokers.values() for g in b.groups() if g.id == group and g.role is Role.LEADER
        ]
        return self.brokers[max(led)[1]] if led else None

    async def healthy(self, within_s: float) -> str:
        """Wait until all is well; return what is not, after `within_s`."""
        end_s = self.loop.time() + within_s
        while (bad := self.unhealthy()) and self.loop.time() < end_s:
            await self.clock.sleep(POLL_S)
        return bad

    async def at_rest(self, within_s: float) -> str:
        """Wait until all replicas of each group have applied the same entries: nothing is written any more.

        Return how they differ, after `within_s`.
        """
        end_s = self.loop.time() + within_s
        while (bad := self._apart()) and self.loop.time() < end_s:
            await self.clock.sleep(POLL_S)
        return bad

    def _apart(self) -> str:
        applied: dict[GroupId, set[int]] = {}
        for broker in self.brokers.values():
            for group in broker.groups():
                applied.setdefault(group.id, set()).add(group.applied_index)
        apart = next((group for group, at in applied.items() if len(at) > 1), None)
        return f"at rest, {apart} is applied up to {sorted(applied[apart])}" if apart is not None else ""

    async def until(self, holds: Callable[[], object], within_s: float, what: str) -> None:
        end_s = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < end_s, f"not within {within_s} s: {what}"
            await asyncio.sleep(POLL_S)
