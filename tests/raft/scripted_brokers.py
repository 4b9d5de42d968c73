"""Real Raft hosts. Messages wait in a visible queue; disks sync and clocks move on command.

The brokers are `tinymq.raft.Host` over a real log on `FaultyFiles`; this module decides nothing. `scripted.py` reads
the commands. `Observer.tell` gets one line for each event, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.fakes.manual_clock import ManualClock
from tests.raft.harness import CLUSTER_ID, Ledger, Recorder
from tests.raft.values import GROUP
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import BrokerUnreachable
from tinymq.base.types import PeerAddress
from tinymq.format.entry import Entry
from tinymq.log.engine.store import Store
from tinymq.proto import peer_pb2 as pb
from tinymq.raft import Group, Host
from tinymq.raft.net.transport import Channel, Invitation, Invite, LocalIdentity, OnMessage, OnRefused, PeerIdentity
from tinymq.raft.state.replica_state import ReplicaState
from tinymq.simulation.faulty_files import FaultyFiles

T = TypeVar("T")

SPINS_MAX = 10_000  # turns of the loop without an end: something feeds itself
HIDDEN = frozenset({"heartbeat", "leaders"})  # life and hints: delivered at once wherever there is a link


@dataclass(slots=True)
class Sent:
    """One message in flight."""

    source: int
    target: int
    channel: Channel
    head: pb.Peer
    body: bytes


class ScriptedDisk:
    """Runs blocking work at once or, while the disk hangs, on command."""

    def __init__(self) -> None:
        self.hangs = False
        self._waiting: list[asyncio.Future[None]] = []

    async def run(self, call: Callable[[], T]) -> T:
        if self.hangs:
            waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waits)
            await waits
        return call()

    async def run_short(self, call: Callable[[], T]) -> T:
        return await self.run(call)

    def finish(self) -> int:
        """Run the waiting work; work that it causes waits again. Returns the number of calls."""
        waiting, self._waiting = self._waiting, []
        for waits in waiting:
            waits.set_result(None)
        return len(waiting)

    def die(self) -> None:
        for waits in self._waiting:
            waits.cancel()


class ScriptedTransport:
    """One broker's end of the links: implements `transport.Transport`."""

    def __init__(self, links: Links, identity: Callable[[], LocalIdentity], session: int) -> None:
        self.on_message: OnMessage | None = None
        self.on_connected: Callable[[int, Channel, PeerIdentity], None] | None = None
        self.on_disconnected: Callable[[int, Channel, str], None] | None = None
        self.on_refused: OnRefused | None = None
        self.on_rejected: Callable[..., None] | None = None
        self.on_invited: Callable[..., None] | None = None
        self.invite: Invite | None = None
        self.hears: Callable[[int], bool] = lambda peer: False
        self._links = links
        self._local = identity
        self._session = session
        self._proven: dict[int, PeerIdentity] = {}

    @property
    def me(self) -> PeerIdentity:
        local = self._local()
        return PeerIdentity(local.broker_id, local.incarnation, self._session)

    def send(self, peer: int, channel: Channel, message: pb.Peer, body: Sequence[bytes | memoryview] = ()) -> bool:
        if not self.connected(peer, channel):
            return False
        copy = pb.Peer.FromString(message.SerializeToString())
        self._links.take(Sent(self.me.broker_id, peer, channel, copy, b"".join(body)))
        return True

    def connected(self, peer: int, channel: Channel) -> bool:
        return self._links.linked(self.me.broker_id, peer)

    def identity(self, peer: int) -> PeerIdentity | None:
        return self._proven.get(peer)

    def buffered_bytes(self, peer: int, channel: Channel) -> int:
        return 0

    def set_peer(self, address: PeerAddress) -> None: ...

    def remove_peer(self, broker_id: int) -> None: ...

    def turn_away(self, below: int) -> None: ...

    def reset(self, peer: int, channel: Channel) -> None:
        self._links.again.append((self.me.broker_id, peer, channel))

    async def ask(self, host: str, port: int) -> Invitation:
        raise BrokerUnreachable("no broker joins in a script")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    # The messages and events that the links report.

    def opened(self, who: PeerIdentity) -> None:
        self._proven[who.broker_id] = who
        for channel in (Channel.CONTROL, Channel.BULK):
            if self.on_connected is not None:
                self.on_connected(who.broker_id, channel, who)

    def closed(self, peer: int, channels: Sequence[Channel]) -> None:
        for channel in channels:
            if self.on_disconnected is not None:
                self.on_disconnected(peer, channel, "cut")

    def refused(self, peer: int) -> None:
        if self.on_refused is not None:
            self.on_refused(peer, BrokerUnreachable(f"broker {peer}: connection refused", refused=True))


