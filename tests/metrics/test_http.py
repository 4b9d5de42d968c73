"""The HTTP server alone, over real sockets: its answers, its refusals, and how long it waits for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.errors import InvalidConfig, PortInUse
from tinymq.metrics.http import ANSWER_S, REQUEST_BYTES_MAX, REQUEST_S, HttpServer, Response

HOST = "127.0.0.1"
DEADLINE_S = 10.0
LARGE = b"0123456789abcdef" * (1 << 20)  # more than the sockets of both ends buffer


class Server:
    """A server with three routes, and its address."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slow = asyncio.Event()  # /slow answers when it is set
        routes = {"/hello": self._hello, "/slow": self._slow, "/large": self._large, "/bug": self._bug}
        self.http = HttpServer(routes, self.clock)
        self.port = 0

    async def _hello(self, headers: Mapping[str, str]) -> Response:
        return Response(HTTPStatus.OK, b"hello " + headers.get("who", "you").encode())

    async def _slow(self, headers: Mapping[str, str]) -> Response:
        await self.slow.wait()
        return Response(HTTPStatus.OK, b"at last")

    async def _large(self, headers: Mapping[str, str]) -> Response:
        return Response(HTTPStatus.OK, LARGE)

    async def _bug(self, headers: Mapping[str, str]) -> Response:
        raise ZeroDivisionError

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def ask(self, request: str | bytes) -> bytes:
        """Return all bytes until the connection is closed."""
        reader, writer = await self.open()
        writer.write(request if isinstance(request, bytes) else request.replace("\n", "\r\n").encode())
        answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        return answer


def run(scenario: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        server.port = await server.http.start(HOST, 0)
        try:
            await scenario(server)
        finally:
            await server.http.stop()

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0)


async def closed(reader: asyncio.StreamReader) -> bool:
    """The connection was closed without an answer."""
    try:
        return await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    except ConnectionResetError:
        return True


def test_an_answer_and_the_end_of_the_connection() -> None:
    async def scenario(server: Server) -> None:
        head, _, body = (await server.ask("GET /hello?a=1 HTTP/1.1\nHost: x\nWho: me\n\n")).partition(b"\r\n\r\n")
        assert head.splitlines()[0] == b"HTTP/1.1 200 OK"
        assert {b"content-length: 8", b"connection: close"} <= {line.lower() for line in head.splitlines()}
        assert body == b"hello me"
        assert (await server.ask("GET /hello HTTP/1.0\n\n")).endswith(b"hello you"), "HTTP/1.0 needs no Host"

    run(scenario)


def test_head_says_how_long_the_answer_would_be() -> None:
    async def scenario(server: Server) -> None:
        answer = await server.ask("HEAD /hello HTTP/1.1\nHost: x\n\n")
        assert b"content-length: 9" in answer.lower()
        assert answer.endswith(b"\r\n\r\n")

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET / HTTP/1.1\nHost: x\n\n", 404),
        ("GET /hello/ HTTP/1.1\nHost: x\n\n", 404),
        ("GET http://x/hello HTTP/1.1\nHost: x\n\n", 404),
        ("GET //hello HTTP/1.1\nHost: x\n\n", 404),
        ("GET /..%2fhello HTTP/1.1\nHost: x\n\n", 404),
        ("OPTIONS * HTTP/1.1\nHost: x\n\n", 404),
        ("CONNECT x:1 HTTP/1.1\nHost: x\n\n", 404),
        ("POST /hello HTTP/1.1\nHost: x\nContent-Length: 0\n\n", 405),
        ("DELETE /hello HTTP/1.1\nHost: x\n\n", 405),
        ("GET /hello HTTP/1.1\nHost: x\nContent-Length: 3\n\nabc", 413),
        ("GET /hello HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n0\n\n", 413),
        ("GET /hello HTTP/1.1\n\n", 400),
        ("GET /hello HTTP/1.1\nHost: x\nHost: y\n\n", 400),
        ("GET /hello HTTP/1.1\nHost: x\nContent-Length: 1\nContent-Length: 2\n\n", 400),
        ("GET /hello HTTP/x\nHost: x\n\n", 400),
        ("nonsense\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\nHost: x\nLong: " + "x" * REQUEST_BYTES_MAX, 431),
        ("GET /bug HTTP/1.1\nHost: x\n\n", 500),
    ],
)
def test_missing_or_wrong_values_are_reported(request_: str | bytes, status: int) -> None:
    async def scenario(server: Server) -> None:
        answer = await server.ask(request_)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        assert (b"allow: GET, HEAD" in answer) == (status == 405)
        assert b"ZeroDivision" not in answer
        assert (await server.ask("GET /hello HTTP/1.1\nHost: x\n\n")).endswith(b"hello you"), "no connection is left"

    run(scenario)


