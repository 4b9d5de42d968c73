"""Everything that one seed makes: brokers, clients, the network between them, and what was seen of it.

Nothing here chooses a fault or judges what happened: see faults.py and ../checkers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinymq.client import AsyncClient
from tinymq.config import KIB, BrokerConfig, Limits, Timing
from tinymq.entry import Entry, Kind
from tinymq.errors import CorruptData, TinymqError
from tinymq.log.log_config import DISK, LogConfig
from tinymq.proto import peer_pb2
from tinymq.proto import tinymq_pb2 as pb
from tinymq.raft import Replica, Role, make_first_entry
from tinymq.raft.reviving import comes_back
from tinymq.rpc.proof import NONCE_BYTES, describe_proof, form_proof
from tinymq.testing.memory_network import HOST, MemoryNetwork
from tinymq.testing.weather import Direction, Weather
from tinymq.types import METADATA_GROUP, GroupId, PeerAddress
from tinymq_chaos.checkers.collect import Collector
from tinymq_chaos.checkers.ledger import Ledger
from tinymq_chaos.history import METADATA, History, Log
from tinymq_chaos.history import Replica as SeenReplica
from tinymq_chaos.sim.brokers import SimBroker
from tinymq_chaos.sim.links import AnyBroker, MemoryConnector
from tinymq_chaos.sim.servers import ClientNetwork
from tinymq_chaos.sim.transcript import Transcript
from tinymq_chaos.sim.virtual import Killed, Process, VirtualClock, VirtualLoop, running_process

LINK_S = (0.0002, 0.0005)  # delay and jitter, if nothing is wrong
SEGMENT_BYTES = (4 * KIB, 16 * KIB, 64 * KIB)  # small: a run writes some hundred records
INFLIGHT_BYTES = 32 * KIB  # as small as segments are: else no follower would ever be too slow
POLL_S = 0.02
RETENTION_CHECK_S = 1.0  # a run is short
VOTERS, JOINING = 3, 0.5  # of worlds with more brokers, so many have three voters, whom the others join


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a world is made like."""

    nodes: int = 3
    segment_bytes: int | None = None  # None: the seed's choice
    latency_s: float = LINK_S[0]  # of every link
    joining: bool | None = None  # are there only VOTERS voters; None: the seed's choice
    registry: str = "replicated"  # or "memory", of one broker alone


