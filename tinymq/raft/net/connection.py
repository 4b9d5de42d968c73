"""One TCP connection between brokers: bytes from asyncio to frames and the handshake, and frames out.

The class serves dialer and acceptor. Callbacks report to its owner that it opened, each message, and its end. This
class knows one socket. It knows neither the set of peers nor when to dial again.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from google.protobuf.message import DecodeError

from tinymq.base.clock import Clock, Timer
from tinymq.base.config import Limits, format_address
from tinymq.base.errors import BrokerUnreachable, Closed, DeadlineExceeded, InvalidFrame, TinymqError
from tinymq.net.connection_limits import host_of
from tinymq.net.framing import PREFIX_BYTES, Chunk, FrameReader, pack_frame
from tinymq.net.output_buffer import OutputBuffer
from tinymq.net.socket_options import prepare
from tinymq.net.tls_failures import reason_of
from tinymq.net.tls_names import broker_of, tinymq_uri, uris_of
from tinymq.net.unfinished_frames import Claim, FrameDeadline, FrameRoom
from tinymq.proto import peer_pb2
from tinymq.raft.net import handshake
from tinymq.raft.net.handshake import Handshake, HandshakeState
from tinymq.raft.net.transport import HANDSHAKE_TIMEOUT_S, HEAD_BYTES_MAX, UNACKNOWLEDGED_S, PeerIdentity, out_bytes_max

DRAIN_S, DRAIN_POLL_S = 5.0, 0.01  # an old connection waits for its unsent frames to leave
BURST_S = 50e-6  # a send within this time of a write waits for the end of the loop's iteration, to share a write


class Connection(asyncio.BufferedProtocol):
    """One connection, from its handshake to its end. `lost` resolves, once, with the reason of the end."""

    def __init__(
        self,
        shake: Handshake,
        limits: Limits,
        clock: Clock,
        *,
        remote: str = "",
        on_open: Callable[[Connection], None],
        on_message: Callable[[Connection, peer_pb2.Peer, Chunk], None],
        on_lost: Callable[[Connection, TinymqError], None],
        room: FrameRoom | None = None,
    ) -> None:
        """`room` bounds the large frames of all accepted connections. With it, frames have deadlines, too
        (unfinished_frames.py)."""
        self.handshake = shake
        self.remote = remote  # for people; an acceptor learns it when the connection is made
        self.opened = False  # the handshake was completed, whatever came later
        self.closing = False  # invariant: nothing is delivered or sent any more
        self._limits = limits
        self._clock = clock
        self._on_open = on_open
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[TinymqError] = self._loop.create_future()
        self._reader = FrameReader(handshake.FRAME_BYTES_MAX, handshake.FRAME_BYTES_MAX, asks=room is not None)
        self._room_of_all = room
        self._claim: Claim | None = None  # of `room`, while the connection is open
        self._frame_deadline: FrameDeadline | None = None  # while the connection is open
        self._transport: asyncio.Transport | None = None
        self._deadline: Timer | None = clock.call_later(HANDSHAKE_TIMEOUT_S, self._expire)
        self._age: Timer | None = None
        self._reason: TinymqError | None = None
        self._output = OutputBuffer()
        self._flush_due = False
        self._wrote_s = -math.inf  # when the last frame that did not wait was written
        self._out_bytes_max = 0

    # ---- what the owner calls ----------------------------------------------------------------------

    @property
    def peer(self) -> PeerIdentity:
        """The identity of the peer. Only once the connection has opened."""
        assert self.opened
        assert self.handshake.peer is not None
        return self.handshake.peer

    @property
    def buffered_bytes(self) -> int:
        """Bytes that `send` took and the operating system did not take yet."""
        return self._output.unsent_bytes

    def send(self, head: bytes, body: Sequence[Chunk]) -> bool:
        """Queue one frame. False while closing, or when the queue would exceed its bound.

        A frame after a pause leaves at once; those that follow closely leave together at the end of the
        loop's iteration. One frame is always taken when nothing waits.
        """
        if self.closing or not self.opened:
            return False
        chunks, total = pack_frame(head, body)
        assert len(head) <= HEAD_BYTES_MAX, "a head over its bound"
        assert total - PREFIX_BYTES <= self._limits.peer_frame_bytes_max, "a frame over its bound"
        if self._output.waiting and self._output.unsent_bytes + total > self._out_bytes_max:
            return False
        self._output.put(chunks, total)
        if self._flush_due or self._output.full:
            return True
        if self._clock.monotonic() - self._wrote_s < BURST_S:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        else:
            self._flush()
            self._wrote_s = self._clock.monotonic()
        return True

    def end_after(self, seconds: float, *, drain: bool = False) -> None:
        """End the connection once it is this old. `drain`: wait a while longer for its unsent frames."""
        if math.isfinite(seconds):
            grow = partial(self._grow_old, self._clock.monotonic() + seconds, drain)
            self._age = self._clock.call_later(seconds, grow)

    def _grow_old(self, since_s: float, drain: bool) -> None:
        if drain and self._output.unsent_bytes and self._clock.monotonic() - since_s < DRAIN_S:
            self._age = self._clock.call_later(DRAIN_POLL_S, partial(self._grow_old, since_s, drain))
        else:
            self.close(Closed("the connection is old"), sends=drain)

    def close(self, reason: TinymqError, farewell: bytes | None = None, *, sends: bool = False) -> None:
        """End the connection. Nothing more is delivered. Unsent frames are dropped, except `farewell`; with `sends`,
        asyncio still sends what it has taken."""
        if self.closing:
            return
        self.closing = True
        self._reason = reason
        self._output.drop()
        self._cancel_deadline()
        self._cancel_age()
        if self._transport is None:
            self._loop.call_soon(self.connection_lost, None)  # asyncio reports no end of a connection that never opened
        elif farewell is not None:
            self._transport.writelines(pack_frame(farewell)[0])
            self._transport.close()
        elif sends:
            self._transport.close()
        else:
            self._transport.abort()

    # ---- what asyncio calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        if not self.remote:
            self.remote = format_address(host, port)
        if self._room_of_all is not None:
            clock = self._clock
            self._claim = Claim(self._room_of_all, host_of(host), self._granted)
            self._frame_deadline = FrameDeadline(self._reader, clock.monotonic, clock.call_later, self._frame_expired)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.handshake.certified_broker = broker_of(tinymq_uri(uris_of(tls.getpeercert() or {})))
        self._output.open(transport)
        prepare(transport.get_extra_info("socket"), UNACKNOWLEDGED_S)
        if self.closing:
            transport.abort()
            return
        first = self.handshake.first_message
        if first is not None:
            transport.writelines(pack_frame(first)[0])

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        self._take_frames()
        if self._frame_deadline is not None and not self._reader.wanted_bytes:
            self._frame_deadline.look()

    def _take_frames(self) -> None:
        while not self.closing:
            try:
                frame = self._reader.next_frame()
                if frame is None:
                    if self._reader.wanted_bytes:
                        self._ask_for_room()
                    return
                if self._claim is not None:
                    self._claim.give_back()
                if not self.opened or self.handshake.dialer:
                    self._shake(*frame)
                    continue
                message = _parse(frame[0])
            except TinymqError as error:
                self.close(error, self.handshake.farewell)
                return
            self._on_message(self, message, frame[1])

    def eof_received(self) -> bool | None:
        # Nobody sends on a connection whose other end reads no more. asyncio would close it only after the other end
        # has taken all unsent bytes, which may never happen, and nobody would dial in the meantime.
        if self._transport is not None:
            self._transport.abort()
        return None

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._flush_due = False
        self._output.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost.done():
            return
        reason = self._reason or self._end(exc)
        self.closing = True
        self._output.close()
        self._cancel_deadline()
        self._cancel_age()
        if self._claim is not None and self._frame_deadline is not None:
            self._claim.give_back()
            self._frame_deadline.close()
        self._reader.drop()
        self._transport = None
        self.lost.set_result(reason)
        self._on_lost(self, reason)

    # ---- inside ------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flush_due = False
        self._output.flush()

    def _ask_for_room(self) -> None:
        """Ask for room for a large frame that has begun. Nothing is read until there is room for its buffer."""
        assert self._claim is not None
        if self._claim.ask(self._reader.wanted_bytes):
            self._reader.begin()
        elif self._transport is not None and self._frame_deadline is not None:
            self._transport.pause_reading()
            self._frame_deadline.pause()

    def _granted(self) -> None:
        if self.closing or self._transport is None or self._frame_deadline is None:
            return
        self._reader.begin()
        self._transport.resume_reading()
        self._frame_deadline.look()

    def _frame_expired(self, allowed_s: float) -> None:
        self.close(DeadlineExceeded(f"a frame of {self._reader.begun_bytes} bytes took longer than {allowed_s:.0f} s"))

    def _shake(self, head: bytes, body: Chunk) -> None:
        if body:
            raise InvalidFrame("a handshake's frame with a body")
        answer = self.handshake.receive(head)
        if answer is not None:
            assert self._transport is not None
            self._transport.writelines(pack_frame(answer)[0])
        if self.handshake.state is HandshakeState.WELCOMED and self.handshake.dialer:
            self.close(Closed("the acceptor has sent the cluster to join"))
        if self.handshake.state is HandshakeState.OPEN:
            self._cancel_deadline()
            if not self.handshake.dialer:  # to a dialer, only a late refusal can still come
                self._reader.frame_bytes_max = self._limits.peer_frame_bytes_max
                self._reader.head_bytes_max = HEAD_BYTES_MAX
            self._out_bytes_max = out_bytes_max(self._limits, self.handshake.channel)
            self.opened = True
            self._on_open(self)

    def _expire(self) -> None:
        self.close(DeadlineExceeded(f"{self.remote} did not complete the handshake in {HANDSHAKE_TIMEOUT_S:g} s"))

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_age(self) -> None:
        if self._age is not None:
            self._age.cancel()
            self._age = None

    def _end(self, exc: Exception | None) -> TinymqError:
        """Say why the connection ended, if this side did not end it."""
        if isinstance(exc, ssl.SSLError):  # a refusal of TLS 1.3 arrives after this side's handshake
            return BrokerUnreachable(f"{self.remote}: {reason_of(exc)}")
        if exc is not None and not isinstance(exc, OSError):
            return BrokerUnreachable(f"{self.remote}: {exc!r}")
        if not self.opened:
            return self.handshake.silence()
        return self._reader.cut_short() or BrokerUnreachable(f"{self.remote} closed the connection")


def _parse(head: bytes) -> peer_pb2.Peer:
    try:
        return peer_pb2.Peer.FromString(head)
    except DecodeError:
        raise InvalidFrame("a frame whose head is not a message between brokers") from None
