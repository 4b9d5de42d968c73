"""Ports that take TLS, one by one: beginnings that are no beginning, and pages over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.tls.authorities import of_broker
from tinymq.base.clock import SystemClock
from tinymq.metrics.http import HttpServer, Response
from tinymq.net.tls_ports import PortTls, speaks_tls
from tinymq.rpc.common import relayed

DEADLINE_S = 30.0
PAGE = b"GET /page HTTP/1.1\r\nhost: broker\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03"])
def test_a_connection_that_ends_within_the_first_bytes_is_over(sent: bytes) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.sendall(sent)
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(speaks_tls(ours), DEADLINE_S)

    asyncio.run(main())


def test_first_bytes_that_come_one_by_one_wake_the_port_once() -> None:
    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
        with listening, theirs, ours:
            ours.setblocking(False)
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waiting = asyncio.ensure_future(speaks_tls(ours))
            for byte in b"\x16\x03":
                theirs.send(bytes([byte]))
                await asyncio.sleep(0)
                assert not waiting.done()
            theirs.send(b"\x01")
            assert await asyncio.wait_for(waiting, DEADLINE_S) is True
            assert ours.recv(10) == b"\x16\x03\x01", "they stay unread"
            theirs.send(b"x")
            got = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 10), DEADLINE_S)
            assert got == b"x", "one byte wakes a reader again"

    asyncio.run(main())


def test_a_page_over_tls_is_for_those_who_speak_it(tmp_path: Path) -> None:
    """As `metrics_listen` on an address that other machines reach."""
    files = of_broker(tmp_path / "broker", 1)
    encrypted: list[bool] = []

    async def page(headers: object) -> Response:
        return Response(HTTPStatus.OK, b"measures")

    def admit(host: str, headers: object, is_encrypted: bool) -> None:
        encrypted.append(is_encrypted)

    async def ask(port: int, tls: bool) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=files.current().dials if tls else None, server_hostname="localhost" if tls else None
        )
        writer.write(PAGE)
        try:
            return await asyncio.wait_for(reader.read(), DEADLINE_S)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def main() -> None:
        tls = PortTls(lambda: files.current().serves)
        server = HttpServer({"/page": page}, SystemClock(), admit=admit, tls=tls)
        port = await server.start("127.0.0.1", 0)
        try:
            assert (await ask(port, tls=True)).endswith(b"measures")
            assert await ask(port, tls=False) == b""
        finally:
            await server.stop()

    asyncio.run(main())
    assert encrypted == [True]


def test_the_host_of_a_relayed_connection_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC may begin a call of a connection that has ended: it is no call of this machine's."""
    monkeypatch.setattr(relayed, "_hosts", {})
    monkeypatch.setattr(relayed, "_ended", OrderedDict())
    monkeypatch.setattr(relayed, "ENDED_MAX", 2)
    for port in (1, 2, 3):
        relayed.note(port, f"10.0.0.{port}")
    relayed.end(1)
    assert relayed.real_host(relayed.LOOPBACK, "1") == "10.0.0.1"
    relayed.note(1, "10.0.0.9")  # another connection has the port now
    for port in (2, 3):
        relayed.end(port)
    relayed.note(4, "10.0.0.4")
    relayed.end(4)  # one more than are remembered
    hosts = [relayed.real_host(relayed.LOOPBACK, str(port)) for port in (1, 2, 3, 4)]
    assert hosts == ["10.0.0.9", relayed.LOOPBACK, "10.0.0.3", "10.0.0.4"]
