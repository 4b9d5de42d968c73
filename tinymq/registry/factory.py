"""Makes the registry that a broker's setting `registry` names.

replicated                       a Raft group over the brokers' metadata voters (the default)
memory                           in the process of a single broker, and gone with it
zookeeper://host:port,…/chroot   a ZooKeeper ensemble
SCHEME://…                       the registry that an installed package, or `plug_in`, offers under that scheme

A package offers a registry by an entry point of the group `tinymq.registry`: the entry point's name is the scheme, and
its object is an `OpenRegistry`. docs/registry.md walks through an example.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from tinymq.base.clock import Clock
from tinymq.base.config import SCHEME, BrokerConfig, Timing, parse_zookeeper
from tinymq.base.errors import InvalidConfig
from tinymq.base.extras import install_command
from tinymq.base.types import GroupId
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.raft_group.replicated import Brokers, ReplicatedRegistry
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.registry.service import RegistryService

ENTRY_POINTS = "tinymq.registry"


class Registry(RegistryService, Protocol):
    """A RegistryService as its broker runs it."""

    async def start(self, on_disk: Collection[GroupId]) -> None:
        """Start to work. `on_disk` are the partitions whose data this broker has.

        Called once, when the metadata group is open. A TinymqError keeps the broker from starting.
        """
        ...

    @property
    def reason(self) -> str:
        """Why reads may be out of date, for people; "": there is no known reason."""
        ...

    async def stop(self) -> None:
        """End all background tasks. Reads still work. A second call does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class RegistryContext:
    """The values of its broker that a registry may need."""

    broker_id: int
    cluster_id: bytes
    clock: Clock
    rng: random.Random
    timing: Timing


OpenRegistry = Callable[[str, RegistryContext], Registry]
"""Makes the registry that a URL names, without starting it. The URL may hold a password, so do not show it. Raises
InvalidConfig for a URL that is not valid for this scheme."""

_plugged_in: dict[str, OpenRegistry] = {}


def plug_in(scheme: str, open_registry: OpenRegistry) -> None:
    """Make brokers of this process open registries of `scheme` with `open_registry`, which takes precedence over an
    entry point. Raises InvalidConfig for a text that is not a scheme, or for one of tinymq's own schemes."""
    if not SCHEME.fullmatch(f"{scheme}://") or scheme in ("replicated", "memory", "zookeeper"):
        raise InvalidConfig(
            f"{scheme[:40]!r} is not a scheme that can be plugged in",
            hint="use 1 to 32 of a-z, and none of tinymq's own schemes",
        )
    _plugged_in[scheme] = open_registry


def make_registry(
    config: BrokerConfig, machine: RegistryMachine, brokers: Brokers, cluster_id: bytes, clock: Clock,
    rng: random.Random,
) -> Registry:  # fmt: skip
    """Make the registry that `config` names, without starting it. Raises InvalidConfig.

    `machine` is the state machine of the metadata group. Only the replicated registry uses it; with any other registry
    it stays empty.
    """
    context = RegistryContext(config.broker_id, cluster_id, clock, rng, config.timing)
    if config.registry == "memory":
        return MemoryRegistry(clock, rng, config.timing)
    if config.registry == "replicated":
        return ReplicatedRegistry(config.broker_id, machine, brokers, clock, rng, config.timing)
    return _opener(config.registry.partition(":")[0])(config.registry, context)


def _opener(scheme: str) -> OpenRegistry:
    if scheme == "zookeeper":
        return _zookeeper
    if scheme in _plugged_in:
        return _plugged_in[scheme]
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if scheme not in offered:
        schemes = ", ".join(sorted({"zookeeper", *_plugged_in, *offered}))
        hint = f"install the package that offers it as an entry point of {ENTRY_POINTS}; known schemes: {schemes}"
        raise InvalidConfig(f"no registry is known for URLs that begin with {scheme}://", hint=hint)
    try:
        opener: OpenRegistry = offered[scheme].load()
    except (ImportError, AttributeError) as error:
        why = f"the registry for {scheme}:// cannot be loaded: {type(error).__name__}: {error}"
        raise InvalidConfig(why, hint=f"the entry point is {offered[scheme].value}, of an installed package") from error
    return opener


def _zookeeper(url: str, context: RegistryContext) -> Registry:
    try:  # only a broker that uses ZooKeeper needs its client
        from tinymq.registry.zookeeper.registry import ZookeeperRegistry
        from tinymq.registry.zookeeper.session import ZookeeperSession
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        hint = f"install the extra 'zookeeper': {install_command('zookeeper')}"
        raise InvalidConfig("a registry in ZooKeeper needs kazoo", hint=hint) from None
    session = ZookeeperSession(parse_zookeeper(url), context.timing.registration_lease_s, context.clock)
    return ZookeeperRegistry(session, context.cluster_id, context.clock, context.rng, context.timing)
