"""The addresses at which this broker dials the others of its cluster.

Every broker dials every other one: it may share a partition with any of them, and any of them may lead the metadata
group. Voters are dialled at their configured addresses. Another broker announces its address whenever it connects, so
that a broker that has just joined, or moved, is dialled back at once. The registry has the addresses of brokers that
have not connected here.

The setting `dial` overrides all of these for this broker alone, for example for a tunnel or a proxy, and is not
announced to other brokers.

A broker is forgotten once it is unregistered, silent, and holds no replica of any topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from tinymq.base.config import ANY_HOST, parse_address
from tinymq.base.errors import InvalidConfig
from tinymq.base.types import PeerAddress
from tinymq.raft.roles.followers import OBSERVERS_MAX
from tinymq.registry.service import RegistryService
from tinymq.registry.state.effects import Effect
from tinymq.registry.state.values import BrokerRecord

logger = structlog.get_logger("tinymq.broker")


class DialingTransport(Protocol):
    """The part of the transport that the address book uses."""

    def set_peer(self, address: PeerAddress) -> None: ...
    def remove_peer(self, broker_id: int) -> None: ...


class AddressBook:
    """The address book of one broker. `alive` tells whether a broker is heard. `overrides` are dialled in place of any
    announced address."""

    def __init__(
        self,
        broker_id: int,
        transport: DialingTransport,
        alive: Callable[[int], bool],
        overrides: Iterable[PeerAddress] = (),
    ) -> None:
        self._broker_id = broker_id
        self._transport = transport
        self._alive = alive
        self._overrides = {peer.broker_id: peer for peer in overrides}
        self._configured: set[int] = set()  # announced addresses of these are ignored
        self._voters: dict[int, PeerAddress] = {}  # by id; this broker included if it is a voter
        self._dialled: dict[int, PeerAddress] = {}  # by id, before overrides
        self._records: dict[int, BrokerRecord] = {}  # as last seen in the registry
        self._registry: RegistryService | None = None

    # ---- the voters ----------------------------------------------------------------------------------------

    def configure(self, voters: Iterable[PeerAddress]) -> None:
        """Take the voters' addresses from the configuration. Announced addresses do not change them."""
        voters = list(voters)
        self._configured.update(v.broker_id for v in voters)
        self.learn(voters)

    def learn(self, voters: Iterable[PeerAddress]) -> None:
        """Take the voters' addresses from the data directory, or from the broker that let this one in."""
        for voter in voters:
            self._voters[voter.broker_id] = voter
            self._dial(voter)

    @property
    def voters(self) -> list[PeerAddress]:
        """The voters' addresses, by id."""
        return [self._voters[broker_id] for broker_id in sorted(self._voters)]

    # ---- the others ----------------------------------------------------------------------------------------

    def has_room(self, broker_id: int) -> bool:
        """Whether this broker may join: it is known already, or the cluster has a free place."""
        others = [b for b in self._dialled if b not in self._voters]
        return broker_id in self._dialled or broker_id in self._voters or len(others) < OBSERVERS_MAX

    def learn_address(self, broker_id: int, where: str) -> None:
        """Take a broker's address, host:port, from the broker itself or from the registry.

        An address that cannot be dialled is ignored.
        """
        if broker_id in self._configured or broker_id == self._broker_id:
            return
        try:
            host, port = parse_address(where)
        except InvalidConfig as error:
            logger.warning("peer_address_refused", broker=broker_id, reason=error.message)
            return
        if host in ANY_HOST or not port:
            return
        if self.has_room(broker_id):
            self._dial(PeerAddress(broker_id, host, port))
        else:
            logger.warning("peer_refused", broker=broker_id, reason=f"there are {OBSERVERS_MAX} others")

    def follow(self, registry: RegistryService) -> None:
        """Take addresses from the registry, now and after each change."""
        self._registry = registry
        registry.watch(self._changed)
        self._changed(())

    def _changed(self, effects: Sequence[Effect]) -> None:
        assert self._registry is not None
        for record in self._registry.get_all_brokers():
            if self._records.get(record.broker_id) != record:
                self._records[record.broker_id] = record
                self.learn_address(record.broker_id, record.peer_address)
        gone = [b for b in self._dialled if b not in self._voters and self._is_gone(b)]
        # A broker with replicas is expected back, at the same address, even if it is gone for weeks.
        if gone:
            holding = {r.broker_id for t in self._registry.get_all_topics() for q in t.queues for r in q.replicas}
            for broker_id in gone:
                if broker_id not in holding:
                    self._forget(broker_id)

    def _is_gone(self, broker_id: int) -> bool:
        assert self._registry is not None
        return self._registry.get_broker(broker_id) is None and not self._alive(broker_id)

    def _forget(self, broker_id: int) -> None:
        logger.info("peer_forgotten", broker=broker_id)
        del self._dialled[broker_id]
        self._records.pop(broker_id, None)
        self._transport.remove_peer(broker_id)

    def _dial(self, address: PeerAddress) -> None:
        if self._dialled.get(address.broker_id) != address and address.broker_id != self._broker_id:
            self._dialled[address.broker_id] = address
            if address.broker_id in self._voters:
                self._voters[address.broker_id] = address
            self._transport.set_peer(self._overrides.get(address.broker_id, address))