class Links:
    """The links between brokers, and the messages in flight. A link that closes loses its messages."""

    def __init__(self) -> None:
        self.queue: list[Sent] = []
        self.again: list[tuple[int, int, Channel]] = []  # connections to reopen, as their sender asked
        self.on_sent: Callable[[Sent], None] = lambda sent: None
        self._hidden: list[Sent] = []
        self._ends: dict[int, ScriptedTransport] = {}
        self._open: set[frozenset[int]] = set()

    def linked(self, a: int, b: int) -> bool:
        return frozenset({a, b}) in self._open

    def take(self, sent: Sent) -> None:
        if sent.head.WhichOneof("message") in HIDDEN:
            self._hidden.append(sent)
            return
        self.on_sent(sent)
        self.queue.append(sent)

    def attach(self, broker_id: int, end: ScriptedTransport) -> None:
        self._ends[broker_id] = end

    def link(self, a: int, b: int) -> bool:
        """Connect both brokers, both ways. Returns False when they are connected already, or one of them is down."""
        if self.linked(a, b) or a not in self._ends or b not in self._ends:
            return False
        self._open.add(frozenset({a, b}))
        self._ends[a].opened(self._ends[b].me)
        self._ends[b].opened(self._ends[a].me)
        return True

    def unlink(self, a: int, b: int) -> list[Sent]:
        """Close their connections, and return the messages that were lost."""
        if not self.linked(a, b):
            return []
        self._open.discard(frozenset({a, b}))
        lost = [s for s in self.queue if {s.source, s.target} == {a, b}]
        self.queue = [s for s in self.queue if s not in lost]
        self._hidden = [s for s in self._hidden if {s.source, s.target} != {a, b}]
        for end, peer in ((a, b), (b, a)):
            if end in self._ends:
                self._ends[end].closed(peer, (Channel.CONTROL, Channel.BULK))
        return lost

    def detach(self, broker_id: int) -> list[Sent]:
        """End the broker's process: connections to it are refused."""
        others = [b for b in self._ends if b != broker_id and self.linked(b, broker_id)]
        del self._ends[broker_id]
        lost = [sent for other in others for sent in self.unlink(broker_id, other)]
        for other in others:
            self._ends[other].refused(broker_id)
        return lost

    def deliver(self, sent: Sent) -> None:
        end = self._ends[sent.target]
        assert end.on_message is not None
        end.on_message(sent.source, sent.head, sent.body)

    def deliver_hidden(self) -> bool:
        """Heartbeats, announcements, and requests to reopen a connection."""
        hidden, self._hidden = self._hidden, []
        again, self.again = self.again, []
        for sent in hidden:
            self.deliver(sent)
        for source, target, channel in again:
            self.queue = [s for s in self.queue if (s.source, s.target, s.channel) != (source, target, channel)]
            self._ends[source].closed(target, (channel,))
            opened = self._ends[source].on_connected
            if opened is not None:
                opened(target, channel, self._ends[target].me)
        return bool(hidden or again)


@dataclass(slots=True)
class Seen:
    """The state of a replica at the previous comparison."""

    term: int = 0
    voted_for: int | None = None
    role: str = ""
    leader: int | None = None
    entries: dict[int, int] = field(default_factory=dict)  # index -> term
    durable: int = 0
    commit: int = 0
    applied: int = 0
    members: str = ""
    calls: int = 0
    unknown: int = 0
    failure: str = ""


class ScriptedBroker:
    """One broker: its disk stays while its processes start and end."""

    def __init__(self, broker_id: int, links: Links, ledger: Ledger) -> None:
        self.id = broker_id
        self.files = FaultyFiles(random.Random(broker_id))
        self.old_files = self.files  # the disk before the one that is in
        self.names: dict[bytes, str] = {}  # incarnation -> "2", "2'", ...
        self.seen = Seen()
        self.clock = ManualClock()
        self.disk = ScriptedDisk()
        self.machine = Recorder(ledger, GROUP, broker_id)
        self.up = False
        self._links = links
        self.ledger = ledger
        self._limits = Limits()
        self._processes = 0
        self._store: Store | None = None
        self._host: Host | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def host(self) -> Host:
        assert self._host is not None
        return self._host

    @property
    def group(self) -> Group:
        return self.host.groups[GROUP]

    @property
    def state(self) -> ReplicaState:
        """A script fires a timer of the replica, and reads its state."""
        return self.group.replica.state

    async def open_store(self, limits: Limits, now: float) -> None:
        self._processes += 1
        self._limits = limits
        self.clock = ManualClock(now)
        self.disk = ScriptedDisk()
        rng = random.Random(f"{self.id}/{self._processes}")
        self._store = store = await Store.open(
            self.files, self.disk, self.clock, broker_id=self.id, limits=limits, rng=rng
        )
        await store.bind_cluster(CLUSTER_ID)
        self.names.setdefault(store.identity.incarnation, str(self.id) + "'" * len(self.names))

    async def start(self) -> None:
        session = self.id * 1000 + self._processes
        transport = ScriptedTransport(self._links, lambda: self.store.identity, session)
        rng = random.Random(f"{self.id}/{self._processes}/host")
        self._host = host = Host(
            broker_id=self.id,
            store=self.store,
            transport=transport,
            clock=self.clock,
            rng=rng,
            limits=self._limits,
            timing=Timing(),
        )
        await host.start()
        self._links.attach(self.id, transport)

    async def open_group(self, first_entry: Entry) -> None:
        self.machine = Recorder(self.ledger, GROUP, self.id)
        await self.host.open_group(GROUP, first_entry, self.machine)
        self.up = True

    def end(self) -> list[Sent]:
        """Kill the process, and return the messages in flight from and to it."""
        self.up = False
        self.disk.die()
        self.clock = ManualClock()  # the clock of the dead process stops
        return self._links.detach(self.id)


async def idle(links: Links) -> None:
    """Run until every broker waits for a command."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(SPINS_MAX):
        await asyncio.sleep(0)
        if not ready and not links.deliver_hidden():
            return
    raise AssertionError("the brokers never come to rest")
