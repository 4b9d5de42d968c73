"""Which brokers this one dials: the voters where configuration says, all others where they, or the registry, say.

Every broker dials every other one of its cluster: whoever shares a partition with it is reached, and whoever leads the
metadata group can answer it. A broker says where it is whenever it has connected, so that one that has just joined, or
has moved, is dialled back at once; the registry tells of those that have not connected here.

Where configuration says so (`dial`), a broker is dialled elsewhere than where all of these say that it is: through a
tunnel, or a proxy. That is this broker's own affair, and nobody is told of it.

A broker is forgotten once it is unregistered, silent, and holds no replica of any topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from tinymq.base.config import ANY_HOST, parse_address
from tinymq.base.errors import InvalidConfig
from tinymq.base.types import PeerAddress
from tinymq.raft.leader.followers import OBSERVERS_MAX
from tinymq.registry.service import RegistryService
from tinymq.registry.state.state import Effect
from tinymq.registry.state.values import BrokerRecord

logger = structlog.get_logger("tinymq.broker")


class DialingTransport(Protocol):
    """What is asked of the transport."""

    def set_peer(self, address: PeerAddress) -> None: ...
    def remove_peer(self, broker_id: int) -> None: ...


class AddressBook:
    """One broker's. `alive`: is that broker heard? `elsewhere`: where to dial some, wherever they are said to be."""

    def __init__(
        self,
        broker_id: int,
        dials: DialingTransport,
        alive: Callable[[int], bool],
        elsewhere: Iterable[PeerAddress] = (),
    ) -> None:
        self._broker_id = broker_id
        self._dials = dials
        self._alive = alive
        self._elsewhere = {peer.broker_id: peer for peer in elsewhere}
        self._fixed: set[int] = set()  # dialled where configuration says, whatever anybody else does
        self._voters: dict[int, PeerAddress] = {}  # this broker, too, if it is one
        self._dialled: dict[int, PeerAddress] = {}  # where they are said to be
        self._records: dict[int, BrokerRecord] = {}  # as last taken from the registry
        self._registry: RegistryService | None = None

    # ---- the voters ----------------------------------------------------------------------------------------

    def configure(self, voters: Iterable[PeerAddress]) -> None:
        """Where configuration names them: what they say of themselves changes nothing."""
        voters = list(voters)
        self._fixed.update(v.broker_id for v in voters)
        self.learn(voters)

    def learn(self, voters: Iterable[PeerAddress]) -> None:
        """Where the data folder, or the one that let this broker in, says."""
        for voter in voters:
            self._voters[voter.broker_id] = voter
            self._dial(voter)

    @property
    def voters(self) -> list[PeerAddress]:
        """Where they are said to be, by id."""
        return [self._voters[broker_id] for broker_id in sorted(self._voters)]

    # ---- the others ----------------------------------------------------------------------------------------

    def has_room(self, broker_id: int) -> bool:
        """May this broker join? It may if it is known already."""
        others = [b for b in self._dialled if b not in self._voters]
        return broker_id in self._dialled or broker_id in self._voters or len(others) < OBSERVERS_MAX

    def told(self, broker_id: int, where: str) -> None:
        """A broker is at `where`, host:port, as it, or the registry, says. What cannot be dialled is passed over."""
        if broker_id in self._fixed or broker_id == self._broker_id:
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
        """From now on, know of every broker that is registered."""
        self._registry = registry
        registry.watch(self._changed)
        self._changed(())

    def _changed(self, effects: Sequence[Effect]) -> None:
        assert self._registry is not None
        for record in self._registry.get_all_brokers():
            if self._records.get(record.broker_id) != record:
                self._records[record.broker_id] = record
                self.told(record.broker_id, record.peer_address)
        gone = [b for b in self._dialled if b not in self._voters and self._is_gone(b)]
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
        self._dials.remove_peer(broker_id)

    def _dial(self, address: PeerAddress) -> None:
        if self._dialled.get(address.broker_id) != address and address.broker_id != self._broker_id:
            self._dialled[address.broker_id] = address
            if address.broker_id in self._voters:
                self._voters[address.broker_id] = address
            self._dials.set_peer(self._elsewhere.get(address.broker_id, address))
