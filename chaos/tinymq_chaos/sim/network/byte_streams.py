"""One TCP connection between a client and a broker's stream port: bytes, in order, both ways.

Frames are cut and joined at any byte, as a network does, and the code that ships puts them together again.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from tinymq.simulation.link_conditions import Direction, NetworkConditions
from tinymq_chaos.sim.network.client_network import Acceptor, ClientNetwork
from tinymq_chaos.sim.network.transit import Transit

WINDOW_BYTES = 256 << 10  # the system takes so many bytes that the other end has not read
PIECES = 0.1  # share of writes that arrive in two pieces


class ByteStream:
    """One direction of a connection. None is its end."""

    def __init__(self, conditions: NetworkConditions, direction: Direction, rng: random.Random) -> None:
        self.sender: ByteTransport | None = None
        self.receiver: ByteTransport | None = None
        self.unread_bytes = 0  # sent, and not read by the receiver's program
        self._rng = rng
        self._transit = Transit(conditions, direction, self._arrived)

    def send(self, data: bytes | None) -> None:
        if data is not None and len(data) > 1 and self._rng.random() < PIECES:
            cut = self._rng.randrange(1, len(data))
            self._put(data[:cut])
            data = data[cut:]
        self._put(data)

    def _put(self, data: bytes | None) -> None:
        self.unread_bytes += len(data or b"")
        self._transit.put(data)

    def _arrived(self, data: bytes | None) -> None:
        if self.receiver is not None:
            self.receiver.arrived(data)

    def schedule(self) -> None:
        """Deliver what is on its way when it is due. Called again when a cut ends."""
        self._transit.schedule()

    def read(self, count: int) -> None:
        """Note that the receiver's program has read so many bytes, or will never read them."""
        self.unread_bytes -= count
        if self.sender is not None:
            self.sender.drained()

    def drop(self) -> None:
        """Lose the bytes that are on their way."""
        self._transit.drop()


class ByteTransport(asyncio.Transport):
    """One end of a connection, as asyncio shows it to a protocol. Every call of the protocol is a step of its program,
    so it waits while that is paused, and is never made once that is gone."""

    def __init__(
        self,
        peer: str,
        sends: ByteStream,
        receives: ByteStream,
        context: contextvars.Context,
        ended: Callable[[], None],
    ) -> None:
        super().__init__({"peername": (peer, 1)})
        self._out, self._in = sends, receives
        self._out.sender = self._in.receiver = self
        self._context = context
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BufferedProtocol | None = None
        self._inbox: deque[bytes | None] = deque()
        self._reading = True
        self._closing = self._eof_sent = self._lost = False
        self._paused = False  # the protocol was told to write no more
        self._high, self._low = 64 << 10, 16 << 10

    def begin(self, protocol: asyncio.BufferedProtocol) -> None:
        """Give the connection to its protocol. Called in its program."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._soon(self._read)

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call, context=self._context.copy())

    # ---- what the network calls ------------------------------------------------------------------------

    def arrived(self, data: bytes | None) -> None:
        self._inbox.append(data)
        self._soon(self._read)

    def drained(self) -> None:
        if self._paused and self.get_write_buffer_size() <= self._low:
            self._soon(self._resume)

    def break_off(self, why: str) -> None:
        """Let the connection be gone, as a reset does."""
        self._inbox.clear()
        self._lose(ConnectionResetError(why))

    # ---- what the protocol calls -----------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing or self._eof_sent:
            return
        self._out.send(bytes(data))
        if not self._paused and self.get_write_buffer_size() > self._high:
            self._paused = True
            self._running().pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self._out.send(None)

    def close(self) -> None:
        """Send what was written, and end. The other end learns of it when that has arrived."""
        if not self._closing:
            self.write_eof()
            self._lose(None)

    def abort(self) -> None:
        """Close at once: read nothing more. The other end still gets the bytes that were written, and then the end."""
        self._inbox.clear()
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return max(0, self._out.unread_bytes - WINDOW_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._soon(self._read)

    # ---- inside ----------------------------------------------------------------------------------------

    def _running(self) -> asyncio.BufferedProtocol:
        assert self._protocol is not None, "the connection has begun"
        return self._protocol

    def _read(self) -> None:
        if self._protocol is None:
            return
        while self._inbox and self._reading and not self._closing:
            data = self._inbox.popleft()
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            buffer = memoryview(self._protocol.get_buffer(-1))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            if count < len(data):
                self._inbox.appendleft(data[count:])
            self._in.read(count)
            self._protocol.buffer_updated(count)

    def _resume(self) -> None:
        if self._paused and not self._lost:
            self._paused = False
            self._running().resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._soon(lambda: self._end(error))

    def _end(self, error: Exception | None) -> None:
        self._lost = True
        self._ended()
        if self._protocol is not None:
            self._protocol.connection_lost(error)


class StreamConnection:
    """Both directions and both ends. It has what `ClientNetwork` needs of a call."""

    def __init__(self, net: ClientNetwork, client: int, acceptor: Acceptor, rng: random.Random) -> None:
        self.client = client
        self.server = acceptor
        self.up = ByteStream(net.conditions, (client, acceptor.broker_id), rng)
        self.down = ByteStream(net.conditions, (acceptor.broker_id, client), rng)
        self._net = net
        self._open = 2  # ends
        self.client_end = ByteTransport("broker", self.up, self.down, contextvars.copy_context(), self._end)
        self.server_end = ByteTransport(f"client-{client}", self.down, self.up, acceptor.process.context, self._end)
        net.calls[self] = None

    def _end(self) -> None:
        self._open -= 1
        if not self._open:
            self._net.calls.pop(self, None)

    def break_off(self, why: str) -> None:
        """End both sides: the connection is gone."""
        self._net.calls.pop(self, None)
        self.up.drop()
        self.down.drop()
        self.client_end.break_off(why)
        self.server_end.break_off(why)
