"""Frames over a blocking socket: complete and in order, or the reason why there are no more."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tinymq.base.errors import Closed, InvalidFrame
from tinymq.net.frame_socket import FrameSocket
from tinymq.net.framing import PREFIX, FrameReader, pack_frame

BYTES_MAX = 1 << 20

Both = tuple[FrameSocket, socket.socket]


@pytest.fixture
def both() -> Iterator[Both]:
    """One end, and the other as a plain socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with theirs:
        framed = FrameSocket(mine, FrameReader(BYTES_MAX, BYTES_MAX))
        yield framed, theirs
        framed.close()
        framed.close()


def frame(head: bytes, body: bytes = b"") -> bytes:
    return b"".join(pack_frame(head, (body,))[0])


def received(theirs: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += theirs.recv(count - len(found))
    return found


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, BYTES_MAX - 2])
def test_frames_arrive_whole_and_in_order_both_ways(both: Both, size: int) -> None:
    framed, theirs = both
    body = os.urandom(size)
    sending = threading.Thread(target=theirs.sendall, args=(frame(b"h1", body) + frame(b"h2"),))
    sending.start()
    head, there = framed.receive(10)
    assert (head, bytes(there)) == (b"h1", body)
    assert framed.receive(10) == (b"h2", b"")
    sending.join()
    sending = threading.Thread(target=framed.send, args=(b"head", (body[:10], memoryview(body)[10:]), 10))
    sending.start()
    assert received(theirs, len(frame(b"head", body))) == frame(b"head", body)
    sending.join()


def test_half_a_frame_is_waited_for_and_then_read_on(both: Both) -> None:
    framed, theirs = both
    theirs.sendall(frame(b"head", b"body")[:7])
    with pytest.raises(TimeoutError):
        framed.receive(0.01)
    theirs.sendall(frame(b"head", b"body")[7:])
    assert framed.receive(10) == (b"head", b"body")


def test_a_frame_that_comes_byte_by_byte_has_no_longer_than_others(both: Both) -> None:
    framed, theirs = both
    ended = threading.Event()

    def drip() -> None:
        for byte in frame(b"", bytes(BYTES_MAX - 1)):
            if ended.wait(0.001):
                return
            theirs.sendall(bytes((byte,)))

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(TimeoutError):
        framed.receive(0.2)
    ended.set()
    dripping.join()


def test_a_stalled_send_ends(both: Both) -> None:
    framed, _ = both
    with pytest.raises(TimeoutError):
        framed.send(b"", (bytes(64 << 20),), 0.05)


@pytest.mark.parametrize(
    ("sent", "error", "said"),
    [
        (b"", Closed, "the other end closed it"),
        (frame(b"head", b"body")[:9], InvalidFrame, "cut off"),
        (PREFIX.pack(BYTES_MAX + 1, 1), InvalidFrame, "at most"),
        (PREFIX.pack(1, 2), InvalidFrame, "head of 2"),
    ],
)
def test_why_there_is_no_frame(both: Both, sent: bytes, error: type[Exception], said: str) -> None:
    framed, theirs = both
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(error, match=said):
        framed.receive(10)


def test_quiet_is_a_connection_with_nothing_to_be_read(both: Both) -> None:
    framed, theirs = both
    assert framed.quiet
    theirs.sendall(frame(b"head"))
    assert framed.receive(10) == (b"head", b"")
    assert framed.quiet
    theirs.sendall(b"x")
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    theirs.close()  # by a reset
    with pytest.raises((Closed, InvalidFrame)):
        framed.receive(10)
    assert not framed.quiet


def test_a_waiting_caller_learns_of_the_end(both: Both) -> None:
    framed, theirs = both
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            framed.receive(60)
        except Closed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    framed.shut()
    waiting.join(10)
    assert raised
    assert theirs.recv(1) == b"", "as is the other end"
    with pytest.raises(Closed, match=r"Broken pipe|reset|closed"):
        framed.send(b"head", (), 1)
