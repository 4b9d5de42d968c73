"""Whole Raft hosts in virtual time, on disks and a network that fail on request, and the ledger that judges them.

    def scenario(cluster): ...       an async function
    simulate(scenario, seed=7)       three brokers, one group; raises what went wrong

All randomness comes from the seed, so a seed always gives the same run. A `Ledger` watches every replica apply entries.
It checks that no index has two different entries and that no term has two leaders. A test asserts everything else
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tests.raft.values import GROUP
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import CorruptData, NotLeader, QuotaExceeded, TinymqError
from tinymq.base.types import GroupId, PeerAddress, Position
from tinymq.format.entry import Entry, Kind, NewEntry, crc32c
from tinymq.log.engine.store import Store
from tinymq.log.replica_log.log_config import DISK
from tinymq.raft import Group, Host, Role
from tinymq.raft.net.transport import Transport
from tinymq.raft.rules.membership import Replica, make_first_entry
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.simulation.memory_network import HOST, MemoryNetwork
from tinymq_chaos.sim.virtual.disk import SimDisk
from tinymq_chaos.sim.virtual.event_loop import (
    ProcessKilled,
    ProcessTransport,
    SimProcess,
    VirtualClock,
    VirtualLoop,
    run_virtually,
)

CLUSTER_ID = b"c" * 16
SECRET = b"a secret of the tests"
LIMITS = Limits(segment_bytes=16 << 10, tail_cache_bytes_max=8 << 10)
_STATE = struct.Struct("<QI")


class Ledger:
    """The entries that any replica has ever applied.

    When two replicas disagree, `broken` stores the difference: the AssertionError may stop only the replica that raised
    it.
    """

    def __init__(self) -> None:
        self.chosen: dict[GroupId, list[tuple[int, int]]] = {}  # by index - 1: (term, header crc) of what was applied
        self.acknowledged: dict[GroupId, set[int]] = {}  # indexes that a leader applied in its own term
        self.leaders: dict[tuple[GroupId, int], int] = {}
        self.lines: list[str] = []  # what happened, in order
        self.broken: list[str] = []

    def applied(self, group: GroupId, broker_id: int, entry: Entry) -> None:
        chosen = self.chosen.setdefault(group, [])
        this = (entry.term, entry.header.header_crc)
        if entry.index > len(chosen) + 1:
            self._refuse(f"{group}: broker {broker_id} skips to entry {entry.index}")
        elif entry.index == len(chosen) + 1:
            chosen.append(this)
        elif (known := chosen[entry.index - 1]) != this:
            self._refuse(f"{group}: broker {broker_id} applies {this} as entry {entry.index}, which was {known}")

    def leads(self, group: GroupId, broker_id: int, term: int) -> None:
        known = self.leaders.setdefault((group, term), broker_id)
        if known != broker_id:
            self._refuse(f"{group}: brokers {known} and {broker_id} both lead term {term}")

    def end(self, group: GroupId) -> int:
        """The last index that any replica applied."""
        return len(self.chosen.get(group, ()))

    def _refuse(self, what: str) -> None:
        self.broken.append(what)
        raise AssertionError(what)


class Recorder:
    """A state machine whose state is a running checksum over all entries, and whether it may accept writes."""

    padding = b""  # behind the state: some are large

    def __init__(self, ledger: Ledger, group: GroupId, broker_id: int) -> None:
        self.index = 0
        self.state = 0
        self.leading: int | None = None  # the term in which it may accept
        self.waiting: dict[tuple[int, int], Position] = {}  # proposed here, and not yet known to be committed
        self.unknown: list[Position] = []  # what it waited for when it lost its leadership
        self.entries: list[Entry] = []  # applied by this process
        self.calls: list[str] = []
        self._ledger = ledger
        self._group = group
        self._broker_id = broker_id

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.index + 1, f"broker {self._broker_id} applies {entry.index} after {self.index}"
        self.index = entry.index
        self.state = crc32c(entry.head, self.state)
        self.entries.append(entry)
        self._ledger.applied(self._group, self._broker_id, entry)
        if self.leading is not None:
            self._ledger.acknowledged.setdefault(self._group, set()).add(entry.index)
        self.waiting.pop((entry.index, entry.term), None)

    def lead(self, term: int) -> None:
        self.leading = term
        self.calls.append(f"lead {term}")
        self._ledger.leads(self._group, self._broker_id, term)

    def follow(self) -> None:
        self.leading = None
        self.calls.append("follow")
        self.unknown += self.waiting.values()
        self.waiting.clear()

    def dump(self) -> bytes:
        return _STATE.pack(self.index, self.state) + self.padding

    def load(self, state: bytes) -> None:
        if state[_STATE.size :] != self.padding:
            raise CorruptData("not a recorder's state")
        self.index, self.state = _STATE.unpack_from(state)
        self.entries = [e for e in self.entries if e.index <= self.index]

    @property
    def payloads(self) -> list[bytes]:
        """Of data entries, as applied."""
        return [e.payload for e in self.entries if e.header.kind == Kind.DATA]


class Broker:
    """One broker over its whole life: its disk stays while its processes start and end."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.id = broker_id
        self.rng = random.Random(f"{cluster.seed}/broker/{broker_id}")
        self.files = FaultyFiles(random.Random(f"{cluster.seed}/disk/{broker_id}"))
        self.machines: dict[GroupId, Recorder] = {}
        self.failures: list[TinymqError] = []  # that the host said end the broker
        self.skew_us = 0
        self.rate = 1.0
        self.disk_is_broken = False  # a fault was asked for since the machine started
        self.transport: Transport | None = None  # of the newest process
        self._cluster = cluster
        self._sessions = 0
        self._process: SimProcess | None = None
        self._store: Store | None = None
        self._host: Host | None = None
        self._disk: SimDisk | None = None
        self._clock: VirtualClock | None = None

    # Each property asserts that the broker runs.

    @property
    def up(self) -> bool:
        return self._process is not None and self._host is not None

    @property
    def process_is_gone(self) -> bool:
        return self._process is None

    @property
    def process(self) -> SimProcess:
        assert self._process is not None, f"broker {self.id} is down"
        return self._process

    @property
    def host(self) -> Host:
        assert self._host is not None, f"broker {self.id} is down"
        return self._host

    @property
    def store(self) -> Store:
        assert self._store is not None, f"broker {self.id} is down"
        return self._store

    @property
    def disk(self) -> SimDisk:
        assert self._disk is not None, f"broker {self.id} is down"
        return self._disk

    @property
    def clock(self) -> VirtualClock:
        assert self._clock is not None, f"broker {self.id} is down"
        return self._clock

    def group(self, group: GroupId = GROUP) -> Group:
        return self.host.groups[group]

    def machine(self, group: GroupId = GROUP) -> Recorder:
        return self.machines[group]

    def propose(self, payload: bytes, group: GroupId = GROUP, record_count: int = 1) -> Position:
        """Propose as the layers above raft do: only while the state machine accepts writes."""
        machine = self.machines[group]
        if machine.leading is None:
            raise NotLeader(f"broker {self.id} may not accept")
        position = self.process.do(
            lambda: self.group(group).propose(NewEntry(Kind.DATA, payload, record_count=record_count))
        )
        machine.waiting[position.index, position.term] = position
        return position

    # Life

    async def open_store(self) -> None:
        """Open the disk: the first half of a start. Raises the disk's error."""
        loop, cluster = self._cluster.loop, self._cluster
        self._process = process = SimProcess(f"broker {self.id}", self.id)
        self._clock = VirtualClock(loop, process, start_s=self.rng.uniform(10, 10_000), rate=self.rate)
        self._clock.wall_skew_us = self.skew_us
        self._disk = SimDisk(loop, process, self.files, random.Random(self.rng.random()))
        self._store = await process.run(
            Store.open(
                self.files, self._disk, self._clock, broker_id=self.id, limits=cluster.limits,
                rng=random.Random(self.rng.random()),
            )
        )  # fmt: skip
        await process.run(self._store.bind_cluster(CLUSTER_ID))

    async def start(self) -> None:
        """A whole start, up to open groups; returns early when it is killed meanwhile."""
        try:
            if self._process is None:
                await self.open_store()
            await self.process.run(self._start_host())
        except ProcessKilled:
            pass

    async def _start_host(self) -> None:
        cluster, store = self._cluster, self.store
        self._sessions += 1
        transport = cluster.network.transport(lambda: store.identity, SECRET, self.id * 1000 + self._sessions)
        for other in cluster.brokers:
            transport.set_peer(PeerAddress(other, HOST, other))
        self.transport = transport
        gate = ProcessTransport(transport, self.process)
        self._host = host = Host(
            broker_id=self.id,
            store=store,
            transport=gate,
            clock=self.clock,
            rng=self.rng,
            limits=cluster.limits,
            timing=cluster.timing,
        )
        host.on_group_changed = self._note
        host.on_failed = self.failures.append
        self.machines = {}
        await host.start()
        for group, first in cluster.first_entries.items():
            if group not in cluster.withheld.get(self.id, ()):
                await self.open_group(group, first)

    async def open_group(self, group: GroupId, first: Entry) -> None:
        self.machines[group] = machine = Recorder(self._cluster.ledger, group, self.id)
        await self.host.open_group(group, first, machine, self._cluster.log_config)

    def _note(self, group: Group) -> None:
        self._cluster.say(
            f"broker {self.id} {group.role.value} of {group.id} in term {group.term}, leader {group.leader}"
        )
        term = group.replica.current.leading_term
        if term is not None:
            self._cluster.ledger.leads(group.id, self.id, term)

    def kill(self) -> None:
        """kill -9: the disk keeps everything that was written, synced or not."""
        self._end("is killed")
        self.files.kill()

    def power_cut(self) -> None:
        """The disk keeps everything that was synced, and a random part of the rest."""
        disk = self._disk
        self._end("loses power")
        if disk is not None:
            disk.die()
        self.files.power_cut()

    def wipe(self) -> None:
        """Its disk is replaced by an empty one."""
        self._end("loses its disk")
        self.files = FaultyFiles(random.Random(self.rng.random()))

    async def stop(self) -> None:
        """A clean stop: transfer the leaderships, then close."""
        process, host, store = self.process, self.host, self.store
        await process.run(host.stop())
        await process.run(store.close())
        if self._process is process:
            self._end("has stopped")

    def _end(self, how: str) -> None:
        self._cluster.say(f"broker {self.id} {how}")
        if self._process is not None:
            self._process.kill()
            self._cluster.network.crash(self.id)
        self._process = self._host = self._store = self._disk = self._clock = None
        self.disk_is_broken = self.disk_is_broken and how == "has stopped"
        self._cluster.resume(self.id)

    @property
    def state(self) -> str:
        """For messages."""
        if not self.up:
            return f"broker {self.id}: down"
        parts = [
            f"{g.id} {g.role.value} t{g.term} leader {g.leader} last {g.log.last_index} durable {g.log.durable_index}"
            f" commit {g.commit_index} applied {g.applied_index} {g.failure or ''} {g.describe_followers()}"
            for g in self.host.groups.values()
        ]
        return f"broker {self.id}{' paused' if self.process.paused else ''}: " + "; ".join(parts)


