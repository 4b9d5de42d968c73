"""Wires one broker process: configuration in, a running broker out. It decides nothing that another room could decide.

start: data directory → connections between brokers → client port → once in a cluster: metadata, registry, partitions
stop:  leave the registry → transfer leaderships → answer waiting calls → close ports → close the data directory
"""

from __future__ import annotations

import asyncio
import math
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tinymq.base import extras

with extras.required("a broker (tinymq.app.broker_app)"):  # before imports that need more than the base install
    import structlog

from tinymq.access.audit_file import AuditLog, open_audit_log
from tinymq.access.gate import make_gate
from tinymq.app.broker_tls import make_tls
from tinymq.app.machine_env import MachineEnv
from tinymq.base.config import BrokerConfig, format_address, parse_address
from tinymq.base.errors import BrokenInvariant, TinymqError
from tinymq.base.private_files import open_to_others
from tinymq.base.types import METADATA_GROUP
from tinymq.broker.cluster.bootstrap import Bootstrap
from tinymq.broker.cluster.formation import Formation
from tinymq.broker.metadata_member import MemberEnv, MetadataMember, check_registry
from tinymq.broker.replicas.recovery import Recovery
from tinymq.broker.replicas.transfers import Transfers
from tinymq.broker.serve.quotas import Quotas
from tinymq.format.entry import Entry
from tinymq.gateway.leader_calls import LeaderCalls
from tinymq.gateway.queue_service import QueueService
from tinymq.log.engine.store import Store
from tinymq.log.files.files import RealFiles
from tinymq.log.files.runner import ThreadRunner
from tinymq.metrics.endpoint import Endpoint
from tinymq.net.connection_limits import Places
from tinymq.raft import Group, GroupStatus, Host
from tinymq.raft.net.tcp import TcpTransport
from tinymq.raft.net.transport import Transport
from tinymq.registry.state.values import BrokerRecord
from tinymq.rpc.common.broker_state import BrokerState, Serving
from tinymq.rpc.server.ports import ClientPorts
from tinymq.rpc.server.server import Services
from tinymq.rpc.server.stream_server import StreamServer
from tinymq.rpc.services.admin import AdminService
from tinymq.rpc.services.broker import BrokerService
from tinymq.rpc.services.channels import ChannelsService
from tinymq.rpc.services.dead_letters import DeadLettersService
from tinymq.rpc.services.groups import GroupsService
from tinymq.rpc.services.half_messages import HalfMessagesService
from tinymq.rpc.services.schedules import SchedulesService
from tinymq.rpc.services.transactions import TransactionsService
from tinymq.rpc.services.users import UsersService
from tinymq.rpc.services.workers import WorkersService

EXECUTOR_THREADS = 8
DISK_GRACE_S = 5.0  # for calls in threads to end: what they write must not appear after a stop
STREAM_GRACE_S = 0.3  # for streams to send what was answered; they never end by themselves

logger = structlog.get_logger("tinymq.app.broker_app")


