"""Which RegistryService a broker stands on: `BrokerConfig.registry`, the one setting that says so.

replicated                       a Raft group over the brokers' metadata voters (the default)
memory                           of one broker alone, gone with its process
zookeeper://host:port,…/chroot   a ZooKeeper ensemble
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Protocol

from tinymq.clock import Clock
from tinymq.config import ZOOKEEPER, BrokerConfig, parse_zookeeper
from tinymq.errors import InvalidConfig
from tinymq.registry.machine import RegistryMachine
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.replicated import Brokers, ReplicatedRegistry
from tinymq.registry.service import RegistryService
from tinymq.types import GroupId


class Registry(RegistryService, Protocol):
    """A RegistryService as its broker runs it."""

    async def start(self, on_disk: Collection[GroupId]) -> None:
        """Take up work; `on_disk`: the partitions whose data this broker has. Called once, when the metadata group is
        open. Raises a TinymqError when it cannot, and then the broker does not start."""
        ...

    @property
    def reason(self) -> str:
        """What keeps reads from being up to date, for people; "": nothing that is known."""
        ...

    async def stop(self) -> None:
        """End what runs by itself. Reads go on. Again: nothing."""
        ...


def choose(
    config: BrokerConfig, machine: RegistryMachine, brokers: Brokers, cluster_id: bytes, clock: Clock,
    rng: random.Random,
) -> Registry:  # fmt: skip
    """The registry that `config` names; not started. `machine`: of the metadata group, whoever uses it; it stays empty
    under any registry but the replicated one."""
    if config.registry == "memory":
        return MemoryRegistry(clock, rng, config.timing)
    if config.registry.startswith(ZOOKEEPER):
        return _zookeeper(config, cluster_id, clock, rng)
    return ReplicatedRegistry(config.broker_id, machine, brokers, clock, rng, config.timing)


def _zookeeper(config: BrokerConfig, cluster_id: bytes, clock: Clock, rng: random.Random) -> Registry:
    try:  # only who chooses it needs its client
        from tinymq.registry.zookeeper import ZookeeperRegistry
        from tinymq.registry.zookeeper_session import ZookeeperSession
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        hint = "install it: pip install 'tinymq[zookeeper]'"
        raise InvalidConfig("a registry in ZooKeeper needs kazoo", hint=hint) from None
    session = ZookeeperSession(parse_zookeeper(config.registry), config.timing.registration_lease_s, clock)
    return ZookeeperRegistry(session, cluster_id, clock, rng, config.timing)