class Cluster:
    """Brokers 1 to `nodes` and the network between them. Links are cut by name; a paused broker hears nothing."""

    def __init__(
        self, loop: VirtualLoop, seed: int, nodes: int, groups: Sequence[GroupId], limits: Limits, timing: Timing
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.rng = random.Random(f"{seed}/cluster")
        self.limits = limits
        self.timing = timing
        self.clock = VirtualClock(loop)
        self.network = MemoryNetwork(self.clock, random.Random(f"{seed}/network"), limits)
        self.ledger = Ledger()
        self.groups = tuple(groups)
        self.log_config = DISK
        self.first_entries: dict[GroupId, Entry] = {}
        self.withheld: dict[int, set[GroupId]] = {}  # groups that a broker does not open when it starts
        self.brokers = {i: Broker(self, i) for i in range(1, nodes + 1)}
        self.members = nodes  # the initial membership, which the first CONFIG lists
        self._cuts: set[tuple[int, int]] = set()
        self._paused: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, line: str) -> None:
        self.ledger.lines.append(f"{self.loop.time():9.4f} {line}")

    async def form(self) -> None:
        """Open every broker's data directory for the first time; the first entries list the brokers. Each group prefers
        another broker.
        """
        for broker in self.brokers.values():
            await broker.open_store()
        replicas = [Replica(b.id, b.store.identity.incarnation) for b in self.brokers.values()][: self.members]
        for at, group in enumerate(self.groups):
            turned = replicas[at % len(replicas) :] + replicas[: at % len(replicas)]
            self.first_entries[group] = make_first_entry(group, turned, 1_000_000)

    async def start(self) -> None:
        await asyncio.gather(*(b.start() for b in self.brokers.values() if not b.up))

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the scenario. An exception that it raises fails the run."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    def end_background(self) -> None:
        """Stop all work that runs beside the scenario."""
        for task in list(self._tasks):
            task.cancel()

    def all_up(self) -> bool:
        """Whether every broker runs, with all its groups open."""
        return all(b.up and len(b.host.groups) == len(self.groups) for b in self.brokers.values())

    # Links

    def cut(self, a: int, b: int, both: bool = True) -> None:
        self.say(f"cut {a} {'-' if both else '->'} {b}")
        self._cuts |= {(a, b), (b, a)} if both else {(a, b)}
        self._apply_links()

    def isolate(self, a: int) -> None:
        for b in self.brokers:
            if a != b:
                self.cut(a, b)

    def heal(self) -> None:
        self.say("links are healed")
        self._cuts.clear()
        self._apply_links()

    def pause(self, broker_id: int) -> None:
        """Stop the process as SIGSTOP does: messages to it wait in buffers."""
        self.say(f"broker {broker_id} is paused")
        self._paused.add(broker_id)
        self.brokers[broker_id].process.pause()
        self._apply_links()

    def resume(self, broker_id: int) -> None:
        if broker_id in self._paused:
            self.say(f"broker {broker_id} goes on")
            self._paused.discard(broker_id)
            if self.brokers[broker_id].up:
                self.brokers[broker_id].process.resume()
            self._apply_links()

    def _apply_links(self) -> None:
        self.network.heal()
        for a, b in sorted(self._cuts):
            self.network.cut(a, b, both=False)
        for broker_id in sorted(self._paused):
            self.network.isolate(broker_id, self.brokers)

    # Questions

    @property
    def running(self) -> list[Broker]:
        return [b for b in self.brokers.values() if b.up and not b.process.paused]

    def leaders(self, group: GroupId = GROUP) -> list[Broker]:
        """Return the brokers that believe they lead and accept writes, the broker with the newest term last."""
        able = [b for b in self.running if group in b.machines and b.machines[group].leading is not None]
        return sorted(able, key=lambda b: b.machines[group].leading or 0)

    def leader(self, group: GroupId = GROUP) -> Broker:
        leaders = self.leaders(group)
        assert leaders, f"nobody leads {group}\n{self.describe()}"
        return leaders[-1]

    def followers(self, group: GroupId = GROUP) -> list[Broker]:
        leader = self.leader(group)
        return [b for b in self.running if b is not leader]

    def agreed(self, group: GroupId = GROUP) -> bool:
        """Has every running replica applied the whole log of the only leader, and does it know that leader?"""
        leaders = self.leaders(group)
        if len(leaders) != 1:
            return False
        leader = leaders[0].group(group)
        if leader.applied_index != leader.log.last_index or leader.log.last_index < self.ledger.end(group):
            return False
        taking_part = [b.group(group) for b in self.running if group in b.host.groups]
        return all(
            g.applied_index == leader.applied_index and g.leader == leaders[0].id
            for g in taking_part
            if g.role not in (Role.FAILED, Role.QUARANTINED)
        )

    async def check_logs(self, group: GroupId = GROUP) -> None:
        """Every running replica's log has the applied entries up to its own commit index, and all running states are
        equal. Above the commit index, entries of an earlier leader may still wait to be replaced.
        """
        chosen = self.ledger.chosen[group]
        for broker in self.running:
            log = broker.group(group).log
            index = log.first_index
            # taken first: other entries are applied while the log is read
            known = min(len(chosen), broker.group(group).commit_index)
            while entries := await broker.process.run(log.reader.read(index, 1 << 20)):
                for entry in entries:
                    if entry.index <= known:
                        held = (entry.term, entry.header.header_crc)
                        assert held == chosen[entry.index - 1], (
                            f"broker {broker.id} has another entry {entry.index} than was committed"
                        )
                index = entries[-1].index + 1
        states = {b.machines[group].index: b.machines[group].state for b in self.running}
        for broker in self.running:
            machine = broker.machines[group]
            assert states[machine.index] == machine.state, "equal logs with different states"

    def describe(self) -> str:
        return "\n".join([*self.ledger.lines[-40:], *(b.state for b in self.brokers.values())])

    # Time

    async def run_for(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    async def until(self, holds: Callable[[], object], within_s: float, what: str = "") -> float:
        """Let time pass until `holds()` is true, and return the seconds that passed. Raises AssertionError after
        `within_s`.
        """
        start = self.loop.time()
        while not holds():
            assert not self.ledger.broken, f"{self.ledger.broken}\n{self.describe()}"
            waited = self.loop.time() - start
            assert waited < within_s, f"not within {within_s} s: {what or holds}\n{self.describe()}"
            await self.clock.sleep(0.002)
        return self.loop.time() - start

    async def settle(self, group: GroupId = GROUP, within_s: float = 10.0) -> None:
        """Let time pass until every running replica has the same log and commit index."""
        await self.until(lambda: self.agreed(group), within_s, f"all agree on {group}")

    async def commit(self, payload: bytes, group: GroupId = GROUP, within_s: float = 5.0) -> Position:
        """Propose on the leader, once it accepts, and wait until that leader applied it."""
        accepted: list[tuple[Broker, Position]] = []

        def proposed() -> bool:
            for leader in self.leaders(group)[-1:]:
                with contextlib.suppress(NotLeader):  # it transfers its leadership
                    accepted.append((leader, leader.propose(payload, group)))
            return bool(accepted)

        await self.until(proposed, within_s, "somebody accepts")
        leader, position = accepted[0]
        machine = leader.machines[group]
        await self.until(lambda: machine.index >= position.index, within_s, f"{position} is committed")
        assert position not in machine.unknown
        return position

    async def load(self, pause_s: float = 0.01, payload_bytes_max: int = 400) -> None:
        """Propose without end on every broker that believes it leads."""
        count = 0
        while True:
            for group in self.groups:
                for broker in self.leaders(group):
                    for _ in range(self.rng.randrange(3)):
                        count += 1
                        payload = b"%d " % count + bytes(self.rng.randrange(payload_bytes_max))
                        try:
                            broker.propose(payload, group)
                        except (NotLeader, QuotaExceeded):
                            break
            await self.clock.sleep(self.rng.uniform(0, 2 * pause_s))


Scenario = Callable[[Cluster], Awaitable[None]]


def simulate(
    scenario: Scenario, seed: int = 0, *, nodes: int = 3, groups: Sequence[GroupId] = (GROUP,),
    limits: Limits = LIMITS, timing: Timing | None = None, delay_s: tuple[float, float] = (0.0002, 0.0005),
    start: bool = True, members: int | None = None,
) -> Cluster:  # fmt: skip
    """Run a scenario on a new cluster, and return the cluster. Raises any error of the scenario, the ledger or a
    broker.
    """

    async def main(loop: VirtualLoop) -> Cluster:
        cluster = Cluster(loop, seed, nodes, groups, limits, timing or Timing())
        for a in cluster.brokers:
            for b in cluster.brokers:
                if a != b:
                    cluster.network.delay(a, b, delay_s[0], jitter_s=delay_s[1], both=False)
        cluster.members = members or nodes
        await cluster.form()
        if start:
            await cluster.start()
        await scenario(cluster)
        assert not cluster.ledger.broken, f"{cluster.ledger.broken}\n{cluster.describe()}"
        return cluster

    try:
        return run_virtually(main)
    except BaseException as error:
        error.add_note(f"seed {seed}. To replay it: pytest '{os.environ.get('PYTEST_CURRENT_TEST', '').split(' ')[0]}'")
        raise
