"""Mutual TLS between brokers: whose certificate is accepted, and a cluster that has brokers with and without it."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fakes.networks import DEADLINE_S, End, TcpNetwork, connected, started
from tests.raft.net.test_transport_tcp import Raw, ends_its_side_unread, framed, hello
from tests.tls.authorities import of_broker, of_user
from tinymq.base.errors import BrokerUnreachable, Closed, WrongBroker
from tinymq.net import tls_ports
from tinymq.net.connection_limits import ConnectionRefusal
from tinymq.net.tls_files import TlsFiles
from tinymq.raft.net.tcp import PeerTls, TcpTransport
from tinymq.raft.net.transport import Channel


class TlsNetwork(TcpNetwork):
    """Brokers with certificates. `security` and `files` may differ for some of them."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place = place
        self.files: dict[int, TlsFiles] = {}
        self.security: dict[int, str] = {}
        self.age_s_max: dict[int, float] = {}

    def _transport(self, end: End, secret: bytes, session: int, port: int | None) -> TcpTransport:
        transport = super()._transport(end, secret, session, port)
        assert isinstance(transport, TcpTransport)
        security = self.security.get(end.broker_id, "required")
        if security != "off":
            files = self.files.get(end.broker_id) or of_broker(self._place / str(end.broker_id), end.broker_id)
            transport._tls = PeerTls(
                lambda: files.current().serves_certified, lambda: files.current().dials_brokers, security == "accept",
                self.age_s_max.get(end.broker_id, math.inf),
            )  # fmt: skip
            transport._listener._age_s_max = transport._tls.age_s_max
        return transport


def run(place: Path, scenario: Callable[[TlsNetwork], Awaitable[None]]) -> None:
    async def whole() -> None:
        net = TlsNetwork(place)
        try:
            await scenario(net)
        finally:
            await net.stop()

    asyncio.run(whole())


async def sends_all(a: End, b: End) -> None:
    bodies = [bytes([i]) * (i * 300_000) for i in range(8)]
    for i, body in enumerate(bodies):
        assert a.send(b.broker_id, i, Channel.BULK, (body,))
    await b.events.until(lambda: len(b.events.messages) == 8)
    assert [body for _, _, body in b.events.messages] == bodies


def test_messages_of_all_sizes_pass(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        a, b = await started(net, 1, 2)
        await sends_all(a, b)
        await asyncio.wait_for(b.transport.stop(), DEADLINE_S)

    run(tmp_path, scenario)


@pytest.mark.parametrize("dialer", [True, False])
def test_a_certificate_counts_for_its_own_broker_only(tmp_path: Path, dialer: bool) -> None:
    """Broker 1 shows the certificate of broker 3, as somebody who stole it would, and knows the secret."""

    async def scenario(net: TlsNetwork) -> None:
        net.files[1] = of_broker(tmp_path / "stolen", 3)
        a, b = net.make(1), net.make(2)
        for end in (a, b):
            await end.transport.start()
        first, second = (a, b) if dialer else (b, a)
        first.transport.set_peer(second.address)
        told = b.events.rejected if dialer else b.events.refused
        await b.events.until(lambda: told)
        found = told[0] if dialer else told[0][1]
        assert isinstance(found, WrongBroker)
        assert "calls itself broker 1, and its certificate is broker 3's" in found.message
        assert not a.transport.connected(2, Channel.BULK)

    run(tmp_path, scenario)


def test_a_user_is_no_broker(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        net.files[1] = of_user(tmp_path / "alice", "alice")
        a, b = net.make(1), net.make(2)
        for end in (a, b):
            await end.transport.start()
        a.transport.set_peer(b.address)
        await b.events.until(lambda: b.events.rejected)
        assert "its certificate is no broker's" in b.events.rejected[0].message

    run(tmp_path, scenario)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        net.files[1] = of_broker(tmp_path / "theirs", 1, by="theirs")
        a, b = net.make(1), net.make(2)
        for end in (a, b):
            await end.transport.start()
        a.transport.set_peer(b.address)
        await a.events.until(lambda: len(a.events.refused) >= 4)
        assert {type(error) for _, error in a.events.refused} == {BrokerUnreachable}
        assert b.events.messages == []

    run(tmp_path, scenario)


def test_a_port_that_requires_tls_answers_nothing_else(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        b = net.make(2)
        await b.transport.start()
        raw = await Raw.dial(b)
        raw.send(framed(hello()))
        assert await raw.until_closed() == b""
        assert isinstance(b.transport, TcpTransport)
        assert b.transport.places.refused[ConnectionRefusal.PLAIN] == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize(("one", "other"), [("accept", "off"), ("accept", "accept"), ("accept", "required")])
def test_a_cluster_that_moves_to_tls_stays_connected(tmp_path: Path, one: str, other: str) -> None:
    async def scenario(net: TlsNetwork) -> None:
        net.security = {1: one, 2: other}
        a, b = await started(net, 1, 2)
        await sends_all(a, b)
        assert isinstance(a.transport, TcpTransport)
        link = a.transport._dialers[2, Channel.BULK]
        assert link.connection is not None
        assert link.connection._transport is not None
        encrypted = link.connection._transport.get_extra_info("ssl_object") is not None
        assert encrypted is (other != "off"), "TLS is used where both sides know it"

    run(tmp_path, scenario)


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        b = net.make(2)
        await b.transport.start()
        old = of_broker(tmp_path / "1", 1).current().dials_brokers
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):  # asyncio closes without a word of TLS's  # noqa: PT011
            await asyncio.open_connection(b.address.host, b.address.port, ssl=old, server_hostname="x")
        assert isinstance(b.transport, TcpTransport)
        assert b.transport.places.refused[ConnectionRefusal.TLS] == 1

    run(tmp_path, scenario)


def test_a_peer_that_ends_its_side_and_takes_nothing_more_is_dialled_again(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        a, b = await started(net, 1, 2)
        await connected(a, b)
        await ends_its_side_unread(a, b)

    run(tmp_path, scenario)


def test_silent_strangers_do_not_keep_a_broker_out(tmp_path: Path) -> None:
    async def scenario(net: TlsNetwork) -> None:
        b = net.make(2)
        await b.transport.start()
        silent = [await Raw.dial(b) for _ in range(tls_ports.HANDSHAKES_MAX + 30)]
        a = net.make(1)
        await a.transport.start()
        a.transport.set_peer(b.address)
        await connected(a, b)
        assert isinstance(b.transport, TcpTransport)
        acceptor = b.transport._listener._acceptor
        assert acceptor is not None
        assert len(acceptor._connecting) <= tls_ports.HANDSHAKES_MAX
        for raw in silent:
            raw.writer.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("ends_it", [1, 2])
def test_an_old_connection_ends_and_another_one_follows(tmp_path: Path, ends_it: int) -> None:
    """The dialer ends it, or else the acceptor does, such as with a dialer that would keep an old certificate."""

    async def scenario(net: TlsNetwork) -> None:
        net.age_s_max[ends_it] = 0.3
        a, b = await started(net, 1, 2)
        first = a.transport._dialers[2, Channel.BULK].connection
        assert first is not None
        assert isinstance(await asyncio.wait_for(first.lost, DEADLINE_S), BrokerUnreachable | Closed)
        await b.events.until(lambda: a.transport.connected(2, Channel.BULK))
        assert a.send(2, 7, Channel.BULK, (b"after",))
        await b.events.until(lambda: len(b.events.messages) == 1)

    run(tmp_path, scenario)
