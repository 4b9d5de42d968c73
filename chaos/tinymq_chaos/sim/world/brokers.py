"""One simulated broker over its whole life: a machine with a disk, and processes of `BrokerApp` that come and go on it.

It includes a supervisor, which restarts a process that ends, as long as the broker is wanted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinymq.app.broker_app import BrokerApp
from tinymq.app.machine_env import MachineEnv
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import BrokenInvariant, TinymqError
from tinymq.base.types import METADATA_GROUP, GroupId
from tinymq.broker.partition.partition import Partition
from tinymq.log.engine.store import Store
from tinymq.raft import Group, GroupStatus, Role
from tinymq.raft.net.transport import Transport
from tinymq.rpc.common.broker_state import BrokerState
from tinymq_chaos.broker_changes import TwinSpan
from tinymq_chaos.sim.network.links import make_connector
from tinymq_chaos.sim.network.servers import MemoryServer, make_server
from tinymq_chaos.sim.network.stream_ports import make_acceptor
from tinymq_chaos.sim.virtual.disk import SimDisk, SimFiles
from tinymq_chaos.sim.virtual.event_loop import ProcessKilled, ProcessTransport, SimProcess, VirtualClock

if TYPE_CHECKING:
    from tinymq_chaos.sim.world.world import World

DISK_S = (0.000_05, 0.002)  # each half of a disk operation, without faults
RESTART_S = 1.0  # the supervisor waits so long
POWER_CUT, UNSYNCED, LOST = "power cut", "power cut with unsynced writes", "power cut that lost some"
BETWEEN_STEPS = "crash between two steps"


class SimApp(BrokerApp):
    """The application, with observers on its replicas."""

    def __init__(self, config: BrokerConfig, env: MachineEnv, broker: SimBroker) -> None:
        super().__init__(config, env)
        self._sim = broker

    def _group_changed(self, group: Group) -> None:
        broker, world = self._sim, self._sim.world
        world.seen.leads(broker.number, group.id, group.replica.current.leading_term)
        excused = broker.tampered or world.seen.is_deleted(group.id) or world.seen.is_weak(group.id)
        damaged = group.role in (Role.QUARANTINED, Role.LEARNER) and not excused
        if damaged or isinstance(group.failure, BrokenInvariant):
            world.history.damaged(
                world.seen.log_of(group.id), broker.number, f"{group.role.value}: {group.status().reason}"
            )
        super()._group_changed(group)


class SimBroker:
    """Broker `broker_id` of a world, on the machine that has its number; or a second one with that id, on another."""

    def __init__(self, world: World, broker_id: int, number: int | None = None) -> None:
        self.world = world
        self.id = broker_id
        self.number = broker_id if number is None else number  # of its machine, and of the ports that it listens on
        self.rng = random.Random(f"{world.seed}/broker/{self.number}")
        self.files = SimFiles(random.Random(f"{world.seed}/disk/{self.number}"))
        self.files.on_failed_sync = lambda: world.changed(f"broker {broker_id} fails to sync")
        self.wanted = True  # the supervisor restarts it
        self.damaged = False  # its disk was wiped or damaged, and the broker has not recovered yet
        self.scarred = False  # its disk may have undiscovered damage
        self.tampered = False  # a fault touched its disk and may have cost a replica
        self.twin: SimBroker | None = None  # a second process with its id
        self.span: TwinSpan | None = None  # what is observed of it, if it is a second one
        self.skew_us = 0
        self.rate = 1.0
        self.disk_s = DISK_S
        self.server: MemoryServer | None = None
        self.starts = 0
        self.happened: Counter[str] = Counter()  # how often faults that wait for a moment found it
        self._process: SimProcess | None = None
        self._app: SimApp | None = None
        self._disk: SimDisk | None = None
        self._clock: VirtualClock | None = None

    # ---- what runs -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"broker {self.id}" if self.number == self.id else f"the second broker {self.id}"

    @property
    def up(self) -> bool:
        """Return whether there is a process; it may be starting, failing or paused."""
        return self._process is not None

    @property
    def process(self) -> SimProcess:
        assert self._process is not None, f"broker {self.id} is down"
        return self._process

    @property
    def app(self) -> SimApp:
        assert self._app is not None, f"broker {self.id} is down"
        return self._app

    @property
    def disk(self) -> SimDisk:
        assert self._disk is not None, f"broker {self.id} is down"
        return self._disk

    @property
    def clock(self) -> VirtualClock:
        assert self._clock is not None, f"broker {self.id} is down"
        return self._clock

    @property
    def running(self) -> bool:
        """Return whether the broker serves and is not paused."""
        return self._app is not None and self._app.state is BrokerState.RUNNING and not self.process.paused

    @property
    def serves(self) -> bool:
        """Return whether the broker has joined its cluster, runs, and takes part in all its groups."""
        return not self.unhealthy()

    @property
    def whole(self) -> bool:
        """Return whether no damage of its disk is left, so that another broker's may be damaged."""
        return not self.damaged or not (self.scarred or self.twin is not None or self.unhealthy())

    def groups(self) -> list[Group]:
        """Return the open replicas."""
        app = self._app
        return list(app.host.groups.values()) if app is not None and app._host is not None else []

    def statuses(self) -> list[GroupStatus]:
        return [group.status() for group in self.groups()]

    def unhealthy(self) -> str:
        """Return how the broker differs from a healthy one; "" when all is well."""
        if not self.running:
            return f"broker {self.id} is {self._app.state.value if self._app is not None else 'down'}"
        broker = self.app.serving.broker
        if broker is None:
            return f"broker {self.id} is starting"
        bad = [
            g for g in self.groups() if g.role not in (Role.LEADER, Role.FOLLOWER, Role.OBSERVER) or g.leader is None
        ]
        if bad:
            status = bad[0].status()
            return f"broker {self.id}: {status.group} is {status.role.value}, leader {status.leader}, {status.reason}"
        missing = self._held() - {g.id for g in self.groups()}
        return f"broker {self.id} does not hold {sorted(map(str, missing))}" if missing else ""

    def _held(self) -> set[GroupId]:
        """Return the groups that the broker has to hold, according to the broker that has applied most of the metadata:
        one with a new disk knows nothing.
        """
        registries = {}
        for other in self.world.brokers.values():
            broker = other._app.serving.broker if other._app is not None else None
            if broker is not None:
                applied = (group.applied_index for group in other.groups() if group.id == METADATA_GROUP)
                registries[next(applied, 0)] = broker.registry
        queues = [q for t in registries[max(registries)].get_all_topics() for q in t.queues] if registries else []
        return {METADATA_GROUP, *(q.group for q in queues if q.has_replica(self.id))}

    # ---- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process on the disk as it is."""
        assert self._process is None, f"broker {self.id} runs"
        world = self.world
        self.starts += 1
        self._process = process = SimProcess(self.name, self.number)
        world.changed(f"{self.name} starts")
        self._clock = VirtualClock(world.loop, process, start_s=self.rng.uniform(10, 10_000), rate=self.rate)
        self._clock.wall_skew_us = self.skew_us
        self._disk = SimDisk(world.loop, process, self.files, random.Random(self.rng.random()))
        self._disk.delay_s = self.disk_s
        self._disk.on_crash = lambda: self._crashed(process)
        env = MachineEnv(
            self._clock, random.Random(self.rng.random()), self.files, runner=self._disk, transport=self._transport,
            server=make_server(world.clients, self.number, process),
            connector=make_connector(world.clients, self.number),
            acceptor=make_acceptor(world.clients, self.number, process),
        )  # fmt: skip
        self._app = app = process.do(lambda: SimApp(world.config(self.id, self.number), env, self))
        process.spawn(self._live(process, app))

    def _transport(self, store: Store, session: int) -> Transport:
        inner = self.world.network.transport(
            lambda: store.identity, self.world.secret, session, port=self.number, number=self.number
        )
        gated: Transport = ProcessTransport(inner, self.process)
        return gated

    async def _live(self, process: SimProcess, app: SimApp) -> None:
        """Run the application as `tinymq broker` does."""
        try:
            await app.start()
            reason = await app.wait_failed()
            self.world.say(f"{self.name} has failed: {reason.code}")
            await app.stop()
        except TinymqError as error:
            self.world.say(f"{self.name} cannot start: {error.code}: {error}")
        if process is self._process:
            self._end("has ended")
            self.files.kill()

    def stop_politely(self) -> None:
        """SIGTERM."""
        process, app = self.process, self.app
        if not self.running:
            self.kill()
            return
        self.world.say(f"{self.name} is told to stop")
        self.wanted = False

        async def stop() -> None:
            await app.stop()
            if process is self._process:
                self._end("has stopped")
                self.files.kill()

        process.spawn(stop())

    def kill(self, how: str = "is killed") -> None:
        """kill -9: all written bytes stay, synced or not."""
        if self._process is not None:
            disk = self.disk
            self._end(how)
            disk.die()
            self.files.kill()

    def power_cut(self, how: str = "loses power") -> None:
        """Cut the power: synced bytes stay, and any sectors of the others. No other broker is told."""
        if self._process is not None:
            disk = self.disk
            self._end(how, silently=True)
            disk.die()
            self.happened[POWER_CUT] += 1
            if self.files.unsynced:
                self.happened[UNSYNCED] += 1
            before = self.files.seen()
            self.files.power_cut()
            if self.files.seen() != before:
                self.happened[LOST] += 1

    def power_cut_at_write(self, operations: int, cut: Callable[[], None]) -> None:
        """Call `cut`, which cuts the broker's power, after so many more operations of its disk, the last of them
        unsynced.
        """
        self.files.crash_after(operations, bytes_written=self.rng.randrange(2048))
        self.disk.on_crash = cut

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.kill("loses its disk")
        self.files = SimFiles(random.Random(self.rng.random()))
        self.damaged = self.tampered = True

    def crash_soon(self, steps: int, power: bool) -> None:
        """End the process between two of the next steps of its loop."""
        process = self.process
        process.crash_after(steps, lambda: self._crashed(process, power))

    def _crashed(self, process: SimProcess, power: bool | None = None) -> None:
        if process is self._process:
            self.happened[BETWEEN_STEPS if power is not None else f"crash at {self.files.struck}"] += 1
            if self.rng.random() < 0.5 if power is None else power:
                self.power_cut("loses power in the middle of its work")
            else:
                self.kill("is killed in the middle of its work")

    def _end(self, how: str, silently: bool = False) -> None:
        self.world.history.leads_no_more(self.number)
        self.world.changed(f"{self.name} {how}")
        self.files.forget_crash()
        self.world.mend(self.process)
        self.process.kill()
        if silently:
            self.world.network.power_off(self.number)
        else:
            self.world.network.crash(self.number)
        self.world.clients.crash(self.number, silently)
        self._process = self._app = self._disk = self._clock = None
        self.world.clock.call_later(RESTART_S * self.rng.uniform(0.2, 1.0), self.revive)

    def revive(self) -> None:
        """Start the broker if it is wanted and has no process."""
        if self.wanted and self._process is None and not self.world.over:
            self.start()

    # ---- its senses ----------------------------------------------------------------------------------

    def set_clock(self, skew_us: int, rate: float) -> None:
        """Set the clock for this and all later processes."""
        self.skew_us, self.rate = skew_us, rate
        if self._clock is not None:
            self._clock.wall_skew_us = skew_us
            self._clock.drift(rate)

    def set_disk(self, delay_s: tuple[float, float]) -> None:
        """Set how long each half of a disk operation takes."""
        self.disk_s = delay_s
        if self._disk is not None:
            self._disk.delay_s = delay_s

    def shown_start(self, group: GroupId) -> int | None:
        """Return the offset below which the broker shows no record of a group; None: it shows none at all."""
        partition = self.partition(group.topic_id, group.partition)
        return partition.log_start if partition is not None else None

    def partition(self, topic_id: bytes, number: int) -> Partition | None:
        broker = self._app.serving.broker if self._app is not None else None
        return broker.env.replica_host.get(topic_id, number) if broker is not None else None


__all__ = ["DISK_S", "ProcessKilled", "SimApp", "SimBroker"]
