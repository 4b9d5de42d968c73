"""One port for gRPC with and without TLS: relays each connection to the listener that its first bytes are for.

gRPC takes either kind on a port, not both. While a cluster moves to TLS, its clients move one by one and keep their
addresses, so this relay listens in front of two listeners on loopback. Records travel beside gRPC (stream_server.py),
so what passes here is small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tinymq.net.acceptor import Acceptor
from tinymq.net.connection_limits import Place, Places
from tinymq.net.tls_files import HANDSHAKE_S
from tinymq.net.tls_ports import TLS_BEGINS_BYTES, is_tls, may_be_tls
from tinymq.rpc.common import relayed

UNSENT_BYTES_MAX = 256 * 1024  # of one direction; then the other side is not read


class FirstByteRelay:
    """Listens from `start` to `stop`."""

    def __init__(self, places: Places) -> None:
        self._acceptor = Acceptor(places, self._connection)
        self._ports = (0, 0)  # on loopback: without TLS, with TLS
        self._open: set[_Outer] = set()

    async def start(self, host: str, port: int, plain_port: int, tls_port: int) -> int:
        """Listen, and return the bound port. Raises PortInUse, InvalidConfig."""
        self._ports = plain_port, tls_port
        return await self._acceptor.start(host, port, setting="listen", dual_stack=True)

    def stop(self) -> None:
        """Accept nothing more. Open connections end with gRPC's listeners."""
        self._acceptor.close()

    def abort(self) -> None:
        """End all connections."""
        for each in list(self._open):
            each.end()

    def _connection(self, place: Place) -> asyncio.BaseProtocol:
        outer = _Outer(place, self._ports, self._open.discard)
        self._open.add(outer)
        return outer


class _End(asyncio.Protocol):
    """One of the two connections of a relayed one."""

    def __init__(self) -> None:
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        other, self.other = self.other, None
        if other is not None and other.transport is not None:
            other.transport.close()  # what was read is still written


class _Outer(_End):
    """The connection of a client."""

    def __init__(self, place: Place, ports: tuple[int, int], ended: Callable[[_Outer], None]) -> None:
        super().__init__()
        self._place = place
        self._ports = ports
        self._ended = ended
        self._first = b""
        self._dialling: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.end)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._first += data
        if self._dialling is not None or (len(self._first) < TLS_BEGINS_BYTES and may_be_tls(self._first)):
            return
        assert self.transport is not None
        self.transport.pause_reading()
        self._dialling = asyncio.get_running_loop().create_task(self._dial(self._ports[is_tls(self._first)]))

    def end(self) -> None:
        """End both connections now."""
        for end in (self, self.other):
            if end is not None and end.transport is not None:
                end.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
        super().connection_lost(exc)
        self._place.leave()
        self._ended(self)

    async def _dial(self, port: int) -> None:
        inner = _Inner(self._place.host)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: inner, relayed.LOOPBACK, port, local_addr=(relayed.LOOPBACK, 0)
            )
        except OSError:
            self.end()
            return
        if self.transport is None or inner.transport is None:
            inner.drop()
            self.end()
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.other, inner.other = inner, self
        first, self._first = self._first, b""
        inner.transport.write(first)
        self.transport.resume_reading()


class _Inner(_End):
    """The connection to one of gRPC's own listeners."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host
        self._port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._port = transport.get_extra_info("sockname")[1]
        relayed.note(self._port, self._host)

    def connection_lost(self, exc: Exception | None) -> None:
        relayed.end(self._port)
        super().connection_lost(exc)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
