"""The brokers that a broker dials: voters at the configured addresses, others at the addresses that they and the
registry name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tinymq.base.types import PeerAddress
from tinymq.broker.cluster.address_book import AddressBook
from tinymq.raft.roles.followers import OBSERVERS_MAX
from tinymq.registry.state.effects import BrokersChanged, Effect
from tinymq.registry.state.values import BrokerRecord

VOTERS = [PeerAddress(n, "10.0.0.1", 7169 + n) for n in (1, 2, 3)]


class Dialled:
    """The address at which each broker is dialled."""

    def __init__(self) -> None:
        self.peers: dict[int, str] = {}
        self.calls = 0

    def set_peer(self, address: PeerAddress) -> None:
        self.peers[address.broker_id] = f"{address.host}:{address.port}"
        self.calls += 1

    def remove_peer(self, broker_id: int) -> None:
        del self.peers[broker_id]


class Place:
    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id


class Queue:
    def __init__(self, *brokers: int) -> None:
        self.replicas = [Place(b) for b in brokers]


class Topic:
    def __init__(self, *brokers: int) -> None:
        self.queues = [Queue(*brokers)]


class Registry:
    """The part of a registry that AddressBook uses."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRecord] = {}
        self.topics: list[Topic] = []
        self._watcher: Callable[[Sequence[Effect]], None] = lambda effects: None

    def watch(self, changed: Callable[[Sequence[Effect]], None]) -> None:
        self._watcher = changed

    def get_broker(self, broker_id: int) -> BrokerRecord | None:
        return self.brokers.get(broker_id)

    def get_all_brokers(self) -> list[BrokerRecord]:
        return list(self.brokers.values())

    def get_all_topics(self) -> list[Topic]:
        return self.topics

    def register(self, broker_id: int, peer_address: str) -> None:
        self.brokers[broker_id] = BrokerRecord(broker_id, b"i" * 16, 1, "c:1", peer_address)
        self.changed()

    def unregister(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        self.changed()

    def changed(self) -> None:
        self._watcher([BrokersChanged()])


def voter(alive: set[int] | None = None) -> tuple[AddressBook, Dialled, Registry]:
    """The address book of broker 1."""
    dialled, registry = Dialled(), Registry()
    mesh = AddressBook(1, dialled, lambda b: b in (alive or set()))
    mesh.configure(VOTERS)
    mesh.follow(registry)  # type: ignore[arg-type]
    return mesh, dialled, registry


def test_voters_are_dialled_at_their_configured_addresses() -> None:
    mesh, dialled, registry = voter()
    registry.register(2, "elsewhere:1")
    mesh.learn_address(3, "elsewhere:1")
    assert dialled.peers == {2: "10.0.0.1:7171", 3: "10.0.0.1:7172"}
    assert mesh.voters == VOTERS


def test_other_brokers_are_dialled_at_their_newest_announced_address() -> None:
    mesh, dialled, registry = voter()
    mesh.learn_address(4, "10.0.0.4:7170")
    assert dialled.peers[4] == "10.0.0.4:7170"
    registry.register(5, "10.0.0.5:7170")
    registry.register(4, "10.0.0.4:7170")
    mesh.learn_address(4, "10.0.0.4:9999")
    registry.register(5, "10.0.0.5:7171")  # the address of broker 4 is unchanged
    assert (dialled.peers[4], dialled.peers[5]) == ("10.0.0.4:9999", "10.0.0.5:7171")


def test_a_joined_broker_follows_the_voters_addresses() -> None:
    dialled, registry = Dialled(), Registry()
    mesh = AddressBook(4, dialled, lambda b: True)
    mesh.learn(VOTERS)
    mesh.follow(registry)  # type: ignore[arg-type]
    registry.register(1, "10.0.0.9:7170")
    assert dialled.peers[1] == "10.0.0.9:7170"
    assert mesh.voters[0] == PeerAddress(1, "10.0.0.9", 7170), "and the callback gets every broker that is let in"
    registry.unregister(1)
    assert 1 in dialled.peers, "voters are never removed"


@pytest.mark.parametrize("where", ["", "nonsense", "0.0.0.0:7170", "[::]:7170", "10.0.0.4:0", "a b:1"])
def test_an_invalid_address_is_skipped(where: str) -> None:
    mesh, dialled, _ = voter()
    mesh.learn_address(4, "10.0.0.4:7170")
    mesh.learn_address(4, where)
    assert dialled.peers[4] == "10.0.0.4:7170"


def test_no_broker_dials_itself_or_another_twice() -> None:
    mesh, dialled, registry = voter()
    mesh.learn_address(1, "10.0.0.4:7170")
    mesh.learn_address(4, "10.0.0.4:7170")
    mesh.learn_address(4, "10.0.0.4:7170")
    registry.register(4, "10.0.0.4:7170")
    assert (sorted(dialled.peers), dialled.calls) == ([2, 3, 4], 3)


def test_an_unregistered_silent_broker_without_replicas_is_removed() -> None:
    alive = {4, 5, 6}
    _, dialled, registry = voter(alive)
    for broker_id in (4, 5, 6):
        registry.register(broker_id, f"10.0.0.{broker_id}:7170")
    registry.topics = [Topic(1, 2, 5)]
    alive -= {4, 5}
    registry.unregister(5)
    registry.unregister(6)
    registry.changed()
    assert sorted(dialled.peers) == [2, 3, 4, 5, 6], "registered; holds a replica; is heard"
    registry.unregister(4)
    assert sorted(dialled.peers) == [2, 3, 5, 6]
    registry.topics = []
    registry.changed()
    assert sorted(dialled.peers) == [2, 3, 6]
    registry.register(4, "10.0.0.4:7170")
    assert 4 in dialled.peers, "it is back"


def test_the_number_of_addresses_is_bounded() -> None:
    mesh, dialled, registry = voter()
    for broker_id in range(4, 4 + OBSERVERS_MAX):
        assert mesh.has_room(broker_id)
        registry.register(broker_id, f"h:{broker_id}")
    one_more = 4 + OBSERVERS_MAX
    assert not mesh.has_room(one_more)
    mesh.learn_address(one_more, "h:1")
    assert one_more not in dialled.peers
    assert mesh.has_room(4)
    assert mesh.has_room(2)
    mesh.learn_address(4, "h:9999")
    assert dialled.peers[4] == "h:9999", "a known broker may change its address"
