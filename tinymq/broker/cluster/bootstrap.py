"""How this broker comes into its cluster, and lets others in: wires formation, joining and mesh. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import InvalidConfig, Unavailable
from tinymq.broker.cluster.address_book import AddressBook
from tinymq.broker.cluster.formation import Formation
from tinymq.broker.cluster.join import JOIN_REPLICATED, ClusterSearch, Join, invite
from tinymq.raft import Host
from tinymq.raft.net.transport import Invitation, PeerIdentity, Transport
from tinymq.registry.service import RegistryService

logger = structlog.get_logger("tinymq.broker")


class Bootstrap:
    """`open` it before the host starts, `enter` after. `spawn` runs work; what that raises ends the broker."""

    def __init__(
        self, config: BrokerConfig, formation: Formation, host: Host, transport: Transport, clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._formation = formation
        self._host = host
        self._transport = transport
        self._spawn = spawn
        self._mesh = AddressBook(config.broker_id, transport, host.alive, config.dial)
        self._joining: Join | None = None
        self._seeking: ClusterSearch | None = None
        if config.join:
            self._seeking = ClusterSearch(formation, transport.ask, config.join, clock, config.timing.join_s)
        elif formation.first_entry is None:
            self._joining = Join(formation, [v.broker_id for v in config.voters], spawn)

    @property
    def reason(self) -> str:
        """Why this broker belongs to no cluster, for people; "" once it does."""
        asking = self._joining or self._seeking
        return asking.reason if asking is not None else ""

    def open(self, here: Callable[[], str]) -> None:
        """Know whom to dial, tell who connects where this broker is, and invite who belongs to no cluster. Raises
        InvalidConfig when nobody is named whom it could ask, or dial."""
        config, formation, mesh = self._config, self._formation, self._mesh
        if not (config.voters or config.join or formation.known_voters):
            hint = "name the voters, this broker among them, or with --join brokers of a cluster that is there already"
            raise InvalidConfig(f"broker {config.broker_id} knows no other broker, nor does its data folder", hint=hint)
        mesh.configure(config.voters)
        mesh.learn(formation.known_voters)
        self._host.introduce(here, mesh.told)
        self._transport.invite = self._invite
        if self._joining is not None:
            self._transport.on_invited = self._joining.heard

    def _invite(self, stranger: PeerIdentity) -> Invitation:
        """What a broker is told that belongs to no cluster. Raises as `invite`, and InvalidConfig."""
        config, mesh = self._config, self._mesh
        if config.registry == "memory":
            why = f"broker {config.broker_id} keeps its registry in memory, and is alone in its cluster"
            raise InvalidConfig(why, hint=JOIN_REPLICATED)
        return invite(self._formation, self._host, self._transport.identity, mesh.voters, mesh.has_room, stranger)

    def enter(self) -> None:
        """Ask for the cluster, where configuration names whom."""
        if self._seeking is not None:
            self._spawn(self._seek(self._seeking))

    async def _seek(self, seeking: ClusterSearch) -> None:
        try:
            self._mesh.learn(await seeking.run())
        except Unavailable as error:
            if self._formation.first_entry is None:
                raise
            logger.info("cluster_not_asked", code=error.code, reason=error.message)  # it has joined long since

    def follow(self, registry: RegistryService) -> None:
        """From now on, know of every broker that is registered."""
        self._mesh.follow(registry)
