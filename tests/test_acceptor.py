"""A port that accepts within its bounds, over real sockets, also when no file descriptor is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import structlog
from structlog.testing import LogCapture

from tests.client.running import run
from tests.fakes.raw_client import until
from tests.test_descriptors import nothing_left
from tinymq.base.errors import PortInUse
from tinymq.net import acceptor
from tinymq.net.acceptor import Acceptor
from tinymq.net.connection_limits import ConnectionRefusal, Place, Places

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Line(asyncio.Protocol):
    """An accepted connection."""

    def __init__(self, place: Place, port: Port) -> None:
        self.place = place
        self._port = port
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._port.lines.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._port.lines.remove(self)
        self.place.leave()


class Port:
    """One, and how to reach it."""

    def __init__(self, connections_max: int, host_connections_max: int) -> None:
        self.lines: list[Line] = []
        self.places = Places("test", connections_max, host_connections_max)
        self.acceptor = Acceptor(self.places, lambda place: Line(place, self))
        self.number = 0

    def dial(self, host: str = HOSTS[0]) -> socket.socket:
        """Open a connection; the kernel completes it, accepted or not."""
        sock = socket.socket()
        sock.bind((host, 0))
        sock.connect((HOSTS[0], self.number))
        sock.setblocking(False)
        return sock


async def ended(sock: socket.socket) -> bool:
    try:
        return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    capture = LogCapture()
    monkeypatch.setattr(acceptor, "logger", structlog.wrap_logger(None, processors=[capture]))
    return capture


def on_port(scenario: Callable[[Port], Awaitable[None]], connections_max: int = 6, host_max: int = 4) -> None:
    async def main() -> None:
        port = Port(connections_max, host_max)
        port.number = await port.acceptor.start(HOSTS[0], 0, setting="listen")
        try:
            await scenario(port)
        finally:
            port.acceptor.close()
            for line in list(port.lines):
                assert line.transport is not None
                line.transport.abort()
        await until(lambda: not port.lines and not port.places.open)

    run(main())


def test_so_many_connections_so_many_of_one_host_and_no_more(logs: LogCapture) -> None:
    async def scenario(port: Port) -> None:
        first = [port.dial() for _ in range(5)]
        assert await ended(first[-1]), "one more than the bound per host"
        others = [port.dial(host) for host in (HOSTS[1], HOSTS[2], HOSTS[2])]
        assert await ended(others[-1]), "the port is full"
        await until(lambda: len(port.lines) == 6)
        assert dict(port.places.refused) == {ConnectionRefusal.HOST: 1, ConnectionRefusal.FULL: 1}
        first[0].close()
        await until(lambda: port.places.open == 5)
        again = port.dial()
        await until(lambda: port.places.open == 6)
        for sock in (*first, *others, again):
            sock.close()

    on_port(scenario)
    assert [(each["event"], each["reason"]) for each in logs.entries] == [
        ("connections_refused", "host"), ("connections_refused", "full"),
    ]  # fmt: skip


def test_many_refusals_are_one_line_of_the_log(logs: LogCapture) -> None:
    async def scenario(port: Port) -> None:
        kept = port.dial()
        refused = [port.dial() for _ in range(100)]
        await until(lambda: port.places.refused[ConnectionRefusal.HOST] == 100)
        for sock in (kept, *refused):
            sock.close()

    on_port(scenario, host_max=1)
    assert len(logs.entries) == 1


def test_without_descriptors_it_waits_says_so_once_and_goes_on(
    logs: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.05)

    async def scenario(port: Port) -> None:
        broken: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        callers = [port.dial() for _ in range(3)]
        with nothing_left(0):
            turns = 0
            while port.places.refused[ConnectionRefusal.DESCRIPTORS] < 3:
                turns += 1
                await asyncio.sleep(0)
            assert turns > 20, "it does not retry in each turn of the loop"
            assert not port.lines
        await until(lambda: len(port.lines) == 3)
        assert not broken, "asyncio got no exception"
        for sock in callers:
            sock.close()

    on_port(scenario)
    assert [each["reason"] for each in logs.entries] == ["descriptors"]


def test_a_closed_port_accepts_nothing_and_its_connections_stay() -> None:
    async def scenario(port: Port) -> None:
        kept = port.dial()
        await until(lambda: len(port.lines) == 1)
        port.acceptor.close()
        with pytest.raises(ConnectionRefusedError):
            port.dial()
        (line,) = port.lines
        assert line.transport is not None
        line.transport.write(b"x")
        assert await asyncio.get_running_loop().sock_recv(kept, 1) == b"x"
        kept.close()

    on_port(scenario)


def test_a_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    async def scenario(port: Port) -> None:
        other = Acceptor(Places("other", 1), lambda place: Line(place, port))
        with pytest.raises(PortInUse, match=r"^other_listen: .* is in use"):
            await other.start(HOSTS[0], port.number, setting="other_listen")

    on_port(scenario)


def test_both_kinds_of_addresses_where_it_is_wanted() -> None:
    async def main() -> None:
        port = Port(6, 4)
        port.number = await port.acceptor.start("::", 0, setting="listen", dual_stack=True)
        with port.dial() as by_4, socket.create_connection(("::1", port.number)):
            await until(lambda: len(port.lines) == 2)
            assert {line.place.host for line in port.lines} == {"127.0.0.1", "::/64"}
            assert by_4.fileno() > 0
        port.acceptor.close()
        await until(lambda: not port.lines)

    run(main())
