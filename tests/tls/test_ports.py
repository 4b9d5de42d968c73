"""Ports that take TLS, one by one: beginnings that are no beginning, and pages over HTTP."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.tls.authorities import of_broker
from tinymq.base.clock import SystemClock
from tinymq.metrics.http import Answer, HttpServer
from tinymq.net.tls_ports import PortTls, speaks_tls

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

    async def page(headers: object) -> Answer:
        return Answer(HTTPStatus.OK, b"measures")

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
