"""Brings this broker into its cluster, and lets others in: wires formation, join and address book. Decides nothing."""

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
    """Call `open` before the host starts, and `enter` afterwards. `spawn` runs a task whose error ends the broker."""

    def __init__(
        self, config: BrokerConfig, formation: Formation, host: Host, transport: Transport, clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._formation = formation
        self._host = host
        self._transport = transport
        self._spawn = spawn
        self._address_book = AddressBook(config.broker_id, transport, host.alive, config.dial)
        self._join: Join | None = None
        self._search: ClusterSearch | None = None
        if config.join:
            self._search = ClusterSearch(formation, transport.ask, config.join, clock, config.timing.join_s)
        elif formation.first_entry is None:
            self._join = Join(formation, [v.broker_id for v in config.voters], spawn)

    @property
    def reason(self) -> str:
        """Why this broker belongs to no cluster, for people; "" once it does."""
        attempt = self._join or self._search
        return attempt.reason if attempt is not None else ""

    def open(self, here: Callable[[], str]) -> None:
        """Fill the address book, announce this broker's address `here` to its peers, and invite brokers without a
        cluster. Raises InvalidConfig if neither configuration nor data directory names another broker."""
        config, formation, book = self._config, self._formation, self._address_book
        if not (config.voters or config.join or formation.known_voters):
            hint = "name the voters, this broker among them, or with --join brokers of a cluster that is there already"
            raise InvalidConfig(
                f"broker {config.broker_id} knows no other broker, nor does its data directory", hint=hint
            )
        book.configure(config.voters)
        book.learn(formation.known_voters)
        self._host.introduce(here, book.learn_address)
        self._transport.invite = self._invite
        if self._join is not None:
            self._transport.on_invited = self._join.heard

    def _invite(self, stranger: PeerIdentity) -> Invitation:
        """The invitation for a broker that belongs to no cluster. Raises as `invite`, and InvalidConfig."""
        config, book = self._config, self._address_book
        if config.registry == "memory":
            why = f"broker {config.broker_id} keeps its registry in memory, and is alone in its cluster"
            raise InvalidConfig(why, hint=JOIN_REPLICATED)
        return invite(self._formation, self._host, self._transport.identity, book.voters, book.has_room, stranger)

    def enter(self) -> None:
        """Start to look for the cluster, if the configuration names brokers to ask."""
        if self._search is not None:
            self._spawn(self._find(self._search))

    async def _find(self, search: ClusterSearch) -> None:
        try:
            self._address_book.learn(await search.run())
        except Unavailable as error:
            if self._formation.first_entry is None:
                raise
            logger.info("cluster_unreachable", code=error.code, reason=error.message)  # it joined in an earlier process

    def follow(self, registry: RegistryService) -> None:
        """Keep the address book up to date with the registry from now on."""
        self._address_book.follow(registry)
