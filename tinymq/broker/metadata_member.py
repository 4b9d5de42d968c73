"""What a broker runs once its folder belongs to a cluster: metadata group, registry, registration, partitions.

start: metadata group → registry → partitions as the registry says → registration
stop:  leave the registry; then, leaderships handed over, follow it no more and tell who waits
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tinymq.base.clock import Clock
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import InvalidConfig
from tinymq.base.types import METADATA_GROUP
from tinymq.broker.cluster.feature_level import FeatureLevelControl, announced_level
from tinymq.broker.cluster.registration import Registration
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.replicas.holders import Holders
from tinymq.broker.replicas.preferred_leaders import PreferredLeaders
from tinymq.broker.replicas.quorum_watch import QuorumWatch
from tinymq.broker.replicas.replica_host import ReplicaHost
from tinymq.broker.replicas.retention_timer import RetentionTimer
from tinymq.broker.serve.broker import Broker, BrokerEnv, LossCounts
from tinymq.format.entry import Entry
from tinymq.log.engine.store import Store
from tinymq.log.files.runner import Runner
from tinymq.raft import Group, Host, Role
from tinymq.registry.factory import make_registry
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.state.values import BrokerRecord, QueueRecord


@dataclass(frozen=True, slots=True)
class MemberEnv:
    """What a member is made of; all of it is started before and stopped after it."""

    config: BrokerConfig
    store: Store
    host: Host
    clock: Clock
    rng: random.Random
    runner: Runner


class MetadataMember:
    """From `start` to `stop`; not to be started twice."""

    def __init__(self, means: MemberEnv, record: BrokerRecord, on_broken: Callable[[BaseException], None]) -> None:
        """`record`: what this broker registers as. `on_broken`: a broken invariant, after which it must stop."""
        self._on_broken = on_broken
        config, host = means.config, means.host
        self._means = means
        self._machine = RegistryMachine()
        cluster_id = means.store.identity.cluster_id
        assert cluster_id is not None, "a member of no cluster"
        self._registry = make_registry(config, self._machine, host, cluster_id, means.clock, means.rng)
        self._deadlines = Deadlines(means.clock)
        self._replica_host = ReplicaHost(
            config.broker_id, self._registry, host, self._make_partition, config.limits, means.clock
        )
        self._holders = Holders(self._registry, host.set_holders)
        self._retaining = RetentionTimer(
            means.clock, lambda: self._replica_host.partitions.values(), config.timing.retention_check_s
        )
        record = replace(record, feature_level=announced_level(means.store.identity))
        self._registration = Registration(
            self._registry, record, means.clock, config.timing, self._replica_host.up_to_date, self._registry_reachable
        )  # whoever is registered has applied all that was done before
        self._homecoming = PreferredLeaders(
            config.broker_id, host, lambda broker_id: self._registry.get_broker(broker_id) is not None, means.clock,
            means.rng, config.timing.leader_return_s,
        )  # fmt: skip
        host.on_peer_changed = self._peer_changed
        self._revival = QuorumWatch(config.broker_id, host, means.clock)
        self.upgrade = FeatureLevelControl(
            config.broker_id, self._registry, host, means.store, self._voters, self._registration.announce, means.clock,
            config.timing.registration_renew_s,
        )  # fmt: skip
        self._filled = False  # the metadata here is not empty: an earlier process had it
        env = BrokerEnv(
            broker_id=config.broker_id,
            cluster_id=cluster_id,
            registry=self._registry,
            replica_host=self._replica_host,
            leaders=host,
            deadlines=self._deadlines,
            clock=means.clock,
            runner=means.runner,
            limits=config.limits,
            timing=config.timing,
            loss_counts=self._loss_counts,
            upgrade=self.upgrade,
            voters=self._voters,
            metadata_known=self._metadata_known,
        )
        self.broker = Broker(env)

    async def start(self, first_entry: Entry) -> None:
        """Take part. Raises StorageError when the metadata group's log cannot be opened, and what keeps the registry
        from starting."""
        host, store = self._means.host, self._means.store
        kind = self._means.config.registry.partition(":")[0]
        noted = await self._means.runner.run(lambda: store.note_registry(kind))
        if noted != kind:
            why = f"the topics of this data folder's cluster are in the registry {noted!r}, not in {kind!r}"
            hint = f"start the broker as before, with {noted}; nothing moves a cluster from one registry to another"
            raise InvalidConfig(why, hint=hint)
        on_disk = await self._means.runner.run(store.list_groups)
        self._filled = METADATA_GROUP in on_disk
        self._machine.attach(await host.open_group(METADATA_GROUP, first_entry, self._machine))
        await self._registry.start(set(on_disk) - {METADATA_GROUP})
        self._holders.start()  # before this broker leads a partition, whose append times depend on these clocks
        upgrade = self.upgrade.start()
        for task in (self._replica_host.start(on_disk), self._registration.start(), self._revival.start(), upgrade):
            task.add_done_callback(self._ended)
        self._retaining.start()

    async def wait_ready(self) -> None:
        """Return once the registry counts this broker among the living, and what it holds is open."""
        await self._registration.registered.wait()
        await self._replica_host.opened.wait()

    async def leave(self, *, politely: bool) -> None:
        """Renew the registration no more; politely, end it now. What is led here is given back to nobody any more."""
        self._homecoming.stop()
        await self._registration.stop(leave=politely)

    async def stop(self) -> None:
        """Follow the registry no more; who waits on a partition is told that the broker stops."""
        self._retaining.stop()
        await self.upgrade.stop()
        await self._revival.stop()
        await self._registry.stop()
        await self._replica_host.stop()

    @property
    def reason(self) -> str:
        """What keeps this broker's metadata from being up to date, for people; "": nothing that is known."""
        return self._registry.reason

    def group_changed(self, group: Group) -> None:
        """The host says that a group's role, leader or term is another."""
        self._replica_host.group_changed(group.id)
        self._homecoming.group_changed(group)

    def _loss_counts(self) -> LossCounts:
        return LossCounts(self._means.store.memory_bytes, self._revival.recovered, self._revival.lost)

    def _peer_changed(self, broker_id: int, alive: bool) -> None:
        self._homecoming.peer_changed(broker_id, alive)
        self._registration.peers_changed()

    def _registry_reachable(self) -> bool:
        """Is a majority of the voters alive, as far as this broker knows? Only the replicated registry depends on
        them."""
        config, voters = self._means.config, self._voters()
        alive = sum(voter == config.broker_id or self._means.host.alive(voter) for voter in voters)
        return config.registry != "replicated" or 2 * alive > len(voters)

    def _voters(self) -> list[int]:
        metadata = self._means.host.groups.get(METADATA_GROUP)
        return [] if metadata is None else [replica.broker_id for replica in metadata.membership.replicas]

    def _metadata_known(self) -> bool:
        if self._means.config.registry != "replicated":
            return True  # such a registry was read whole before anybody is served
        metadata = self._means.host.groups.get(METADATA_GROUP)
        if metadata is not None and metadata.role is Role.OBSERVER and not metadata.repairing:
            return self._filled or self._registration.registered.is_set()  # who is registered has applied all before
        return metadata is not None and metadata.role in (Role.LEADER, Role.CANDIDATE, Role.FOLLOWER)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_broken(error)

    def _make_partition(self, queue: QueueRecord) -> Partition:
        soon = asyncio.get_running_loop().call_soon
        return Partition(f"{queue.topic}/{queue.partition}", self._deadlines, soon, self.broker.address_of)
