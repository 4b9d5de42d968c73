"""Frames over a real connection: complete and in order, with backpressure, and ended once with a reason that every
waiting call gets.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.client.running import run
from tests.tls.authorities import of_broker
from tinymq.base.config import KIB
from tinymq.base.errors import Closed, InvalidFrame, TinymqError
from tinymq.net import frame_stream
from tinymq.net.frame_stream import FrameStream
from tinymq.net.framing import PREFIX, PREFIX_BYTES, READ_BUFFER_BYTES, pack_frame
from tinymq.net.output_buffer import TLS_SLICE_BYTES
from tinymq.net.tls_files import Loaded

FRAME_BYTES_MAX = 4 << 20
HEAD_BYTES_MAX = 1024
Scenario = Callable[[FrameStream, FrameStream], Awaitable[None]]


def make_stream() -> FrameStream:
    return FrameStream(FRAME_BYTES_MAX, HEAD_BYTES_MAX)


async def dialled() -> tuple[FrameStream, FrameStream]:
    """The two ends of a TCP connection; the dialler's first."""
    return await joined(*tcp())


async def dialled_with_tls() -> tuple[FrameStream, FrameStream]:
    return await joined(*tcp(), certified())


async def pair() -> tuple[FrameStream, FrameStream]:
    """The two ends of a pair of local sockets, which hold no more than 16 KiB: TCP would hold megabytes."""
    return await joined(*small())


async def pair_with_tls() -> tuple[FrameStream, FrameStream]:
    return await joined(*small(), certified())


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialler = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return dialler, accepted


def small() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
    return ends


@cache
def certified() -> Loaded:
    with tempfile.TemporaryDirectory() as place:
        return of_broker(Path(place) / "broker", 1).current()


async def joined(
    dialler: socket.socket, accepted: socket.socket, tls: Loaded | None = None
) -> tuple[FrameStream, FrameStream]:  # fmt: skip
    """Make a stream of each end."""
    loop = asyncio.get_running_loop()
    dials, serves, name = (tls.dials, tls.serves, "localhost") if tls is not None else (None, None, None)
    (_, one), (_, other) = await asyncio.gather(
        loop.create_connection(make_stream, sock=dialler, ssl=dials, server_hostname=name),
        loop.connect_accepted_socket(make_stream, accepted, ssl=serves),
    )
    return one, other


Connect = Callable[[], Awaitable[tuple[FrameStream, FrameStream]]]

either_way = pytest.mark.parametrize("connect", [dialled, dialled_with_tls])
in_small_pieces = pytest.mark.parametrize("connect", [pair, pair_with_tls])


def between(scenario: Scenario, connect: Connect = dialled) -> None:
    """Run `scenario` with the two ends of one connection."""

    async def main() -> None:
        one, other = await connect()
        try:
            await scenario(one, other)
        finally:
            one.abort()
            other.abort()

    run(main())


def wire(stream: FrameStream) -> asyncio.Transport:
    assert stream._transport is not None
    return stream._transport


def socket_transport(stream: FrameStream) -> asyncio.Transport:
    """The transport of the socket itself, below TLS."""
    tls = getattr(wire(stream), "_ssl_protocol", None)
    return wire(stream) if tls is None else tls._transport  # type: ignore[no-any-return]