def test_a_request_in_small_pieces_and_a_second_one_that_is_not_read() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.open()
        for byte in b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).endswith(b"hello you")
        writer.close()
        assert (await server.ask("GET /hello HTTP/1.1\nHost: x\n\n" * 2)).count(b"200 OK") == 1

    run(scenario)


def test_silent_and_slow_clients_are_closed() -> None:
    async def scenario(server: Server) -> None:
        silent, _ = await server.open()
        slow, writer = await server.open()
        writer.write(b"GET /hello HTTP/1.1\r\n")
        await until(lambda: len(server.http._open) == 2)
        server.clock.advance(REQUEST_S - 0.1)
        writer.write(b"Host: x\r\n")  # another header extends no deadline
        await writer.drain()
        assert len(server.http._open) == 2
        server.clock.advance(0.2)
        assert await closed(silent)
        assert await closed(slow)
        assert not server.http._open

    run(scenario)


def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    async def scenario(server: Server) -> None:
        reader, writer = await server.open()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: not next(iter(server.http._open)).reading)
        server.clock.advance(ANSWER_S - 0.1)
        assert len(server.http._open) == 1
        server.clock.advance(0.2)
        assert not server.http._open
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(len(LARGE)), DEADLINE_S)

    run(scenario)


def test_many_silent_connections_keep_no_client_out() -> None:
    async def scenario(server: Server) -> None:
        first, writer = await server.open()
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: bool(server.http._open) and not next(iter(server.http._open)).reading)
        idle = [await server.open() for _ in range(server.http.connections_max + 5)]
        await until(lambda: len(server.http._open) == server.http.connections_max)
        assert (await server.ask("GET /hello HTTP/1.1\nHost: x\n\n")).endswith(b"hello you")
        assert await closed(idle[0][0]), "the oldest connection gave way"
        server.slow.set()
        assert (await asyncio.wait_for(first.read(), DEADLINE_S)).endswith(b"at last"), (
            "a connection with a request under way stays"
        )
        for _, each in idle:
            each.close()

    run(scenario)


def test_more_answers_at_once_than_connections_are_refused() -> None:
    async def scenario(server: Server) -> None:
        server.http.connections_max = 2
        asked = [asyncio.ensure_future(server.ask("GET /slow HTTP/1.1\nHost: x\n\n")) for _ in range(2)]
        await until(lambda: [each.reading for each in server.http._open] == [False, False])
        third, _ = await server.open()
        assert await closed(third)
        server.slow.set()
        assert all(answer.endswith(b"at last") for answer in await asyncio.gather(*asked))

    run(scenario)


def test_stopping_ends_every_connection_and_what_is_being_answered() -> None:
    async def scenario(server: Server) -> None:
        idle, _ = await server.open()
        slow, writer = await server.open()
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: any(not each.reading for each in server.http._open))
        await server.http.stop()
        assert await closed(idle)
        assert await closed(slow)
        assert not server.http._answering
        with pytest.raises(OSError):  # noqa: PT011
            await server.open()

    run(scenario)


def test_a_port_that_is_taken_and_an_address_of_another_machine() -> None:
    async def scenario(server: Server) -> None:
        other = HttpServer({}, server.clock)
        with pytest.raises(PortInUse, match="metrics_listen"):
            await other.start(HOST, server.port)
        with pytest.raises(InvalidConfig, match="metrics_listen"):
            await other.start("192.0.2.1", 0)
        await other.stop()

    run(scenario)
