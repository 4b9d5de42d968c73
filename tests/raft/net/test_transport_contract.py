"""What `Transport` promises, tested with TCP over loopback sockets and with the network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.fakes.networks import CLUSTER, SECRET, Identity, InMemoryNetwork, TcpNetwork, connected, heartbeat, started
from tinymq.base.config import MIB, Limits
from tinymq.base.errors import (
    BrokerUnreachable,
    NotReady,
    PortInUse,
    UnsupportedVersion,
    WrongBroker,
    WrongCluster,
    WrongSecret,
)
from tinymq.base.types import PeerAddress
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.net.loopback_ports import free_ports
from tinymq.raft.net.transport import Channel, Invitation, PeerIdentity, Transport

Scenario = Callable[[TcpNetwork], Awaitable[None]]


@pytest.fixture(params=[TcpNetwork, InMemoryNetwork], ids=["tcp", "memory"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a scenario on one of the two networks and stops everything afterwards."""

    def run_scenario(scenario: Scenario, limits: Limits | None = None) -> None:
        async def whole() -> None:
            network = request.param(limits=limits)
            try:
                await scenario(network)
            finally:
                await network.stop()

        asyncio.run(whole())

    return run_scenario


Run = Callable[..., None]


def test_both_networks_implement_transport() -> None:
    async def scenario() -> None:
        ends: list[Transport] = [TcpNetwork().make(1).transport, InMemoryNetwork().make(1).transport]
        assert all(not end.connected(2, Channel.CONTROL) for end in ends)

    asyncio.run(scenario())