@either_way
@pytest.mark.parametrize("size", [0, 1, READ_BUFFER_BYTES - 16, READ_BUFFER_BYTES, READ_BUFFER_BYTES + 1, 3 << 20])
def test_frames_arrive_whole_and_in_order_both_ways(size: int, connect: Connect) -> None:
    bodies = [bytes([i]) * size for i in range(3)]

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        async def send(stream: FrameStream) -> None:
            for i, body in enumerate(bodies):
                await stream.send(b"%d" % i, (body[: size // 2], body[size // 2 :]))

        async def receive(stream: FrameStream) -> list[tuple[bytes, bytes]]:
            return [(head, bytes(body)) for head, body in [await stream.receive() for _ in bodies]]

        wanted = [(b"%d" % i, body) for i, body in enumerate(bodies)]
        _, _, at_a, at_b = await asyncio.gather(send(a), send(b), receive(a), receive(b))
        assert at_a == at_b == wanted
        assert a.remote_host == "127.0.0.1"

    between(scenario, connect)


@in_small_pieces
@pytest.mark.parametrize(("size", "frames"), [(256 << 10, 40), (100, 8_000)])
def test_unreceived_frames_are_not_read_and_hold_the_sender_back(
    size: int, frames: int, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    """The buffers of both ends are bounded, however much is sent."""
    unsent_max, unread_max, unread_frames_max = 16 * KIB, 64 * KIB, 64
    monkeypatch.setattr(frame_stream, "UNSENT_BYTES_MAX", unsent_max)
    monkeypatch.setattr(frame_stream, "UNREAD_BYTES_MAX", unread_max)
    monkeypatch.setattr(frame_stream, "UNREAD_FRAMES_MAX", unread_frames_max)
    body = b"x" * size
    sent = 0

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        async def send() -> None:
            nonlocal sent
            for _ in range(frames):
                await a.send(b"h", (body,))
                sent += 1

        sending = asyncio.ensure_future(send())
        while a._taken is None and not sending.done():  # the sender waits, or would have
            await asyncio.sleep(0)
        while b._reading:
            await asyncio.sleep(0)
        at_rest = -1
        while sent != at_rest:
            at_rest = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert not sending.done()
        assert b._unread_bytes <= unread_max + READ_BUFFER_BYTES + size
        assert len(b._frames) <= unread_frames_max + READ_BUFFER_BYTES // (PREFIX_BYTES + 1 + size) + 1
        assert a._output.unsent_bytes <= unsent_max + size + 1024
        for _ in range(frames):
            head, received = await b.receive()
            assert (head, len(received)) == (b"h", size)
        await sending

    between(scenario, connect)


def test_little_lies_below_tls_without_being_counted() -> None:
    """asyncio reports of its buffers only those above the encryption."""

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        socket_transport(b).pause_reading()
        sending = asyncio.ensure_future(a.send(b"h", (b"x" * (3 << 20),)))
        await stuck(sending)
        below_bytes = socket_transport(a).get_write_buffer_size()
        assert 0 < below_bytes <= TLS_SLICE_BYTES + 64 * KIB
        a.abort()
        with pytest.raises(Closed):
            await sending

    between(scenario, pair_with_tls)


@either_way
def test_frames_sent_before_the_end_are_received_before_it(connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        await a.send(b"one")
        await a.send(b"two", (b"x" * (2 << 20),))
        await a.finish()
        assert (await b.receive())[0] == b"one"
        assert len((await b.receive())[1]) == 2 << 20
        for _ in range(2):
            with pytest.raises(Closed):
                await b.receive()
        for refuse in (b.send(b"late"), a.send(b"late"), a.receive(), a.finish()):
            with pytest.raises(Closed):
                await refuse

    between(scenario, connect)


@either_way
def test_nothing_is_written_to_who_has_gone(caplog: pytest.LogCaptureFixture, connect: Connect) -> None:
    """asyncio would print a warning that the user sees: socket.send() raised exception."""

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        wire(a).abort()  # like asyncio when the other end has closed; `a` learns it later
        for _ in range(10):
            await a.send(b"x")
        with pytest.raises(Closed):
            await a.receive()

    between(scenario, connect)
    assert not caplog.records


@in_small_pieces
@pytest.mark.parametrize("size", [200 * KIB, 2 << 20])  # the sender of the first one does not wait
def test_a_peer_that_ends_its_side_and_takes_nothing_more_has_gone(connect: Connect, size: int) -> None:
    """Its end of the socket stays open, as that of a process that hangs."""

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        socket_transport(b).pause_reading()
        sending = asyncio.ensure_future(a.send(b"h", (b"x" * size,)))
        if size > frame_stream.UNSENT_BYTES_MAX:
            await stuck(sending)
        else:
            await sending
        wire(b).get_extra_info("socket").shutdown(socket.SHUT_WR)
        with pytest.raises(Closed, match="the other end closed it"):
            await a.receive()
        if not sending.done():
            with pytest.raises(Closed):
                await sending

    between(scenario, connect)


@either_way
@pytest.mark.parametrize("who", ["this end", "the other"])
def test_a_waiting_receiver_learns_of_the_end(who: str, connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        async def send() -> None:
            while True:
                await a.send(b"", (b"x" * (1 << 20),))  # without a receiver the sender soon waits

        waiting = [asyncio.ensure_future(a.receive()), asyncio.ensure_future(send())]
        while a._taken is None or a._arrived is None:
            await asyncio.sleep(0)
        (a if who == "this end" else b).abort()
        for each in waiting:
            with pytest.raises(Closed):
                await each
        assert a._output.unsent_bytes == 0, "unsent bytes are dropped"

    between(scenario, connect)


@either_way
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (PREFIX.pack(FRAME_BYTES_MAX + 1, 0), "frame of"),
        (PREFIX.pack(HEAD_BYTES_MAX + 1, HEAD_BYTES_MAX + 1), "head of"),
        (PREFIX.pack(3, 4), "head of"),
        (pack_frame(b"whole")[0][0][:-1], "cut off"),
        (PREFIX.pack(1 << 20, 0) + b"x" * 100_000, "cut off"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame of"),
    ],
)
def test_nonsense_ends_it_after_what_came_before(sent: bytes, said: str, connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        await a.send(b"before")
        wire(a).write(sent)
        wire(a).close()
        assert (await b.receive())[0] == b"before"
        error: TinymqError
        with pytest.raises(InvalidFrame, match=said) as caught:
            await b.receive()
        error = caught.value
        with pytest.raises(InvalidFrame):
            await b.send(b"to whom?")
        assert error.hint

    between(scenario, connect)


@either_way
def test_a_receiver_that_is_cancelled_loses_nothing(connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        waiting = asyncio.ensure_future(b.receive())
        while b._arrived is None:
            await asyncio.sleep(0)
        await a.send(b"one")
        while not b._frames:
            await asyncio.sleep(0)
        waiting.cancel()  # woken, and cancelled before its turn
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await b.receive())[0] == b"one"

    between(scenario, connect)


@either_way
@pytest.mark.parametrize("how", ["abort", "finish"])
def test_a_forked_childs_descriptors_keep_nothing_open(how: str, connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        with socket.socket(fileno=os.dup(wire(a).get_extra_info("socket").fileno())):
            if how == "abort":
                a.abort()
            else:
                await a.finish()
            with pytest.raises(Closed):
                await b.receive()

    between(scenario, connect)


SENT_BYTES = 24 << 20  # more than a connection holds


class Part:
    """Parts of a file of SENT_BYTES: one, or several behind bytes that are in no file."""

    def __init__(self, file: int, position: int, length: int, loaded_s: float | None = None) -> None:
        self.file = file
        self.pieces = [(b"", position, length)]
        self.loaded_s = time.monotonic() if loaded_s is None else loaded_s
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return sum(len(between) + length for between, _, length in self.pieces)

    def fileno(self) -> int:
        return self.file

    def load(self, position: int) -> None:
        self.loaded.append(position)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """SENT_BYTES with different pages."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(number.to_bytes(8, "little") * 512 for number in range(SENT_BYTES // 4096)))
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


async def stuck(sending: asyncio.Future[None]) -> None:
    """The kernel accepts no more bytes."""
    for _ in range(300):
        await asyncio.sleep(0)
    assert not sending.done()


@either_way
@pytest.mark.parametrize("before", [1 << 20, SENT_BYTES])
def test_a_body_from_a_file_arrives_whole_between_others(file: int, before: int, connect: Connect) -> None:
    """Also behind a frame in asyncio's own buffer."""
    length = FRAME_BYTES_MAX - 10_000
    pieces = before // (1 << 20)

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        async def send() -> None:
            a._output.put(*pack_frame(b"before", (b"x" * (1 << 20),)))
            for _ in range(1, pieces):
                a._output.put(*pack_frame(b"before", (b"x" * (1 << 20),)))
            for number in range(5):
                await a.send_file(b"%d" % number, Part(file, number * length + 7, length))
            await a.send(b"after")

        wire(b).pause_reading()
        sending = asyncio.ensure_future(send())
        await stuck(sending)
        wire(b).resume_reading()
        for _ in range(pieces):
            head, body = await b.receive()
            assert (head, bytes(body)) == (b"before", b"x" * (1 << 20))
        for number in range(5):
            head, body = await b.receive()
            assert head == b"%d" % number
            assert bytes(body) == os.pread(file, length, number * length + 7)
        assert (await b.receive())[0] == b"after"
        await sending

    between(scenario, connect)


@either_way
def test_parts_of_a_file_arrive_between_bytes_that_are_in_no_file(file: int, connect: Connect) -> None:
    """More than the sockets hold at once, so that bytes between the parts have to wait for room, too."""
    body = Part(file, 0, 0)
    body.pieces = [(b"%064d" % n, n * 50_000, 38_000 + n) for n in range(100)]

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        async def send() -> None:
            for _ in range(SENT_BYTES // len(body)):
                await a.send_file(b"head", body)

        wire(b).pause_reading()
        sending = asyncio.ensure_future(send())
        await stuck(sending)
        wire(b).resume_reading()
        expected = b"".join(between + os.pread(file, length, at) for between, at, length in body.pieces)
        for _ in range(SENT_BYTES // len(body)):
            assert await b.receive() == (b"head", expected)
        await sending

    between(scenario, connect)


@pytest.mark.parametrize("left", [1, 2, 5])
def test_the_last_bytes_of_a_head_are_not_overtaken(file: int, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio buffers the bytes that the kernel does not accept, even a single one, without a notice."""

    async def scenario(a: FrameStream, b: FrameStream) -> None:
        transport = wire(a)
        real = transport._sock  # type: ignore[attr-defined]

        class Short:
            """Accepts all but the last bytes at the first call."""

            def __init__(self) -> None:
                self.first = True

            def send(self, data: bytes) -> int:
                self.first, short = False, self.first
                return int(real.send(data[:-left] if short else data))

            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

        monkeypatch.setattr(transport, "_sock", Short())
        await a.send_file(b"head!", Part(file, 0, 100_000))
        head, body = await b.receive()
        assert head == b"head!"
        assert bytes(body) == os.pread(file, 100_000, 0)

    between(scenario)


@either_way
def test_a_file_that_is_too_short_ends_the_connection(file: int, connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        with pytest.raises(Closed, match="shorter"):
            await a.send_file(b"", Part(file, SENT_BYTES - 1000, 1001))
        with pytest.raises(TinymqError):
            await b.receive()

    between(scenario, connect)


@either_way
def test_ranges_that_waited_long_are_loaded_again(file: int, connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        new, old = Part(file, 5, 1000), Part(file, 5, 1000, time.monotonic() - 10)
        await a.send_file(b"", new)
        await a.send_file(b"", old)
        assert (await b.receive())[1] == (await b.receive())[1]
        assert (new.loaded, old.loaded) == ([], [5])

    between(scenario, connect)


@either_way
@pytest.mark.parametrize("how", ["the other end goes", "this end aborts", "the sender is cancelled"])
def test_a_body_from_a_file_that_is_not_taken_ends_with_its_connection(file: int, how: str, connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        wire(b).pause_reading()
        loop = asyncio.get_running_loop()
        known = len(loop._selector.get_map())  # type: ignore[attr-defined]

        async def send() -> None:
            for number in range(6):
                await a.send_file(b"", Part(file, number, SENT_BYTES - number))

        sending = asyncio.ensure_future(send())
        await stuck(sending)
        if not a.encrypted:
            assert len(loop._selector.get_map()) == known + 1  # type: ignore[attr-defined]
        if how == "the sender is cancelled":
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        else:
            (b if how == "the other end goes" else a).abort()
            with pytest.raises(Closed):
                await sending
        for refuse in (a.send(b""), a.send_file(b"", Part(file, 0, 10))):
            with pytest.raises(Closed):
                await refuse
        while a._transport is not None:
            await asyncio.sleep(0)
        assert all(fd >= 0 for fd in loop._selector.get_map())  # type: ignore[attr-defined]
        numbers = set(os.listdir("/proc/self/fd"))
        waited_for = {str(fd) for fd in loop._selector.get_map()}  # type: ignore[attr-defined]
        assert waited_for <= numbers, "no call waits for a closed connection"

    between(scenario, connect)


@either_way
def test_within_one_machine_nothing_is_paced(connect: Connect) -> None:
    async def scenario(a: FrameStream, b: FrameStream) -> None:
        for end in (a, b):
            sock = wire(end).get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

    between(scenario, connect)
