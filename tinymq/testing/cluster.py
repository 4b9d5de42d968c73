"""A real cluster inside your own process: brokers with their logs, Raft and gRPC, on free ports of loopback.

    with Cluster(nodes=3) as cluster:
        client = cluster.client()

The brokers run on the event loop of one background thread. All data lies in a temporary directory, which is removed
when the cluster closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tinymq.base import extras

with extras.required("tinymq.testing"):  # before imports that need more than the base install
    import structlog

from tinymq.app.broker_app import BrokerApp
from tinymq.app.machine_env import MachineEnv
from tinymq.base.config import BrokerConfig, Limits, Timing
from tinymq.base.errors import DeadlineExceeded, TinymqError
from tinymq.base.types import PeerAddress
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.log.files.files import Files
from tinymq.net.loopback_ports import HOST, PortReservation
from tinymq.registry.raft_group.replicated import ReplicatedRegistry
from tinymq.registry.service import RegistryService
from tinymq.rpc.common.broker_state import BrokerState
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.testing.certificates import ClusterCertificates
from tinymq.testing.clock import TestClock
from tinymq.testing.faults import Faults
from tinymq.testing.links import Links

if TYPE_CHECKING:
    from tinymq import Client

T = TypeVar("T")

SECRET = b"the secret of a cluster in a test"
READY_S = 60.0
POLL_S = 0.002
SEGMENT_BYTES = 64 << 20


class Cluster:
    """Brokers 1 to `nodes`, and those that `add` adds. Call its methods from any thread except the brokers' own."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        limits: Limits | None = None,
        timing: Timing | None = None,
        files_factory: Callable[[int], Files] | None = None,
        form: bool = True,
        metrics: bool = False,
        racks: Mapping[int, str] | None = None,
        auto_create_topics: bool = False,
        links: bool = False,
        security: str = "off",
        client_certificates: bool = False,
    ) -> None:
        """Prepare a cluster. Brokers start when you enter it.

        `files_factory` returns the disk of a broker, by broker id, at each of its starts. Without `form`, they come up
        unformed. With `metrics`, each serves its metrics (see `metrics_address`). `racks` maps broker ids to racks.
        With `auto_create_topics`, the first use makes a topic. With `links`, brokers 1 to `nodes` reach one another
        through relays, so that `partition` and `slow` work. `security` is that of every broker (off, accept, required);
        `security_of` overrides it for a broker's next start. `client` uses `certificates`.
        """
        assert nodes in (1, 3, 5), "the metadata group has 1, 3 or 5 voters"
        self.nodes = nodes  # the number of voters: brokers 1 to `nodes` replicate the metadata
        self.brokers: dict[int, BrokerApp] = {}  # the running brokers, by broker id
        self._limits = limits or Limits(segment_bytes=SEGMENT_BYTES)
        self._timing = timing or Timing()
        self._files_factory = files_factory
        self._form = form
        self._racks = racks or {}
        self.security_of = dict.fromkeys(range(1, nodes + 1), security)  # by broker id
        self._security = security
        self._client_certificates = client_certificates
        self._certificates: ClusterCertificates | None = None
        self.clock = TestClock(self._jump)  # of all brokers: `cluster.clock.advance(days=7)`
        self._links = Links() if links else None
        self._auto_create_topics = auto_create_topics
        self._metrics_listen = f"{HOST}:0" if metrics else ""
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tinymq-cluster", daemon=True)
        self._clients: list[Client] = []
        self._ports = PortReservation()
        ports = self._ports.take(2 * nodes)
        self._client_ports = {i: ports[i - 1] for i in range(1, nodes + 1)}
        self._peer_ports = {i: ports[nodes + i - 1] for i in range(1, nodes + 1)}

    # ---- lifecycle ----------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        _quieten()
        self._directory = tempfile.TemporaryDirectory(prefix="tinymq-")
        self._certificates = ClusterCertificates(Path(self._directory.name) / "certificates")
        self._thread.start()
        try:
            self.run(self._start_all())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything, clients first, and remove all data. A second call does nothing."""
        if self._loop.is_closed():
            return
        try:
            for client in self._clients:
                with contextlib.suppress(TinymqError):  # of records left unsent. A test that needs it closes its client
                    client.close()
            self.run(self._kill_all())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._ports.release()
            if self._directory is not None:
                self._directory.cleanup()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        """Run `work` on the brokers' loop, and return what it returns. Raises TimeoutError after `timeout_s`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the brokers' loop, the only thread that may read their state."""

        async def on_loop() -> T:
            return function()

        return self.run(on_loop())

    # ---- brokers -------------------------------------------------------------------------------------

    @property
    def servers(self) -> str:
        """Every broker's address, in the form that a client takes."""
        scheme = "tinymq+tls://" if self._security == "required" else ""
        return scheme + ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """Every broker's address, host:port."""
        return [self.address(broker_id) for broker_id in self._client_ports]

    @property
    def certificates(self) -> ClusterCertificates:
        """The certificates of brokers and of their authority. Those that are needed are made."""
        assert self._certificates is not None, "enter the cluster first"
        return self._certificates

    def address(self, broker_id: int) -> str:
        """Return a broker's address, host:port."""
        return f"{HOST}:{self._client_ports[broker_id]}"

    def metrics_address(self, broker_id: int) -> str:
        """Return the address where a running broker serves /metrics and /status. The port changes at each start."""
        return self.brokers[broker_id].metrics.address

    def add(self) -> int:
        """Add a broker, and return its number once it is registered. New topics use it."""
        broker_id = max(self._client_ports) + 1
        self._client_ports[broker_id], self._peer_ports[broker_id] = self._ports.take(2)
        self.start(broker_id)
        return broker_id

    def start(self, broker_id: int) -> None:
        """Start a broker that was killed or stopped. Returns when it is registered again."""
        self.run(self._start(broker_id))
        if self._form:
            self.wait_until(lambda: self._knows(broker_id, {broker_id}))

    def stop(self, broker_id: int) -> None:
        """Stop a broker in order, as SIGTERM does."""
        self.run(self.brokers.pop(broker_id).stop())

    def kill(self, broker_id: int) -> None:
        """End a broker as `kill -9` does: it transfers no leadership, and sends and writes nothing more."""
        self.run(self.brokers.pop(broker_id).kill())

    def restart(self, broker_id: int) -> None:
        """Kill a broker, and start it again. Returns when it is registered again."""
        self.kill(broker_id)
        self.start(broker_id)

    def partition(self, *groups: Iterable[int]) -> None:
        """Cut the links between groups of brokers, such as `partition({1}, {2, 3})`. One group is cut from all others.

        Clients still reach every broker. Brokers notice nothing but silence, as in a network that drops packets. Needs
        a cluster made with `links=True`.
        """
        sets = [set(group) for group in groups]
        if len(sets) == 1:
            sets.append(set(self._client_ports) - sets[0])
        links = self._faulty_links()
        for number, one in enumerate(sets):
            for other in sets[number + 1 :]:
                self.call(lambda one=one, other=other: links.cut(one, other))  # type: ignore[misc]

    def slow(self, broker_id: int, milliseconds: float) -> None:
        """Delay everything between a broker and the others by so many `milliseconds`, each way. Needs `links=True`."""
        links = self._faulty_links()
        self.call(lambda: links.slow(broker_id, milliseconds / 1000))

    def heal(self) -> None:
        """End all partitions and delays."""
        self.call(self._faulty_links().heal)

    def faults(self, seed: int) -> Faults:
        """Return random faults for a `with` block: kills, partitions and delays that follow from `seed`."""
        self._faulty_links()
        return Faults(self, seed)

    def wipe(self, broker_id: int) -> None:
        """Remove the data of a stopped broker, as a dead disk does. Its next start finds an empty data directory."""
        assert broker_id not in self.brokers, "stop it first"
        shutil.rmtree(self._config(broker_id).data_dir)

    def registry(self, broker_id: int) -> RegistryService:
        """Return the registry as broker `broker_id` sees it."""
        broker = self.brokers[broker_id].serving.broker
        assert broker is not None, f"broker {broker_id} is unformed"
        return broker.registry

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """Return the broker that leads a partition and accepts writes now, or None."""
        for broker_id, app in self.brokers.items():
            broker = app.serving.broker
            record = broker.registry.get_topic(topic) if broker is not None else None
            if broker is None or record is None:
                continue
            host = broker.replica_host
            place = (record.topic_id, partition)
            replica = host.partitions.get(place) or host.internal.get(place)
            if replica is not None and replica.leading:
                return broker_id
        return None

    def wait_leader(self, topic: str, partition: int = 0, other_than: int = 0) -> int:
        """Wait until a broker other than `other_than` leads a partition, and return that broker."""
        found: list[int] = []

        def led() -> bool:
            leader = self.leader_of(topic, partition)
            if leader is not None and leader != other_than:
                found.append(leader)
            return bool(found)

        self.wait_until(led)
        return found[0]

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = READY_S) -> None:
        """Return once `holds()`, which is called on the brokers' loop, is true. DeadlineExceeded after `timeout_s`."""
        self.run(_wait_until(holds, timeout_s), timeout_s + 10)

    def client(self, **settings: Any) -> Client:
        """Return a client of this cluster, which closes with the cluster."""
        from tinymq import Client  # imported here: a test may use no client

        servers = settings.pop("servers", self.servers)
        if servers.startswith("tinymq+tls://") and not {"tls_ca", "tls_dir"} & settings.keys():
            settings["tls_ca"] = str(self.certificates.authority)
        client = Client(servers, **settings)
        self._clients.append(client)
        return client

    def _faulty_links(self) -> Links:
        assert self._links is not None, "make the cluster with links=True, or use the fixture tinymq_cluster"
        return self._links

    def _jump(self, jump: Callable[[], None]) -> None:
        """Let the brokers' clock jump, on their loop, keep them registered, and have them look at what is due."""

        def on_loop() -> None:
            jump()
            for app in self.brokers.values():
                broker = app.serving.broker
                if broker is None:
                    continue
                if isinstance(broker.registry, ReplicatedRegistry):
                    broker.registry.grant_whole_leases()
                for partition in broker.replica_host.partitions.values():
                    partition.delays.look()

        self.call(on_loop)

    # ---- on the loop ---------------------------------------------------------------------------------

    def _config(self, broker_id: int) -> BrokerConfig:
        assert self._directory is not None, "enter the cluster first"
        voters = tuple(PeerAddress(i, HOST, port) for i, port in self._peer_ports.items() if i <= self.nodes)
        joins = broker_id > self.nodes
        security = self.security_of.get(broker_id, self._security)
        relays = {other: self._links.port(broker_id, other) for other in self._peer_ports} if self._links else {}
        return BrokerConfig(
            broker_id=broker_id,
            data_dir=f"{self._directory.name}/broker-{broker_id}",
            voters=() if joins else voters,
            join=tuple(f"{HOST}:{voter.port}" for voter in voters) if joins else (),
            secret=SECRET,
            listen=self.address(broker_id),
            peer_listen=f"{HOST}:{self._peer_ports[broker_id]}",
            metrics_listen=self._metrics_listen,
            security=security,
            tls_dir=str(self.certificates.of_broker(broker_id)) if security != "off" else "",
            client_certificates=self._client_certificates,
            dial=tuple(PeerAddress(other, HOST, port) for other, port in relays.items() if port is not None),
            rack=self._racks.get(broker_id, ""),
            auto_create_topics=self._auto_create_topics,
            limits=self._limits,
            timing=self._timing,
        )

    async def _start(self, broker_id: int) -> None:
        files = self._files_factory(broker_id) if self._files_factory is not None else None
        app = BrokerApp(self._config(broker_id), MachineEnv(clock=self.clock, files=files))
        await app.start()
        self.brokers[broker_id] = app

    async def _open_links(self, links: Links) -> None:
        pairs = [(a, b) for a in self._peer_ports for b in self._peer_ports if a != b]
        for (source, target), port in zip(pairs, self._ports.take(len(pairs)), strict=True):
            await links.add(source, target, port, self._peer_ports[target])

    async def _start_all(self) -> None:
        if self._links is not None:
            await self._open_links(self._links)
        await asyncio.gather(*(self._start(broker_id) for broker_id in self._client_ports))
        if not self._form:
            return
        # A broker's certificate will do where clients need one.
        tls = self.certificates.client_tls(1) if self._security == "required" else None
        await form_cluster(self.addresses, SECRET, time.time_ns() // 1000, tls=tls)
        everyone = set(self._client_ports)
        await _wait_until(lambda: all(self._knows(broker_id, everyone) for broker_id in everyone), READY_S)

    async def _kill_all(self) -> None:
        apps = list(self.brokers.values())
        self.brokers.clear()
        await asyncio.gather(*(app.kill() for app in apps))
        if self._links is not None:
            await self._links.close()

    def _knows(self, broker_id: int, others: set[int]) -> bool:
        """Return whether a broker may use every feature, and sees `others` registered with their present sessions."""
        app = self.brokers[broker_id]
        if app.state is not BrokerState.RUNNING or app.serving.broker is None:
            return False
        registry = app.serving.broker.registry
        registered = {b.broker_id: b.session for b in registry.get_all_brokers()}
        return registry.feature_level == KNOWN_LEVEL and all(
            registered.get(other) == self.brokers[other].session for other in others
        )


async def _wait_until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"the condition did not hold within {timeout_s:.0f} s")
        await asyncio.sleep(POLL_S)


def _quieten() -> None:
    """Send the brokers' logs to `logging`, unless the process configures structlog itself.

    By default, `logging` prints nothing below a warning.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )  # loggers are not cached, so that a later configuration takes effect
