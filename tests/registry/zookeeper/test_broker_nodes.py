"""The broker's end of a session: whether it creates its node, and which registrations expire. No server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from tests.registry.records import broker
from tinymq.registry.state.state import RegistryState
from tinymq.registry.zookeeper.broker_nodes import BrokerNodes
from tinymq.registry.zookeeper.session import ZookeeperSession

LEASE_S = 10.0


@dataclass
class FakeSession:
    connected: bool = True
    session_id: int = 7


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def state() -> RegistryState:
    return RegistryState()


@pytest.fixture
def nodes(session: FakeSession, state: RegistryState) -> BrokerNodes:
    return BrokerNodes(cast(ZookeeperSession, session), state, LEASE_S)


def test_a_lease_runs_out_only_while_it_could_be_renewed(nodes: BrokerNodes, session: FakeSession) -> None:
    nodes.renew(broker(1), 0.0)
    session.connected = False
    nodes.let_expire(100.0)
    session.connected = True
    nodes.let_expire(200.0)
    nodes.let_expire(200.0 + LEASE_S)
    assert nodes.left == []
    assert nodes.holds(broker(1))
    nodes.let_expire(200.1 + LEASE_S)
    assert nodes.left == [broker(1)]
    assert not nodes.holds(broker(1))


def test_which_registrations_expire(nodes: BrokerNodes, session: FakeSession, state: RegistryState) -> None:
    """A broker that is registered, with a node of the present session."""
    nodes.renew(broker(1), 0.0)
    nodes.stood(broker(1), 7)
    assert not nodes.stands(broker(1)), "not registered"
    state.brokers[1] = broker(1)
    assert nodes.stands(broker(1))
    assert not nodes.stands(broker(1, session=2))
    session.session_id = 8
    assert not nodes.stands(broker(1)), "the node belongs to an earlier session"
    session.session_id, session.connected = 7, False
    assert not nodes.stands(broker(1)), "nobody can tell"


def test_the_view_of_the_nodes(nodes: BrokerNodes, session: FakeSession, state: RegistryState) -> None:
    for number in (1, 2, 3):
        state.brokers[number] = broker(number)
    nodes.renew(broker(1), 0.0)
    nodes.stood(broker(1), 7)
    assert nodes.seen({"1", "2", "3", "what"}) == ([], [])
    assert nodes.seen({"1", "3"}) == ([], [broker(2)])
    assert nodes.seen({"2", "3"}) == ([broker(1)], []), "it creates its own node again"
    state.brokers[1] = broker(1, session=2)
    assert nodes.seen({"1", "2", "3"}) == ([], []), "another process has this broker id"
    del state.brokers[1]
    assert nodes.seen({"2", "3"}) == ([broker(1)], [])
    nodes.release(1, session=9)
    assert nodes.holds(broker(1))
    nodes.release(1, session=1)
    assert nodes.seen({"2", "3"}) == ([], [])