def test_messages_arrive_in_order_with_their_bodies(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        sent = []
        for i in range(500):
            body = tuple(bytes([i % 256]) * n for n in (0, i, 17 * i, 1 if i % 50 else 300_000))
            assert a.send(2, i, Channel.BULK, body)
            sent.append(b"".join(body))
        await b.events.until(lambda: len(b.events.messages) == 500)
        assert b.events.sequences == list(range(500))
        assert [body for _, _, body in b.events.messages] == sent
        assert {peer for peer, _, _ in b.events.messages} == {1}

    run(scenario)


def test_large_bodies_arrive_whole(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        bodies = [bytes(range(256)) * (4096 * n + n) for n in (1, 3, 8)]
        for i, body in enumerate(bodies):
            assert a.transport.send(2, Channel.BULK, heartbeat(i), (b"head", memoryview(body)))
        await b.events.until(lambda: len(b.events.messages) == 3)
        assert [body for _, _, body in b.events.messages] == [b"head" + body for body in bodies]

    run(scenario)


def test_a_received_body_stays_as_it_was(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        kept: list[bytes | memoryview] = []
        b.transport.on_message = lambda peer, message, body: kept.append(body)
        for i in range(40):
            assert a.send(2, i, Channel.BULK, (bytes([i]) * (100_000 if i % 2 else 10),))
        assert a.send(2, 0)
        a_events = a.events
        b.transport.set_peer(a.address)
        async with asyncio.timeout(10):
            while len(kept) < 41:
                await asyncio.sleep(0)
        assert a_events.refused == []
        assert sorted({bytes(body)[:1] for body in kept}) == sorted({bytes([i]) for i in range(40)} | {b""})

    run(scenario)


def test_sending_to_an_unknown_peer_returns_false(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a = network.make(1)
        assert not a.send(2, 1)
        await a.transport.start()
        assert not a.send(2, 1)
        assert a.transport.identity(2) is None
        assert a.transport.buffered_bytes(2, Channel.BULK) == 0
        a.transport.reset(2, Channel.BULK)
        a.transport.remove_peer(2)
        a.transport.set_peer(a.address)  # its own address is skipped
        assert not a.transport.connected(1, Channel.CONTROL)

    run(scenario)


def test_each_side_learns_the_proven_identity_of_the_other(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        assert a.transport.identity(2) == PeerIdentity(2, b"\x02" * 16, 1, KNOWN_LEVEL)
        assert sorted(channel for _, channel, _ in a.events.connected) == [Channel.CONTROL, Channel.BULK]
        assert a.events.connected[0] == (2, a.events.connected[0][1], PeerIdentity(2, b"\x02" * 16, 1, KNOWN_LEVEL))
        assert a.send(2, 5)
        await b.events.until(lambda: b.events.messages)
        assert b.events.identities == [PeerIdentity(1, b"\x01" * 16, 1, KNOWN_LEVEL)]

    run(scenario)


def test_a_build_that_knows_less_than_the_cluster_is_turned_away_for_good(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = network.make(1), network.make(2)
        b.transport.known_level = 1
        for end in (a, b):
            await end.transport.start()
        for end, other in ((a, b), (b, a)):
            end.transport.set_peer(other.address)
        for end, other in ((a, 2), (b, 1)):
            await end.events.until(lambda end=end, other=other: all(end.transport.connected(other, c) for c in Channel))
        who = a.transport.identity(2)
        assert who is not None
        assert who.feature_level == 1
        a.transport.turn_away(1)
        assert all(a.transport.connected(2, channel) for channel in Channel), "its build knows the same level"
        a.identity = replace(a.identity, feature_level=2)
        a.transport.turn_away(2)
        await b.events.until(lambda: [e for _, e in b.events.refused if isinstance(e, UnsupportedVersion)])
        await a.events.until(lambda: not any(a.transport.connected(2, channel) for channel in Channel))
        why = next(error.message for _, error in b.events.refused if isinstance(error, UnsupportedVersion))
        assert "broker 2 knows feature level 1, and this cluster is at 2" in why

    run(scenario)


def test_a_full_buffer_returns_false_and_loses_no_accepted_message(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        body = (bytes(MIB),)
        taken = 0
        while a.send(2, taken, Channel.BULK, body):
            taken += 1
            assert taken < 100
        assert 0 < a.transport.buffered_bytes(2, Channel.BULK) <= 20 * MIB
        assert a.send(2, 1000, Channel.CONTROL), "the other channel is not delayed"
        await b.events.until(lambda: len(b.events.messages) == taken + 1)
        assert [s for s in b.events.sequences if s != 1000] == list(range(taken))
        assert a.send(2, taken, Channel.BULK, body), "the buffer has space again"

    run(scenario, Limits(peer_buffer_bytes_max=20 * MIB))


def test_reset_closes_and_dials_again(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        a.transport.reset(2, Channel.BULK)
        assert not a.transport.connected(2, Channel.BULK)
        assert not a.send(2, 1, Channel.BULK)
        assert a.events.disconnected == [], "the callback runs from the loop, not inside the call"
        await a.events.until(lambda: len(a.events.connected) == 3)
        assert [(peer, channel) for peer, channel, _ in a.events.disconnected] == [(2, Channel.BULK)]
        assert a.transport.connected(2, Channel.CONTROL)
        assert a.send(2, 2, Channel.BULK)
        await b.events.until(lambda: b.events.sequences == [2])

    run(scenario)


def test_a_restarted_peer_is_another_session(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        port = b.address.port
        await b.transport.stop()
        await a.events.until(lambda: len(a.events.disconnected) == 2)
        assert not b.send(1, 1)
        again = network.make(2, session=9, port=port)
        again.transport.set_peer(a.address)
        await again.transport.start()
        await connected(a, again)
        await connected(again, a)
        assert a.transport.identity(2) == PeerIdentity(2, b"\x02" * 16, 9, KNOWN_LEVEL)
        assert again.send(1, 3)
        await a.events.until(lambda: a.events.messages)
        assert a.events.identities[-1] == PeerIdentity(2, b"\x02" * 16, 9, KNOWN_LEVEL)

    run(scenario)


def test_a_newer_process_cuts_off_the_older_ones_messages_in_flight(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        newer = network.make(2, session=9)
        await newer.transport.start()
        newer.transport.set_peer(a.address)
        await newer.events.until(lambda: newer.events.connected)
        await a.events.until(lambda: len(a.events.disconnected) == 2)  # a's connection led to the older process
        await b.events.until(lambda: b.events.disconnected)
        assert a.transport.identity(2) is not None

    run(scenario)


def test_a_second_process_is_refused_while_the_first_is_heard(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        heard = True
        a.transport.hears = lambda peer: peer == 2 and heard
        second = network.make(2, session=9)
        await second.transport.start()
        second.transport.set_peer(a.address)
        await second.events.until(lambda: len(second.events.refused) >= 4)
        assert all(isinstance(error, WrongBroker) for _, error in second.events.refused)
        assert "another process of broker 2 is heard" in second.events.refused[0][1].message
        assert not second.events.connected
        assert not b.events.disconnected
        assert a.transport.identity(2) == PeerIdentity(2, b"\x02" * 16, 1, KNOWN_LEVEL)
        await b.transport.stop()
        heard = False
        await connected(second, a)
        assert second.send(1, 3)
        await a.events.until(lambda: a.events.messages)
        assert a.events.identities[-1] == PeerIdentity(2, b"\x02" * 16, 9, KNOWN_LEVEL)

    run(scenario)


def test_a_process_that_is_heard_dials_again_at_any_time(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        a.transport.hears = lambda peer: True
        b.transport.reset(1, Channel.CONTROL)
        await b.events.until(lambda: len(b.events.connected) == 3)
        assert not b.events.refused

    run(scenario)


def test_the_process_at_the_brokers_address_takes_the_place_of_the_one_that_is_heard(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        a.transport.hears = lambda peer: True
        port = b.address.port
        await b.transport.stop()
        again = network.make(2, session=9, port=port)
        again.transport.set_peer(a.address)
        await again.transport.start()
        await connected(a, again)
        await connected(again, a)
        assert a.transport.identity(2) == PeerIdentity(2, b"\x02" * 16, 9, KNOWN_LEVEL)

    run(scenario)


def test_a_refused_dial_is_reported_and_retried(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, gone = network.make(1), network.make(2)
        await gone.transport.start()
        address = gone.address
        await gone.transport.stop()
        await a.transport.start()
        a.transport.set_peer(address)
        await a.events.until(lambda: len(a.events.refused) >= 4)  # a keeps dialling
        assert all(peer == 2 and isinstance(error, BrokerUnreachable) for peer, error in a.events.refused)

    run(scenario)


@pytest.mark.parametrize(
    ("secret", "cluster_id", "claimed_id", "dialer_error", "acceptor_error"),
    [
        (b"another secret", CLUSTER, 2, WrongSecret, WrongSecret),
        (None, b"another cluster!", 2, WrongCluster, WrongCluster),
        (None, CLUSTER, 3, WrongBroker, WrongBroker),
        (None, None, 2, NotReady, NotReady),
    ],
)
def test_strangers_are_turned_away_with_the_reason(
    run: Run,
    secret: bytes | None,
    cluster_id: bytes | None,
    claimed_id: int,
    dialer_error: type[Exception],
    acceptor_error: type[Exception],
) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a = network.make(1)
        b = network.make(2, cluster_id=cluster_id, **({"secret": secret} if secret else {}))
        await a.transport.start()
        await b.transport.start()
        a.transport.set_peer(PeerAddress(claimed_id, b.address.host, b.address.port))
        await a.events.until(lambda: len(a.events.refused) >= 3)
        assert {(peer, type(error)) for peer, error in a.events.refused} == {(claimed_id, dialer_error)}
        await b.events.until(lambda: b.events.rejected)
        assert {type(error) for error in b.events.rejected} == {acceptor_error}
        assert not a.send(claimed_id, 1)
        assert b.events.messages == []
        assert a.events.connected == []
        friend = network.make(4, cluster_id=cluster_id or CLUSTER, secret=secret or SECRET)
        b.identity = Identity(2, b"\x02" * 16, cluster_id or CLUSTER)
        await friend.transport.start()
        friend.transport.set_peer(b.address)
        await connected(friend, b)  # the listener still accepts connections

    run(scenario)


def test_a_broker_without_cluster_dials_once_it_has_one(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = network.make(1, cluster_id=None), network.make(2)
        await a.transport.start()
        await b.transport.start()
        a.transport.set_peer(b.address)
        b.transport.set_peer(a.address)
        await b.events.until(lambda: b.events.refused)
        assert (a.events.connected, a.events.refused) == ([], [])
        a.identity = Identity(1, b"\x01" * 16, CLUSTER)
        await connected(a, b)
        await connected(b, a)

    run(scenario)


def test_a_broker_without_a_cluster_learns_the_cluster_and_nothing_else(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b, stranger = (
            network.make(1, cluster_id=None),
            network.make(2),
            network.make(3, cluster_id=None, secret=b"x"),
        )
        b.transport.invite = lambda who: Invitation(CLUSTER, b"the first entry for %d" % who.broker_id)
        for end in (a, b, stranger):
            await end.transport.start()
        a.transport.set_peer(b.address)
        stranger.transport.set_peer(b.address)
        await a.events.until(lambda: a.events.invited)
        assert a.events.invited[0] == (2, Invitation(CLUSTER, b"the first entry for 1"))
        await stranger.events.until(lambda: stranger.events.invited)
        assert type(stranger.events.invited[0][1]) is WrongSecret
        assert b.transport.identity(1) is None, "b is not a peer yet"
        assert (a.events.connected, a.events.refused, a.events.disconnected) == ([], [], [])
        assert {type(error) for error in b.events.rejected} <= {WrongSecret}
        a.identity = Identity(1, b"\x01" * 16, CLUSTER)
        await connected(a, b)

    run(scenario)


@pytest.mark.parametrize("formed", [None, CLUSTER])
def test_any_listener_can_be_asked_for_its_cluster(run: Run, formed: bytes | None) -> None:
    """The asking broker may have a cluster of its own: it asks whether the two are the same."""

    async def scenario(network: TcpNetwork) -> None:
        a, b, stranger = network.make(4, cluster_id=formed), network.make(2), network.make(5, secret=b"x")
        voters = (PeerAddress(2, "127.0.0.1", 7170),)
        b.transport.invite = lambda who: Invitation(CLUSTER, b"the first entry for %d" % who.broker_id, voters)
        for end in (a, b, stranger):
            await end.transport.start()
        where = b.address.host, b.address.port
        assert await a.transport.ask(*where) == Invitation(CLUSTER, b"the first entry for 4", voters)
        with pytest.raises(WrongSecret):
            await stranger.transport.ask(*where)
        with pytest.raises(BrokerUnreachable):
            await a.transport.ask(*_free(network))
        b.transport.invite = None
        with pytest.raises(NotReady):
            await a.transport.ask(*where)
        assert (a.events.connected, a.events.refused, b.events.connected) == ([], [], []), "no peers yet"

    run(scenario)


@pytest.mark.parametrize("known", [None, CLUSTER])
def test_a_broker_without_a_cluster_learns_why_none_is_shared(run: Run, known: bytes | None) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = network.make(1, cluster_id=None), network.make(2, cluster_id=known)
        await a.transport.start()
        a.transport.set_peer(PeerAddress(2, *_free(network)))
        await a.events.until(lambda: a.events.invited)
        assert type(a.events.invited[0][1]) is BrokerUnreachable
        await b.transport.start()
        a.transport.set_peer(b.address)
        await a.events.until(lambda: type(a.events.invited[-1][1]) is not BrokerUnreachable)
        assert type(a.events.invited[-1][1]) is NotReady  # b shares no cluster, whether it has one or not

    run(scenario)


def _free(network: TcpNetwork) -> tuple[str, int]:
    """Send to an address without a listener."""
    return ("127.0.0.1", free_ports(1)[0]) if type(network) is TcpNetwork else ("memory", 1)


def test_a_port_in_use(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a = network.make(1)
        await a.transport.start()
        with pytest.raises(PortInUse, match="in use"):
            await network.make(2, port=a.address.port).transport.start()

    run(scenario)


def test_a_removed_peer_is_closed_both_ways_and_left_alone(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        assert all(a.send(2, 1, channel) for channel in Channel)
        await b.events.until(lambda: len(b.events.messages) == 2)  # b has accepted both connections
        b.transport.remove_peer(1)
        assert b.transport.identity(1) is None
        await a.events.until(lambda: len(a.events.disconnected) == 2)
        await connected(a, b)  # a still has b as a peer: every broker that proves the secret may connect
        assert not b.send(1, 1)
        assert a.send(2, 7)
        await b.events.until(lambda: b.events.sequences[2:] == [7])

    run(scenario)


@pytest.mark.parametrize("make", [TcpNetwork, InMemoryNetwork], ids=["tcp", "memory"])
def test_a_broker_that_reaches_us_is_dialled_without_waiting(make: type[TcpNetwork]) -> None:
    """The clock stands still, so a broker that waits for its next retry would wait without end."""

    async def scenario() -> None:
        network = make(ManualClock())
        b = network.make(2)
        await b.transport.start()
        (port,) = free_ports(1)
        a = network.make(1, port=port)
        b.transport.set_peer(PeerAddress(1, "127.0.0.1", port) if make is TcpNetwork else a.address)
        await b.events.until(lambda: len(b.events.refused) == len(Channel))
        await a.transport.start()
        a.transport.set_peer(b.address)
        await connected(a, b)
        await connected(b, a)
        assert (a.transport.identity(2) is None, b.transport.identity(1) is None) == (False, False)
        await network.stop()

    asyncio.run(scenario())


def test_a_changed_address_is_dialled(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        before = a.transport.identity(2)
        await b.transport.stop()
        elsewhere = network.make(2, session=2)
        await elsewhere.transport.start()
        a.transport.set_peer(elsewhere.address)
        await connected(a, elsewhere)
        await a.events.until(lambda: a.transport.identity(2) != before)
        assert a.transport.identity(2) == PeerIdentity(2, b"\x02" * 16, 2, KNOWN_LEVEL)

    run(scenario)


def test_nothing_is_sent_after_stop(run: Run) -> None:
    async def scenario(network: TcpNetwork) -> None:
        a, b = await started(network, 1, 2)
        disconnected_before = len(a.events.disconnected)
        await a.transport.stop()
        assert not a.send(2, 1)
        assert not a.transport.connected(2, Channel.CONTROL)
        await b.events.until(lambda: len(b.events.disconnected) == 2)
        assert len(a.events.disconnected) == disconnected_before

    run(scenario)
