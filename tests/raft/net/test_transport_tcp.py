"""TCP between brokers under bad input: a typed error, a closed connection, no delivery, and a listener that goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import structlog

from tests.fakes.manual_clock import ManualClock
from tests.fakes.networks import CLUSTER, DEADLINE_S, SECRET, End, TcpNetwork, connected, heartbeat, started
from tests.fakes.raw_client import until
from tinymq.base.config import MIB, Limits
from tinymq.base.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    InvalidConfig,
    InvalidFrame,
    QuotaExceeded,
    TinymqError,
    UnsupportedVersion,
    WrongBroker,
    WrongCluster,
    WrongSecret,
)
from tinymq.base.types import PeerAddress
from tinymq.net.framing import PREFIX, pack_frame
from tinymq.net.unfinished_frames import FRAME_S
from tinymq.proto import peer_pb2
from tinymq.raft.net.handshake import Credentials, Handshake
from tinymq.raft.net.tcp import TcpTransport
from tinymq.raft.net.transport import HANDSHAKE_TIMEOUT_S, HANDSHAKES_MAX, HEAD_BYTES_MAX, Channel

FRIEND = Credentials(1, b"\x01" * 16, CLUSTER, 1, SECRET)


def framed(head: bytes, *body: bytes) -> bytes:
    return b"".join(pack_frame(head, body)[0])


class Raw:
    """A peer that sends raw bytes, including those that a Connection never sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, end: End, host: str = "127.0.0.1") -> Raw:
        local = (host, 0)
        return cls(*await asyncio.open_connection(end.address.host, end.address.port, local_addr=local))

    @classmethod
    async def opened(cls, end: End, channel: Channel = Channel.BULK, me: Credentials = FRIEND) -> Raw:
        """Past the handshake."""
        raw = await cls.dial(end)
        shake = Handshake.dial(me, end.broker_id, channel, b"n" * 32)
        raw.send(framed(shake.first_message or b""))
        raw.send(framed(shake.receive(await raw.frame()) or b""))
        return raw

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            size, _ = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
            return await self.reader.readexactly(size)

    async def until_closed(self) -> bytes:
        """Return the messages that the other end sent before it closed."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()


def run(scenario: Callable[[TcpNetwork], Awaitable[None]], network: Callable[[], TcpNetwork] = TcpNetwork) -> None:
    async def whole() -> None:
        net = network()
        try:
            await scenario(net)
        finally:
            await net.stop()

    asyncio.run(whole())


async def turned_away(net: TcpNetwork, b: End, error: type[TinymqError]) -> None:
    """`b` logged this error once and delivered nothing, and a real broker can still connect."""
    await b.events.until(lambda: b.events.rejected)
    assert [type(e) for e in b.events.rejected] == [error]
    assert b.events.messages == []
    friend = net.make(7)
    await friend.transport.start()
    friend.transport.set_peer(b.address)
    await connected(friend, b)
    assert friend.send(b.broker_id, 42)
    await b.events.until(lambda: b.events.sequences == [42])


async def listening(net: TcpNetwork) -> End:
    b = net.make(2)
    await b.transport.start()
    return b


def hello(me: Credentials = FRIEND, to: int = 2) -> bytes:
    return Handshake.dial(me, to, Channel.BULK, b"n" * 32).first_message or b""


STRANGERS: list[tuple[bytes, type[TinymqError]]] = [
    (framed(hello(replace(FRIEND, cluster_id=b"another cluster!"))), WrongCluster),
    (framed(hello(to=3)), WrongBroker),
    (framed(hello(replace(FRIEND, broker_id=2))), WrongBroker),
    (framed(hello(replace(FRIEND, protocol_min=7, protocol_max=9))), UnsupportedVersion),
    (framed(hello(), b"a body"), InvalidFrame),
    (framed(b"\xff" * 100), InvalidFrame),
    (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", InvalidFrame),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300), InvalidFrame),  # TLS where there is none
    (PREFIX.pack(5000, 100), InvalidFrame),  # over what a stranger may send
    (PREFIX.pack(0xFFFFFFFF, 10), InvalidFrame),
    (PREFIX.pack(10, 20), InvalidFrame),
]


@pytest.mark.parametrize(("data", "error"), STRANGERS)
def test_a_stranger_is_turned_away(data: bytes, error: type[TinymqError]) -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        raw = await Raw.dial(b)
        raw.send(data)
        said = await raw.until_closed()
        if said:
            refused = peer_pb2.Hello.FromString(said[PREFIX.size :])
            assert refused.refused == error.code
            assert refused.reason
        await turned_away(net, b, error)

    run(scenario)


def test_a_wrong_secret_is_refused_even_from_a_peer_that_goes_on() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        raw = await Raw.dial(b)
        raw.send(framed(hello()))
        await raw.frame()
        raw.send(framed(peer_pb2.Proof(proof=b"x" * 32).SerializeToString()))
        raw.send(framed(heartbeat(1).SerializeToString()))
        said = await raw.until_closed()
        assert not said or peer_pb2.Hello.FromString(said[PREFIX.size :]).refused == "WrongSecret"
        await turned_away(net, b, WrongSecret)

    run(scenario)


def test_a_replayed_handshake_opens_nothing() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        first = await Raw.dial(b)
        shake = Handshake.dial(FRIEND, 2, Channel.BULK, b"n" * 32)
        opening = framed(shake.first_message or b"")
        first.send(opening)
        proof = framed(shake.receive(await first.frame()) or b"")
        first.send(proof + framed(heartbeat(1).SerializeToString()))
        await b.events.until(lambda: b.events.sequences == [1])
        b.events.messages.clear()
        replay = await Raw.dial(b)
        replay.send(opening + proof + framed(heartbeat(1).SerializeToString()))
        await replay.until_closed()
        await turned_away(net, b, WrongSecret)
        assert 1 not in b.events.sequences, "no message of the replay was accepted"

    run(scenario)


def test_silence_has_a_deadline() -> None:
    clock = ManualClock()

    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        mute, halfway = await Raw.dial(b), await Raw.dial(b)
        halfway.send(framed(hello()))
        await halfway.frame()
        clock.advance(HANDSHAKE_TIMEOUT_S - 0.1)
        assert b.events.rejected == []
        clock.advance(0.2)
        assert await mute.until_closed() + await halfway.until_closed() == b""
        await b.events.until(lambda: len(b.events.rejected) == 2)
        assert {type(e) for e in b.events.rejected} == {DeadlineExceeded}
        del b.events.rejected[1]
        await turned_away(net, b, DeadlineExceeded)

    run(scenario, lambda: TcpNetwork(clock))


def test_a_silent_peer_is_closed_and_dialled_again() -> None:
    clock = ManualClock()

    async def scenario(net: TcpNetwork) -> None:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        server = await asyncio.start_server(lambda reader, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
        a = net.make(1)
        await a.transport.start()
        a.transport.set_peer(PeerAddress(2, *server.sockets[0].getsockname()[:2]))
        writers = [await accepted.get(), await accepted.get()]
        clock.advance(HANDSHAKE_TIMEOUT_S + 0.1)
        await a.events.until(lambda: len(a.events.refused) == 2)
        assert {type(error) for _, error in a.events.refused} == {DeadlineExceeded}
        async with asyncio.timeout(DEADLINE_S):
            while accepted.empty():
                clock.advance(0.01)
                await asyncio.sleep(0)
        server.close()
        for writer in [*writers, *(accepted.get_nowait() for _ in range(accepted.qsize()))]:
            writer.close()

    run(scenario, lambda: TcpNetwork(clock))


def test_strangers_are_bounded() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        raws = [await Raw.dial(b) for _ in range(HANDSHAKES_MAX + 1)]
        assert await raws[0].until_closed() == b""
        await turned_away(net, b, QuotaExceeded)
        for raw in raws[1:]:
            raw.writer.close()

    run(scenario)


def test_the_host_with_the_most_strangers_loses_one() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        slow = await Raw.dial(b, "127.0.0.2")
        raws = [await Raw.dial(b) for _ in range(2 * HANDSHAKES_MAX)]
        assert await raws[0].until_closed() == b""
        slow.send(framed(hello()))
        assert await slow.frame(), "its handshake continues although it is the oldest"
        for raw in (slow, *raws[1:]):
            raw.writer.close()

    run(scenario)


def test_large_messages_that_never_end_are_bounded_and_end_their_connections() -> None:
    clock = ManualClock()

    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        assert isinstance(b.transport, TcpTransport)
        room = b.transport._listener._room
        room.bytes_max = 4 * MIB  # a host has half of it
        raws = [await Raw.opened(b, me=replace(FRIEND, broker_id=10 + n)) for n in range(5)]
        for raw in raws:
            raw.send(PREFIX.pack(MIB, 10) + bytes(MIB - 1))
        for waiting, taken in ((3, 2), (1, 2), (0, 1), (0, 0)):  # two at a time, each up to its deadline
            await until(lambda now=(waiting, taken * MIB): (room.waiting, room.bytes) == now)
            clock.advance(2 * FRAME_S)
        assert {type(error) for error in b.events.rejected} == {DeadlineExceeded}
        for raw in raws:
            assert await raw.until_closed() == b""

    run(scenario, lambda: TcpNetwork(clock))


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(9 * MIB + 1, 10),
        PREFIX.pack(8 * MIB, HEAD_BYTES_MAX + 1),
        framed(b"\xff" * 20),
        bytes([255]) * 5000,
    ],
)
def test_bad_frames_after_the_handshake_end_the_connection(data: bytes) -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        raw = await Raw.opened(b)
        raw.send(data + framed(heartbeat(1).SerializeToString()))
        assert await raw.until_closed() == b""
        await turned_away(net, b, InvalidFrame)

    run(scenario, lambda: TcpNetwork(limits=Limits(peer_frame_bytes_max=9 * MIB)))


@pytest.mark.parametrize("body_bytes", [100, MIB])
def test_a_truncated_frame_is_not_delivered(body_bytes: int) -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        raw = await Raw.opened(b)
        raw.send(framed(heartbeat(1).SerializeToString(), bytes(body_bytes))[:-1])
        raw.writer.write_eof()
        assert await raw.until_closed() == b""
        await turned_away(net, b, InvalidFrame)

    run(scenario)


def test_a_second_connection_of_the_same_peer_and_channel_closes_the_first() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        first, control = await Raw.opened(b), await Raw.opened(b, Channel.CONTROL)
        first.send(framed(heartbeat(1).SerializeToString()))
        control.send(framed(heartbeat(2).SerializeToString()))
        await b.events.until(lambda: sorted(b.events.sequences) == [1, 2])
        second = await Raw.opened(b)
        assert await first.until_closed() == b""
        second.send(framed(heartbeat(3).SerializeToString()))
        control.send(framed(heartbeat(4).SerializeToString()))
        await b.events.until(lambda: sorted(b.events.sequences) == [1, 2, 3, 4])
        assert b.events.rejected == []
        second.writer.close()
        control.writer.close()

    run(scenario)


def test_messages_of_the_older_connection_are_not_delivered_after_the_newer_opened() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        first = await Raw.opened(b)
        half = framed(heartbeat(1).SerializeToString(), bytes(MIB))
        first.send(half[:-10])
        second = await Raw.opened(b)
        second.send(framed(heartbeat(2).SerializeToString()))
        await b.events.until(lambda: b.events.sequences == [2])
        first.send(half[-10:])
        await first.until_closed()
        second.send(framed(heartbeat(3).SerializeToString()))
        await b.events.until(lambda: 3 in b.events.sequences)
        assert b.events.sequences == [2, 3], "no message of the older connection"
        assert b.events.rejected == []
        second.writer.close()

    run(scenario)


def test_another_session_closes_the_other_channel_too() -> None:
    async def scenario(net: TcpNetwork) -> None:
        b = await listening(net)
        bulk = await Raw.opened(b)
        bulk.send(framed(heartbeat(1).SerializeToString()))
        await b.events.until(lambda: b.events.sequences == [1])
        restarted = await Raw.opened(b, Channel.CONTROL, replace(FRIEND, session=2))
        assert await bulk.until_closed() == b""
        restarted.writer.close()

    run(scenario)


def test_an_acceptor_may_not_send() -> None:
    """Messages go one way: a message from the acceptor after the handshake ends the connection."""

    async def scenario(net: TcpNetwork) -> None:
        a, b = await started(net, 1, 2)
        assert a.send(2, 1)
        await b.events.until(lambda: b.events.messages)
        accepted = b.transport._listener.accepted[1, Channel.CONTROL]
        assert accepted.send(heartbeat(1).SerializeToString(), ())
        await a.events.until(lambda: a.events.disconnected)
        assert a.events.messages == []
        await connected(a, b)

    run(scenario)


def test_a_peer_that_ends_its_side_and_takes_nothing_more_is_dialled_again() -> None:
    """Its end of the socket stays open: the process hangs, or its machine vanished after it had said goodbye."""

    async def scenario(net: TcpNetwork) -> None:
        a, b = await started(net, 1, 2)
        await connected(a, b)
        await ends_its_side_unread(a, b)

    run(scenario)


async def ends_its_side_unread(a: End, b: End) -> None:
    """`b` reads no more, `a` fills the connection, and `b` ends its side. Return once `a` is connected again."""
    assert isinstance(b.transport, TcpTransport)
    assert a.send(b.broker_id, 1, Channel.BULK)
    await b.events.until(lambda: b.events.messages)
    hung = b.transport._listener.accepted[a.broker_id, Channel.BULK]._transport
    assert hung is not None
    tls = getattr(hung, "_ssl_protocol", None)
    (hung if tls is None else tls._transport).pause_reading()
    while a.send(b.broker_id, 1, Channel.BULK, (b"x" * MIB,)):
        await asyncio.sleep(0)
    assert a.transport.buffered_bytes(b.broker_id, Channel.BULK)
    hung.get_extra_info("socket").shutdown(socket.SHUT_WR)
    await a.events.until(lambda: a.events.disconnected)
    await connected(a, b)


def test_many_small_sends_of_one_turn_arrive_in_order() -> None:
    async def scenario(net: TcpNetwork) -> None:
        a, b = await started(net, 1, 2)
        assert all(a.send(2, i) for i in range(20_000))
        await b.events.until(lambda: len(b.events.messages) == 20_000)
        assert b.events.sequences == list(range(20_000))
        assert a.transport.buffered_bytes(2, Channel.CONTROL) == 0

    run(scenario)


def test_an_invalid_address_is_unreachable() -> None:
    async def scenario(net: TcpNetwork) -> None:
        a = net.make(1)
        await a.transport.start()
        a.transport.set_peer(PeerAddress(2, "x" * 100, 1))
        a.transport.set_peer(PeerAddress(3, "", 1))
        await a.events.until(lambda: {peer for peer, _ in a.events.refused} == {2, 3})
        assert {type(error) for _, error in a.events.refused} == {BrokerUnreachable}

    run(scenario)


def test_listening_on_a_foreign_address_fails() -> None:
    async def scenario(net: TcpNetwork) -> None:
        end = net.make(1)
        end.transport._listen = ("192.0.2.1", 0)
        with pytest.raises(InvalidConfig, match=r"192\.0\.2\.1"):
            await end.transport.start()

    run(scenario)


def test_refusals_are_logged_once_however_often_they_happen() -> None:
    async def scenario(net: TcpNetwork) -> None:
        a, b = net.make(1, secret=b"another"), await listening(net)
        await a.transport.start()
        with structlog.testing.capture_logs() as logs:
            a.transport.set_peer(b.address)
            await a.events.until(lambda: len(a.events.refused) >= 6)
            await b.events.until(lambda: len(b.events.rejected) >= 6)
        assert sorted((line["event"], line["code"], line.get("channel", "")) for line in logs) == [
            ("peer not reached", "WrongSecret", "BULK"),
            ("peer not reached", "WrongSecret", "CONTROL"),
            ("peer turned away", "WrongSecret", ""),
        ]
        assert SECRET.decode() not in str(logs)

    run(scenario)