class BrokerApp:
    """A broker from `start` to `stop` or `kill`. It cannot be started twice. All calls on one loop."""

    def __init__(self, config: BrokerConfig, env: MachineEnv | None = None) -> None:
        env = env or MachineEnv()
        self.config = config
        self._clock = env.clock
        self.gate = make_gate(config, env.clock, self._spawn)
        self.serving = Serving(self.gate, config.secret)
        self.metrics = Endpoint(self, env.clock)
        self.serving.meter = self.metrics.meter
        self._rng = env.rng
        self.session = self._rng.getrandbits(63) | 1  # of this process start, which is a registration of its own
        self._executor = ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix=f"tinymq-{config.broker_id}")
        self._threads = ThreadRunner(self._executor)
        self._runner = env.runner or self._threads
        self._files = env.files
        self._env = env
        self.quotas = self.serving.quotas = Quotas(env.clock, config.limits, self.gate.quota_by_name)
        self.quotas.tell(self.metrics.meter.throttled)
        self._tls = make_tls(config)
        self._connector = env.connector(config.limits, self._tls.forwarding if self._tls is not None else None)
        self._gateway: QueueService | None = None
        self.audit_log: AuditLog | None = None
        self._failed: asyncio.Future[TinymqError] | None = None
        self._store: Store | None = None
        self._transport: Transport | None = None
        self._host: Host | None = None
        self._ports: ClientPorts | None = None
        self._member: MetadataMember | None = None
        self._bootstrap: Bootstrap | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- state and addresses -------------------------------------------------------------------------

    @property
    def state(self) -> BrokerState:
        return self.serving.state

    @property
    def address(self) -> str:
        """The address for clients, host:port."""
        return self._ports.address if self._ports is not None else self.config.advertise or self.config.listen

    @property
    def peer_address(self) -> str:
        """The address for other brokers, host:port."""
        if self.config.peer_advertise:
            return self.config.peer_advertise
        bound = self._transport.address if isinstance(self._transport, TcpTransport) else None
        return format_address(*bound) if bound is not None else self.config.peer_listen

    @property
    def host(self) -> Host:
        assert self._host is not None, "not started"
        return self._host

    def replica_statuses(self) -> list[GroupStatus]:
        """The status of every replica on this broker, the metadata group's included."""
        host = self._host
        return [host.status(group) for group in host.groups.values()] if host is not None else []

    def partition_name(self, group: str) -> str | None:
        """Topic and partition, as in orders/3, of a group by its printed id; None: the registry does not know it."""
        prefix, _, partition = group.partition("/")
        topics = self._member.broker.registry.get_all_topics() if self._member is not None else []
        return next((f"{each.name}/{partition}" for each in topics if each.topic_id.hex().startswith(prefix)), None)

    def metadata_leader(self) -> int:
        """The broker that leads the metadata group; 0: not known."""
        leader = self._host.leader_of(METADATA_GROUP) if self._host is not None else None
        return leader[0] if leader is not None else 0

    def metadata_voters(self) -> list[int]:
        """The brokers that the metadata group lists, dead or alive. Empty before this broker belongs to a cluster."""
        group = self._host.groups.get(METADATA_GROUP) if self._host is not None else None
        return sorted(replica.broker_id for replica in group.membership.replicas) if group is not None else []

    def heard_ages_s(self) -> dict[int, float]:
        """Map every other broker that this one has heard to the seconds since then."""
        return self._host.failure_detector.ages_s(self._clock.monotonic()) if self._host is not None else {}

    def ports(self) -> list[Places]:
        """The places of all ports that this broker listens on."""
        clients = self._ports.places if self._ports is not None else []
        peers = self._transport.places if isinstance(self._transport, TcpTransport) else None
        return [*clients, *(places for places in (peers, self.metrics.places) if places is not None)]

    def tail_bytes(self) -> int:
        """The bytes that log entries in memory take."""
        return self._store.tails.bytes if self._store is not None else 0

    @property
    def reason(self) -> str:
        """Why the broker is in its state, for people: what keeps it from a cluster, or why its metadata may be out of
        date. "" if there is no reason."""
        no_cluster = self._bootstrap.reason if self._bootstrap is not None else ""
        return no_cluster or (self._member.reason if self._member is not None else "")

    async def wait_failed(self) -> TinymqError:
        """Return the error after which the broker cannot serve and must stop, once there is one."""
        assert self._failed is not None, "not started"
        return await asyncio.shield(self._failed)

    # ---- start ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to serve. Raises FolderInUse, WrongBroker, PortInUse, other StorageErrors; then nothing stays open."""
        self._failed = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self.kill()
            raise

    async def _start(self) -> None:
        config = self.config
        if self._files is None:
            self._files = await self._runner.run(lambda: RealFiles(Path(config.data_dir)))
            self.audit_log = open_audit_log(config, self.gate.audit, self._runner, self._clock, self._spawn)
            if mode := open_to_others(Path(config.data_dir)):
                logger.warning("data_dir_open_to_others", broker=config.broker_id, path=config.data_dir, mode=mode)
        store = self._store = await Store.open(
            self._files, self._runner, self._clock, broker_id=config.broker_id, limits=config.limits, rng=self._rng,
            idle_mark_s=config.timing.idle_mark_s,
        )  # fmt: skip
        formation = Formation(config.broker_id, [v.broker_id for v in config.voters], store, self._files, self._runner)
        if await formation.load() is not None:
            await check_registry(config, store, self._runner)  # before another broker hears of this one
        self._transport = (self._env.transport or self._tcp)(store, self.session)
        host = self._host = Host(
            broker_id=config.broker_id, store=store, transport=self._transport, clock=self._clock, rng=self._rng,
            limits=config.limits, timing=config.timing,
        )  # fmt: skip
        host.on_failed = self._fail
        host.on_group_changed = self._group_changed
        store.writer.on_synced = self.metrics.meter.synced
        self._bootstrap = Bootstrap(config, formation, host, self._transport, self._clock, self._spawn)
        self._bootstrap.open(lambda: self.peer_address)
        await host.start()
        tls = self._tls
        await self.metrics.start(host, tls.clients if tls is not None else None)
        recovery = Recovery(host, self._clock, self._rng.randbytes)
        transfers = Transfers(host, self._clock, config.timing.transfer_timeout_s)
        admin = AdminService(self.serving, formation, self, recovery, transfers, config.secret)
        services = self._services(admin, UsersService(self.serving, recovery, config.secret))
        streams = StreamServer(
            config.limits, services.broker, tls.clients if tls is not None else None, self._env.acceptor
        )
        server = self._env.server(config.limits, services, tls.grpc if tls is not None else None)
        self._ports = ClientPorts(config, server, streams)
        await self._ports.start()
        self.serving.stream_address = self._ports.stream_address
        env = MemberEnv(config, store, host, self._clock, self._rng, self._runner, meter=self.metrics.meter)
        if formation.first_entry is not None:  # by an earlier process, or since `open`
            await self._run(env, formation.first_entry)
        else:
            self._enter(BrokerState.UNFORMED)
            formation.on_formed = lambda entry: self._formed(env, entry)
        self._bootstrap.enter()

    def _services(self, admin: AdminService, users: UsersService) -> Services:
        config = self.config
        age_s_max = self._tls.age_s_max if self._tls is not None else math.inf
        broker = BrokerService(self.serving, config.limits, self.quotas, age_s_max)
        marks = self.serving.marks
        leaders = LeaderCalls(
            self.serving, self._connector, marks, metadata=broker.metadata, rng=self._rng, elsewhere=config.forward
        )  # fmt: skip
        self._gateway = QueueService(self.serving, leaders, marks, self.quotas, self._rng.randbytes)
        return Services(
            broker=broker,
            admin=admin,
            channels=ChannelsService(self.serving),
            groups=GroupsService(self.serving),
            dead_letters=DeadLettersService(self.serving),
            workers=WorkersService(self.serving, age_s_max),
            schedules=SchedulesService(self.serving),
            transactions=TransactionsService(self.serving),
            half_messages=HalfMessagesService(self.serving),
            users=users,
            queue=self._gateway,
        )

    def _formed(self, env: MemberEnv, first: Entry) -> None:
        if self.state is BrokerState.UNFORMED:  # otherwise it is stopping, and continues at its next start
            self._spawn(self._run(env, first))

    def _tcp(self, store: Store, session: int) -> Transport:
        config = self.config
        return TcpTransport(
            lambda: store.identity,
            config.secret,
            session,
            parse_address(config.peer_listen),
            clock=self._clock,
            rng=random.Random(self._rng.getrandbits(64)),
            limits=config.limits,
            tls=self._tls.peers if self._tls is not None else None,
        )

    async def _run(self, env: MemberEnv, first: Entry) -> None:
        """Take part in the cluster to which the data directory belongs."""
        self._enter(BrokerState.STARTING)
        config, incarnation = self.config, env.store.identity.incarnation
        record = BrokerRecord(
            config.broker_id, incarnation, self.session, self.address, self.peer_address, config.rack
        )  # fmt: skip
        member = self._member = MetadataMember(env, record, self._on_broken)
        await member.start(first)
        assert self._bootstrap is not None
        self._bootstrap.follow(member.broker.registry)
        self.gate.follow(member.broker.registry)  # before anything is served
        self.serving.broker, self.serving.groups, self.serving.unary = member.broker, member.groups, member.unary
        self.serving.coordinator, self.serving.transactions = member.coordinator, member.transactions
        self.serving.half_messages, self.serving.workers = member.half_messages, member.workers
        self.serving.letters, self.serving.group_watch = member.dead_letters, member.group_watch
        self._enter(BrokerState.RUNNING)
        self._spawn(self._serve_once_ready(member))

    async def _serve_once_ready(self, member: MetadataMember) -> None:
        await member.wait_ready()
        if self._ports is not None and self.state is BrokerState.RUNNING:
            await self._ports.set_serving(True)

    # ---- stop ----------------------------------------------------------------------------------------

    async def stop(self, transfer: bool = True) -> None:
        """Stop cleanly: clients and other brokers lose nothing and wait for nothing. Call it after every `start`."""
        failed = self.state is BrokerState.FAILED
        if not failed:
            self._enter(BrokerState.STOPPING)
        if self._ports is not None:
            await self._ports.set_serving(False)
        if self._member is not None:
            await self._member.leave(politely=transfer and not failed)
        if self._host is not None:
            await self._host.stop(transfer=transfer and not failed and self._has_company(self._host))
        await self._end_tasks()
        if self._member is not None:
            await self._member.stop()
        if self._gateway is not None:
            await self._gateway.close()
        if self._ports is not None:
            await self._ports.stop(STREAM_GRACE_S)
        if self.serving.broker is not None:
            await self.serving.broker.close()
        if self.audit_log is not None:
            await self.audit_log.close()
        await self.metrics.stop()
        if self._store is not None:
            await (self._store.abandon() if failed else self._store.close())
        await self._threads.drain(DISK_GRACE_S)
        self._executor.shutdown(wait=False)

    def _has_company(self, host: Host) -> bool:
        """Whether leaderships have a broker to go to. Without one, a transfer would only delay the stop."""
        others = {r.broker_id for group in host.groups.values() for r in group.membership.replicas}
        return any(host.alive(broker_id) for broker_id in others - {self.config.broker_id})

    async def kill(self) -> None:
        """Stop as a crash would, without transfers, messages or writes. For tests, and for a start that failed."""
        if self._ports is not None:
            await self._ports.stop(None)
        if self._gateway is not None:
            await self._gateway.close()
        if self.serving.broker is not None:
            await self.serving.broker.close()
        await self.metrics.stop()
        if self._transport is not None:
            await self._transport.stop()
        await self._end_tasks()
        if self._member is not None:
            await self._member.leave(politely=False)
            await self._member.stop()
        if self._store is not None:
            await self._store.abandon()
        if self._host is not None:
            await self._host.stop(transfer=False)
        await self._threads.drain(DISK_GRACE_S)  # a crash would end the threads, too
        self._executor.shutdown(wait=False)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- events --------------------------------------------------------------------------------------

    def _enter(self, state: BrokerState) -> None:
        self.serving.state = state
        logger.info("broker_state", broker=self.config.broker_id, state=state.value)

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_broken(error)

    def _on_broken(self, error: BaseException) -> None:
        """Fail, because a task ended with an error and the broker cannot go on without it."""
        if isinstance(error, TinymqError):
            self._fail(error)
        else:
            logger.error("broken_invariant", broker=self.config.broker_id, exc_info=error)
            self._fail(BrokenInvariant(f"broken invariant: {error!r}"))

    def _fail(self, error: TinymqError) -> None:
        """Serve nothing from now on: the disk refused a write, or an invariant is broken."""
        logger.error("broker_failed", broker=self.config.broker_id, error=error.code, reason=str(error))
        self._enter(BrokerState.FAILED)
        if self._ports is not None:
            self._spawn(self._ports.set_serving(False))
        if self._member is not None:
            self._spawn(self._member.leave(politely=False))
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    def _group_changed(self, group: Group) -> None:
        self.metrics.group_changed(group)
        if self._member is not None:
            self._member.group_changed(group)