class World:
    """Brokers 1 to `nodes`. Must be made inside the running loop."""

    def __init__(self, loop: VirtualLoop, seed: int, like: Surroundings, transcript: Transcript) -> None:
        self.loop = loop
        self.seed = seed
        self.rng = random.Random(f"{seed}/world")
        self.secret = self.rng.randbytes(32)
        chosen = self.rng.choice(SEGMENT_BYTES)
        segment_bytes = like.segment_bytes if like.segment_bytes is not None else chosen
        self.limits = Limits(
            segment_bytes=segment_bytes, tail_cache_bytes_max=segment_bytes // 2, inflight_bytes_max=INFLIGHT_BYTES
        )
        self.timing = Timing(retention_check_s=RETENTION_CHECK_S)
        self.clock = VirtualClock(loop)
        self.transcript = transcript
        self.weather = Weather(self.clock, random.Random(f"{seed}/weather"))
        network_rng = random.Random(f"{seed}/network")
        self.network = MemoryNetwork(self.clock, network_rng, self.limits, self.weather)
        self.clients = ClientNetwork(loop, self.weather)
        self.link_s = (like.latency_s, LINK_S[1])
        self.history = History(self.clock.monotonic)
        self.history.link_s = like.latency_s
        self.ledger = Ledger(self.clock.monotonic)
        self.faults: Counter[str] = Counter()  # how many of each kind began
        self.over = False  # nobody is started any more
        self.brokers = {n: SimBroker(self, n) for n in range(1, like.nodes + 1)}
        joining = random.Random(f"{seed}/joining").random() < JOINING if like.joining is None else like.joining
        self.voters = [*self.brokers][:VOTERS] if joining else [*self.brokers]
        self.replication_factor = like.nodes if like.nodes <= 3 else self.rng.choice((3, 5))
        self.registry = like.registry
        self._opened: list[AsyncClient] = []
        self._cuts: dict[str, frozenset[Direction]] = {}  # by who wants them
        self._deleted: set[GroupId] = set()
        self._revived: set[GroupId] = set()
        self._weak: set[GroupId] = set()  # in memory, or synced at intervals
        self._names: dict[GroupId, Log] = {METADATA_GROUP: METADATA}

    def say(self, line: str) -> None:
        self.transcript.add(self.loop.time(), line)

    def changed(self, what: str) -> None:
        """A fault began or ended, or a broker started: said, and known to the history."""
        self.say(what)
        self.history.changed(what, [b.id for b in self.brokers.values() if b.up and b.process.paused])

    # ---- what it is made of --------------------------------------------------------------------------

    def config(self, broker_id: int) -> BrokerConfig:
        voters = tuple(PeerAddress(n, HOST, n) for n in self.voters)
        at, joins = f"{HOST}:{broker_id}", broker_id not in self.voters
        join = tuple(f"{HOST}:{voter.port}" for voter in voters) if joins else ()
        return BrokerConfig(
            broker_id, "data", () if joins else voters, self.secret, listen=at, peer_listen=at, limits=self.limits,
            timing=self.timing, registry=self.registry, join=join,
        )  # fmt: skip

    async def form(self) -> None:
        """Start every broker, and do what `tinymq cluster init` does with the voters: the others join by themselves."""
        for broker_id in self.brokers:
            self.links(broker_id, *self.link_s)
            self.brokers[broker_id].start()
        await self.until(lambda: all(b.running or b.app._server for b in self.brokers.values()), 10.0, "brokers listen")
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
        server = broker.app._server
        assert server is not None
        return await broker.process.run(server.servicer(f"tinymq.v1.Admin/{method}")(request, None))  # type: ignore[attr-defined]

    def add_broker(self) -> SimBroker:
        """One more machine, whose broker joins the voters once it is started."""
        broker_id = max(self.brokers) + 1
        broker = self.brokers[broker_id] = SimBroker(self, broker_id)
        self.links(broker_id, *self.link_s)
        for client in self.clients.clients:
            self._link(client, broker_id)
        return broker

    def client(self, rng: random.Random, **settings: Any) -> AsyncClient:
        """A new client with a place of its own in the network."""
        servers, connector = [f"{HOST}:{n}" for n in self.brokers], self._connector()
        client = AsyncClient(servers, connector=connector, clock=VirtualClock(self.loop), rng=rng, **settings)
        self._opened.append(client)
        return client

    def caller(self, rng: random.Random) -> AnyBroker:
        """Who has no client of ours, with a place of its own in the network."""
        connector = self._connector()
        return AnyBroker([connector.link(f"{HOST}:{n}") for n in self.brokers], rng)

    def _connector(self) -> MemoryConnector:
        connector = self.clients.connector()
        for broker_id in self.brokers:
            self._link(connector.number, broker_id)
        return connector

    def _link(self, client: int, broker_id: int) -> None:
        for direction in ((client, broker_id), (broker_id, client)):
            conditions = self.weather.of(direction)
            conditions.seconds, conditions.jitter_s = self.link_s

    async def close_clients(self) -> None:
        for client in self._opened:
            await client.close()

    # ---- links ---------------------------------------------------------------------------------------

    def links(self, broker_id: int, seconds: float, jitter_s: float) -> None:
        """How long messages take between this broker and the others."""
        for other in self.brokers:
            if other != broker_id:
                self.network.delay(broker_id, other, seconds, jitter_s)

    def cut(self, why: str, directions: Iterable[Direction]) -> None:
        """Cut these until `mend(why)`."""
        self._cuts[why] = frozenset(directions)
        self.weather.cut(self._cuts[why])

    def mend(self, why: str) -> None:
        if self._cuts.pop(why, None) is not None:
            self.weather.heal()
            for directions in self._cuts.values():
                self.weather.cut(directions)
            self.network.healed()
            self.clients.healed()

    def pause(self, broker: SimBroker) -> None:
        """SIGSTOP: it does nothing, and what it is sent waits in buffers."""
        broker.process.pause()
        others = [*self.brokers, *self.clients.clients]
        self.cut(f"pause {broker.id}", [(n, broker.id) for n in others if n != broker.id])

    def resume(self, broker: SimBroker, process: Process) -> None:
        """SIGCONT, if it is the same process still."""
        self.mend(f"pause {broker.id}")
        process.resume()

    # ---- what is seen --------------------------------------------------------------------------------

    def log_of(self, group: GroupId) -> Log:
        """A group as histories name it."""
        known = self._names.get(group)
        if known is None:
            for broker in self.brokers.values():
                serving = broker._app.serving.broker if broker._app is not None else None
                topic = serving.registry.get_topic_by_id(group.topic_id) if serving is not None else None
                if topic is not None:
                    known = self._names[group] = (f"{topic.name}#{group.topic_id.hex()}", group.partition)
                    return known
            return f"?#{group.topic_id.hex()}", group.partition
        return known

    def leads(self, broker_id: int, group: GroupId, term: int | None) -> None:
        """A replica's role is another: it leads in this term, or not (None)."""
        log = self.log_of(group)
        if term is None:
            self.history.leads_no_more(broker_id, log)
        elif group not in self._deleted:
            self.history.led(log, term, broker_id)
            self.ledger.led(log, broker_id, term)
            self.network.tell_again(broker_id, partial(_is_ack_of_earlier_term, group, term))

    def applied(self, group: GroupId, entry: Entry) -> None:
        """A replica, in whose process this is called, has applied an entry."""
        process = running_process()
        if process is not None and group not in self._deleted:
            log = self.log_of(group)
            self.ledger.applied(log, broker_of(process), entry.index, entry.term, entry.header.header_crc)
            self.history.committed(log, entry.header.next_offset)
            if entry.header.kind == Kind.DATA:
                self.history.weighed(log, entry.header.next_offset, entry.header.length)

    def is_deleted(self, group: GroupId) -> bool:
        """Some replica has deleted its data: the group is not judged any more."""
        return group in self._deleted

    def is_weak(self, group: GroupId) -> bool:
        """Its replicas vouch for what a power cut, or the end of their process, may take: they come back as others."""
        return group in self._weak

    def opened(self, group: GroupId, config: LogConfig = DISK) -> None:
        """A replica is opened, whose log is kept like this."""
        if comes_back(config):
            self._weak.add(group)

    def revived(self, group: GroupId, end_offset: int) -> None:
        """It goes on with the log of who was left, if anybody was, without an operator: a log that ends there. What it
        applies, commits and shows is judged from then on anew; its elections, which it had one without, no more."""
        if self.is_weak(group):
            log = self.log_of(group)
            self.history.revived(log, end_offset)
            self.ledger.begins_again(log)
            self._revived.add(group)

    def is_revived(self, group: GroupId) -> bool:
        """It went on once without a majority."""
        return group in self._revived

    def deleted(self, group: GroupId) -> None:
        """A replica deletes its data: the registry has decided that nobody needs the group any more. One that restarts
        may make it anew, until it hears of that; what is in it then is not judged."""
        self._deleted.add(group)
        self.closed(group)

    def closed(self, group: GroupId) -> None:
        """A replica, in whose process this is called, takes part no more."""
        process = running_process()
        if process is not None:
            self.leads(broker_of(process), group, None)

    def unhealthy(self) -> str:
        """What is not as it should be, of all brokers; "" when all is well."""
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
        """Who leads, by its own account; of the newest term."""
        led = [
            (g.term, b.id) for b in self.brokers.values() for g in b.groups() if g.id == group and g.role is Role.LEADER
        ]
        return self.brokers[max(led)[1]] if led else None

    async def collect(self) -> None:
        """Read every replica of every broker into the history."""
        collector = Collector(self.limits)
        # Before anything is read: a flipped bit that nobody has read yet makes a leader step down, and others stand.
        seen = [(broker, group, group.status()) for broker in self.brokers.values() for group in broker.groups()]
        for broker, group, status in seen:
            try:
                entries = await broker.process.run(collector.stored(group.log, status.commit_index))
            except (Killed, TinymqError) as error:
                if group in broker.groups() and not (broker.scarred and isinstance(error, CorruptData)):
                    raise
                continue  # its topic was deleted meanwhile; or flipped bits that nobody has read before
            self.history.replicas.append(
                SeenReplica(
                    self.log_of(group.id), broker.id, status.role.value, status.high_watermark,
                    status.commit_index, status.log_start, entries, broker.shown_start(group.id),
                )
            )  # fmt: skip

    # ---- time ----------------------------------------------------------------------------------------

    async def healthy(self, within_s: float) -> str:
        """Wait until all is well; what is not, after `within_s`."""
        end_s = self.loop.time() + within_s
        while (bad := self.unhealthy()) and self.loop.time() < end_s:
            await self.clock.sleep(POLL_S)
        return bad

    async def until(self, holds: Callable[[], object], within_s: float, what: str) -> None:
        end_s = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < end_s, f"not within {within_s} s: {what}"
            await asyncio.sleep(POLL_S)


def _is_ack_of_earlier_term(group: GroupId, term: int, message: peer_pb2.Peer) -> bool:
    ack = message.append_ack
    return 0 < ack.term < term and (ack.group.topic_id, ack.group.partition) == (group.topic_id, group.partition)


def broker_of(process: Process) -> int:
    """Whose process it is."""
    return int(process.name.rsplit(" ", 1)[1])
