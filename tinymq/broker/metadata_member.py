"""The parts that a broker runs once it belongs to a cluster: metadata group, registry, registration, partitions.

start: metadata group → registry → partitions as the registry places them → registration
stop:  leave the registry; after the leaderships are transferred, stop following it and answer all waiting calls
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from tinymq.base.clock import Clock
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import InvalidConfig
from tinymq.base.meter import Meter, Unmetered
from tinymq.base.types import METADATA_GROUP, PartitionId
from tinymq.broker.cluster.feature_level import FeatureLevelControl, announced_level
from tinymq.broker.cluster.registration import Registration
from tinymq.broker.coordinator.coordinator import Coordinator
from tinymq.broker.coordinator.peer_transaction_calls import LedPartition, PeerTransactionCalls
from tinymq.broker.coordinator.standing_questions import StandingQuestions
from tinymq.broker.coordinator.transaction_coordinator import TransactionCoordinator
from tinymq.broker.dead_letters.dead_letters import DeadLetters
from tinymq.broker.group_watch import GroupWatch
from tinymq.broker.groups.cursor_keeper import CursorKeeper
from tinymq.broker.groups.group_list import GroupList
from tinymq.broker.groups.groups import Groups
from tinymq.broker.half_messages.half_coordinator import HalfCoordinator
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.queue_joints import join
from tinymq.broker.replicas.holders import Holders
from tinymq.broker.replicas.preferred_leaders import PreferredLeaders
from tinymq.broker.replicas.quorum_watch import QuorumWatch
from tinymq.broker.replicas.replica_host import ReplicaHost
from tinymq.broker.replicas.retention_timer import Retained, RetentionTimer
from tinymq.broker.serve.broker import Broker, BrokerEnv, LossCounts
from tinymq.broker.serve.offsets import find_offset
from tinymq.broker.work.unary_worker import UnaryWorkers
from tinymq.broker.work.workers import Workers
from tinymq.format.entry import Entry
from tinymq.log.engine.store import Store
from tinymq.log.files.runner import Runner
from tinymq.raft import Group, Host, Role
from tinymq.registry.factory import make_registry
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.state.values import BrokerRecord, QueueRecord


@dataclass(frozen=True, slots=True)
class MemberEnv:
    """The parts of a process that a member uses. All are started before it and stopped after it."""

    config: BrokerConfig
    store: Store
    host: Host
    clock: Clock
    rng: random.Random
    runner: Runner
    meter: Meter = field(default_factory=Unmetered)


async def check_registry(config: BrokerConfig, store: Store, runner: Runner) -> None:
    """Raises InvalidConfig if the data directory was used with another registry than `config` names.

    A directory that names no registry yet gets this one, durably. Raises CorruptData, StorageError.
    """
    kind = config.registry.partition(":")[0]
    stored_kind = await runner.run(lambda: store.note_registry(kind))
    if stored_kind != kind:
        why = f"the topics of this data directory's cluster are in the registry {stored_kind!r}, not in {kind!r}"
        hint = f"start the broker as before, with {stored_kind}; nothing moves a cluster from one registry to another"
        raise InvalidConfig(why, hint=hint)


class MetadataMember:
    """A broker's membership in its cluster, from `start` to `stop`. It cannot be started twice."""

    def __init__(self, env: MemberEnv, record: BrokerRecord, on_broken: Callable[[BaseException], None]) -> None:
        """`record` is this broker's registration. `on_broken` gets a broken invariant, after which the broker must
        stop."""
        self._on_broken = on_broken
        config, host = env.config, env.host
        self._env = env
        self._machine = RegistryMachine()
        cluster_id = env.store.identity.cluster_id
        assert cluster_id is not None, "a member of no cluster"
        self._registry = make_registry(config, self._machine, host, cluster_id, env.clock, env.rng)
        self._deadlines = Deadlines(env.clock)
        self._replica_host = ReplicaHost(
            config.broker_id, self._registry, host, self._make_partition,
            limits=config.limits, clock=env.clock, make_internal=self._make_coordinator,
        )  # fmt: skip
        self._holders = Holders(self._registry, host.set_holders)
        self._retention_timer = RetentionTimer(env.clock, self._retained, config.timing.retention_check_s)
        record = replace(record, feature_level=announced_level(env.store.identity))
        self._registration = Registration(
            self._registry, record, env.clock, config.timing, self._replica_host.up_to_date, self._registry_reachable
        )  # once registered, this broker has applied every earlier change
        self._preferred_leaders = PreferredLeaders(
            config.broker_id, host, lambda broker_id: self._registry.get_broker(broker_id) is not None, env.clock,
            env.rng, config.timing.leader_return_s,
        )  # fmt: skip
        host.on_peer_changed = self._peer_changed
        self._quorum_watch = QuorumWatch(config.broker_id, host, env.clock)
        self.upgrade = FeatureLevelControl(
            config.broker_id,
            registry=self._registry,
            peers=host,
            store=env.store,
            voters=self._voters,
            announce=self._registration.announce,
            clock=env.clock,
            every_s=config.timing.registration_renew_s,
        )
        self._filled = False  # the metadata of this data directory is not empty
        broker_env = BrokerEnv(
            broker_id=config.broker_id,
            cluster_id=cluster_id,
            registry=self._registry,
            replica_host=self._replica_host,
            leaders=host,
            deadlines=self._deadlines,
            clock=env.clock,
            runner=env.runner,
            limits=config.limits,
            timing=config.timing,
            loss_counts=self._loss_counts,
            upgrade=self.upgrade,
            voters=self._voters,
            auto_create_partitions=config.default_partitions if config.auto_create_topics else 0,
            metadata_known=self._metadata_known,
        )
        self.broker = Broker(broker_env)
        self._make_groups(env)
        self._make_transactions(env)

    def _make_groups(self, env: MemberEnv) -> None:
        """Make the parts that keep consumer groups. They begin with `start`."""
        known = GroupList(self._registry)
        self._keeper = CursorKeeper(self._registry, known, self._replica_host, env.clock, self._find_start)
        self.groups = Groups(
            self._registry, known, self._keeper, env.host, env.clock, finishes=self._leads_metadata, voters=self._voters
        )
        self.dead_letters = DeadLetters(self.broker, self.groups, env.host, env.clock, env.meter)
        self.coordinator = Coordinator(
            self._registry, self.groups, lambda: self._replica_host.internal, env.clock, env.meter
        )
        self.workers = Workers(self.broker, known, env.clock, env.rng, env.meter)
        self.unary = UnaryWorkers(self.workers, env.clock, env.rng)
        self._keeper.leased = self.workers.leased
        join(self.workers, self.dead_letters, env.clock)
        self.group_watch = GroupWatch(self.broker, self.workers, self.dead_letters.burials, self.coordinator)

    def _make_transactions(self, env: MemberEnv) -> None:
        """Make the parts that coordinate transactions. They begin with `start`."""
        calls = PeerTransactionCalls(env.host, self._led_transactions)
        self.transactions = TransactionCoordinator(
            self._registry, lambda: self._replica_host.internal, self.broker.producer_ids, calls, env.clock, env.meter
        )
        calls.attach(self.transactions)
        self.half_messages = HalfCoordinator(
            self._registry, self.transactions, lambda: self._replica_host.internal, self.broker.producer_ids,
            leaders=calls, clock=env.clock, meter=env.meter,
        )  # fmt: skip
        self._standings = StandingQuestions(self._registry, calls.standings)

    async def start(self, first_entry: Entry) -> None:
        """Open the metadata group, and start all parts.

        Raises StorageError if the metadata group's log cannot be opened, as `check_registry`, and any error with which
        the registry does not start.
        """
        host, store = self._env.host, self._env.store
        await check_registry(self._env.config, store, self._env.runner)
        on_disk = await self._env.runner.run(store.list_groups)
        self._filled = METADATA_GROUP in on_disk
        self._machine.attach(await host.open_group(METADATA_GROUP, first_entry, self._machine))
        await self._registry.start(set(on_disk) - {METADATA_GROUP})
        self._holders.start()  # before this broker leads a partition, whose append times depend on these clocks
        upgrade = self.upgrade.start()
        for task in (
            self._replica_host.start(on_disk),
            self._registration.start(),
            self._quorum_watch.start(),
            upgrade,
            *self.groups.start(),
            self.coordinator.start(),
            self.transactions.start(),
            self.half_messages.start(),
            self.dead_letters.start(),
            self.workers.start(),
        ):
            task.add_done_callback(self._ended)
        self._retention_timer.start()

    async def wait_ready(self) -> None:
        """Return once this broker is registered and its replicas are open."""
        await self._registration.registered.wait()
        await self._replica_host.opened.wait()

    async def leave(self, *, politely: bool) -> None:
        """Stop renewing the registration, and stop preferred-leader elections. `politely` also ends the registration
        now."""
        self._preferred_leaders.stop()
        await self._registration.stop(leave=politely)

    async def stop(self) -> None:
        """Stop following the registry, and answer all waiting calls with an error."""
        self._retention_timer.stop()
        await self.group_watch.stop()
        await self.dead_letters.stop()
        await self.workers.stop()
        await self.coordinator.stop()
        await self.half_messages.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.upgrade.stop()
        await self._quorum_watch.stop()
        await self._registry.stop()
        await self._replica_host.stop()
        await self._standings.stop()

    @property
    def reason(self) -> str:
        """Why this broker's metadata may be out of date, for people; "": there is no known reason."""
        return self._registry.reason

    def group_changed(self, group: Group) -> None:
        """Note that the role, leader or term of a group has changed."""
        self._replica_host.group_changed(group.id)
        self.groups.group_changed(group.id)
        self.dead_letters.group_changed(group.id)
        self._preferred_leaders.group_changed(group)

    def _loss_counts(self) -> LossCounts:
        return LossCounts(self._env.store.memory_bytes, self._quorum_watch.recovered, self._quorum_watch.lost)

    def _peer_changed(self, broker_id: int, alive: bool) -> None:
        self._preferred_leaders.peer_changed(broker_id, alive)
        self._registration.peers_changed()

    def _registry_reachable(self) -> bool:
        """Whether a majority of the voters is alive. Only the replicated registry depends on them."""
        config, voters = self._env.config, self._voters()
        alive = sum(voter == config.broker_id or self._env.host.alive(voter) for voter in voters)
        return config.registry != "replicated" or 2 * alive > len(voters)

    def _voters(self) -> list[int]:
        metadata = self._env.host.groups.get(METADATA_GROUP)
        return [] if metadata is None else [replica.broker_id for replica in metadata.membership.replicas]

    def _metadata_known(self) -> bool:
        if self._env.config.registry != "replicated":
            return True  # such a registry is read completely before this broker serves
        metadata = self._env.host.groups.get(METADATA_GROUP)
        if metadata is not None and metadata.role is Role.OBSERVER and not metadata.repairing:
            return self._filled or self._registration.registered.is_set()  # once registered, it has applied all
        return metadata is not None and metadata.role in (Role.LEADER, Role.CANDIDATE, Role.FOLLOWER)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_broken(error)

    def _make_partition(self, queue: QueueRecord) -> Partition:
        soon = asyncio.get_running_loop().call_soon
        partition = Partition(
            f"{queue.topic}/{queue.partition}", self._deadlines, soon, self.broker.address_of,
            limits=self.broker.limits, totals=self.broker.delayed_totals, staged_totals=self.broker.staged_totals,
            ask_coordinator=partial(self._standings.ask, PartitionId(queue.topic_id, queue.partition)),
        )  # fmt: skip
        partition.delays.late_us = lambda late_us: self._env.meter.published(late_us / 1e6)
        partition.copier.on_copied = self._env.meter.copied
        partition.group_gate.expected = lambda: self._keeper.expected(queue.topic)
        partition.group_gate.on_missing = lambda: self.groups.group_changed(queue.group)
        return partition

    def _make_coordinator(self, queue: QueueRecord) -> CoordinatorReplica:
        replica = CoordinatorReplica(f"{queue.topic}/{queue.partition}", self.broker.address_of)
        replica.on_change, replica.on_decided = self.coordinator.on_change, self.transactions.on_decided
        replica.on_sink_decided = self.transactions.sinks.on_decided
        replica.on_half, replica.on_role = self.half_messages.on_changed, self._coordinator_role
        return replica

    def _coordinator_role(self, replica: CoordinatorReplica) -> None:
        self.coordinator.on_role(replica)
        self.transactions.on_role(replica)
        self.half_messages.on_role(replica)

    def _led_transactions(self, place: PartitionId) -> LedPartition | None:
        partition = self._replica_host.get(place.topic_id, place.partition)
        return None if partition is None else partition.transactions

    def _retained(self) -> Iterable[Retained]:
        return (*self._replica_host.partitions.values(), *self._replica_host.internal.values())

    async def _find_start(self, partition: Partition, start_us: int) -> int:
        return (await find_offset(partition, start_us, True, self.broker.unpack_queue)).offset

    def _leads_metadata(self) -> bool:
        metadata = self._env.host.groups.get(METADATA_GROUP)
        return metadata is not None and metadata.is_leader
