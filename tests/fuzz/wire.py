"""Bytes from connections: frames and messages between brokers, handshakes, replies that a client reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from google.protobuf.message import DecodeError, Message

from tests.fakes.manual_clock import ManualClock
from tests.fuzz import reseal
from tests.fuzz.driver import Target
from tests.fuzz.formats import chain, commands, frames
from tests.raft.rules.test_messages import MESSAGES
from tests.raft.values import GROUP
from tinymq.base.config import KIB, Limits, Timing
from tinymq.base.errors import CorruptData, InvalidFrame, InvalidRequest, NotLeader, TinymqError
from tinymq.base.types import METADATA_GROUP
from tinymq.client.cluster.routing import View, merge, with_topic
from tinymq.client.net.wire import read_error, read_fetched
from tinymq.format.entry import HEADER_SIZE, parse_header
from tinymq.net.framing import PREFIX, PREFIX_BYTES, FrameReader, pack_frame
from tinymq.proto import peer_pb2, registry_pb2
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire as error_to_wire
from tinymq.raft.host.router import Router
from tinymq.raft.net.connection import Connection
from tinymq.raft.net.handshake import Credentials, Handshake, HandshakeState
from tinymq.raft.net.transport import Channel, PeerIdentity
from tinymq.raft.peers.failure_detector import FailureDetector
from tinymq.raft.peers.heartbeats import Heartbeats
from tinymq.raft.peers.leader_hints import announcement
from tinymq.raft.peers.peers import Peers
from tinymq.raft.peers.requests import Requests
from tinymq.raft.rules.messages import to_wire

CLUSTER = b"cluster-cluster-"
SECRET = b"one secret for all of a cluster!"
FRAME_BYTES_MAX, HEAD_BYTES_MAX = 200 * KIB, 64 * KIB


# ---- frames -------------------------------------------------------------------------------------------------


def _packed(head: bytes, *body: bytes) -> bytes:
    return b"".join(pack_frame(head, body)[0])


def streams() -> list[bytes]:
    small = b"".join(_packed(b"h" * n, b"b" * n) for n in range(6))
    return [small, _packed(b"head", b"x" * 100_000) + small, small + _packed(b"h" * 60_000)]


def read_frames(data: bytes) -> object:
    """Receive in pieces of any size: the frames equal those of all bytes at once."""
    expected, bad = _frames_at_once(data)
    reader = FrameReader(FRAME_BYTES_MAX, HEAD_BYTES_MAX)
    found, at = [], 0
    sizes = [1 + size % 7000 for size in data[:64]] or [1]
    while True:
        try:
            while (frame := reader.next_frame()) is not None:
                found.append((frame[0], bytes(frame[1])))
        except InvalidFrame:
            assert (found, bad) == (expected, True)
            raise
        if at == len(data):
            break
        room = reader.get_buffer()
        assert len(room), "nothing could be received any more"
        part = data[at : at + min(len(room), sizes[at % len(sizes)])]
        room[: len(part)] = part
        reader.received(len(part))
        at += len(part)
    assert (found, bad) == (expected, False)
    left = len(data) - sum(PREFIX_BYTES + len(head) + len(body) for head, body in found)
    assert (reader.cut_short() is not None) == (left > 0)
    return found


def _frames_at_once(data: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
    """(whole frames, whether a frame over a bound follows)."""
    found, at = [], 0
    while at + PREFIX_BYTES <= len(data):
        frame_bytes, head_bytes = PREFIX.unpack_from(data, at)
        if frame_bytes > FRAME_BYTES_MAX or head_bytes > min(frame_bytes, HEAD_BYTES_MAX):
            return found, True
        start, end = at + PREFIX_BYTES, at + PREFIX_BYTES + frame_bytes
        if end > len(data):
            break
        found.append((data[start : start + head_bytes], data[start + head_bytes : end]))
        at = end
    return found, False


# ---- a handshake --------------------------------------------------------------------------------------------

DIALER = Credentials(1, b"\x01" * 16, CLUSTER, 7, SECRET)
ACCEPTOR = Credentials(2, b"\x02" * 16, CLUSTER, 8, SECRET)


def _dial() -> Handshake:
    return Handshake.dial(DIALER, 2, Channel.BULK, b"a" * 32)


def _accept() -> Handshake:
    return Handshake.accept(ACCEPTOR, b"b" * 32)


@cache
def _spoken() -> tuple[bytes, bytes, bytes]:
    """A whole handshake: Hello, Hello, Proof."""
    dialer, acceptor = _dial(), _accept()
    hello = dialer.first_message
    assert hello is not None
    answer = acceptor.receive(hello)
    assert answer is not None
    proof = dialer.receive(answer)
    assert proof is not None
    return hello, answer, proof


def _same(kind: type[Message], spoilt: bytes, good: bytes) -> bool:
    """Have both messages the same meaning? Bytes may differ where protobuf permits it."""
    known = kind.FromString(spoilt)
    cast(Any, known).DiscardUnknownFields()
    return known == kind.FromString(good)


def _without_reason(hello: bytes) -> bytes:
    """The proven part: `reason` is read only beside `refused`, and such a Hello is not proven."""
    known = peer_pb2.Hello.FromString(hello)
    known.ClearField("reason")
    return known.SerializeToString()


def take_hello(data: bytes) -> object:
    shake = _accept()
    shake.receive(data)
    assert shake.state is HandshakeState.AWAIT_PROOF
    return shake.receive(_spoken()[2]) if _same(peer_pb2.Hello, data, _spoken()[0]) else None


def take_answer(data: bytes) -> object:
    shake = _dial()
    shake.receive(data)
    assert _same(peer_pb2.Hello, _without_reason(data), _spoken()[1]), "a Hello that its maker did not prove"
    assert shake.state is HandshakeState.OPEN
    return shake.peer


def take_proof(data: bytes) -> object:
    shake = _accept()
    shake.receive(_spoken()[0])
    shake.receive(data)
    assert _same(peer_pb2.Proof, data, _spoken()[2]), "a Proof that is none"
    assert shake.state is HandshakeState.OPEN
    return shake.peer


# ---- messages between brokers --------------------------------------------------------------------------------


class _Wire:
    """Stands in for a socket and the transport behind it: sent bytes are dropped."""

    def __init__(self) -> None:
        self.on_message: Callable[[int, peer_pb2.Peer, Any], None] | None = None

    def send(self, *message: object) -> bool:
        return True

    def reset(self, peer: int, channel: Channel) -> None:
        pass

    def identity(self, peer: int) -> PeerIdentity:
        return PeerIdentity(1, b"\x01" * 16, 7)


class _Socket(asyncio.Transport):
    """Accepts all bytes at once."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def _router() -> Router:
    wire: Any = _Wire()
    clock = ManualClock()

    async def answer(body: bytes) -> bytes:
        try:
            return registry_pb2.Ask.FromString(body).SerializeToString()
        except DecodeError:
            raise InvalidRequest("not an Ask") from None

    requests = Requests(wire.send, clock)
    requests.serve("registry", answer)
    neighbours = Peers(2, wire, clock, Timing())
    return Router(wire, neighbours, requests, {}, lambda group, call: call())


async def _deliver(data: bytes) -> TinymqError | None:
    """Let an open connection receive these bytes. Returns the reason if it closed. On a real connection, an exception
    here would end the reading with only a line of asyncio in the log.
    """
    inbound = _router()
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
    ended: list[TinymqError] = []
    connection = Connection(
        _accept(),
        Limits(peer_frame_bytes_max=FRAME_BYTES_MAX, batch_bytes_max=KIB, record_bytes_max=KIB),
        ManualClock(),
        on_open=lambda _: None,
        on_message=lambda connection, message, body: inbound.on_message(connection.peer.broker_id, message, body),
        on_lost=lambda _, reason: ended.append(reason),
    )
    connection.connection_made(_Socket())
    received = _packed(_spoken()[0]) + _packed(_spoken()[2]) + data
    while received and not connection.closing:
        room = connection.get_buffer(-1)
        part = received[: len(room)]
        room[: len(part)] = part
        try:
            connection.buffer_updated(len(part))
        except TinymqError as error:
            raise AssertionError("an error leaves the reading of a connection") from error
        received = received[len(part) :]
    assert connection.opened
    connection.connection_lost(None)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await task
    assert not raised, raised
    return ended[0] if isinstance(ended[0], InvalidFrame) else None


def deliver(data: bytes) -> object:
    error = asyncio.run(_deliver(data))
    if error is not None:
        raise error
    return None


def peer_streams() -> list[bytes]:
    """Every message between brokers."""
    heads: list[tuple[peer_pb2.Peer, list[bytes]]] = [to_wire(GROUP, message) for message in MESSAGES]
    beats = Heartbeats(FailureDetector(1.0))
    beats.stepped_down(1, GROUP, 5)
    beats.stepped_down(1, METADATA_GROUP, 6)
    heads.append((beats.next(1, 5, 1.0), []))
    heads.append((announcement([(GROUP, 5), (METADATA_GROUP, 2)]), []))
    ask = registry_pb2.Ask(command=commands()[0].SerializeToString()).SerializeToString()
    heads.append((peer_pb2.Peer(request=peer_pb2.Request(id=1, method="registry", timeout_ms=5)), [ask]))
    heads.append((peer_pb2.Peer(reply=peer_pb2.Reply(id=1, error_code="NotLeader", error_message="x")), []))
    return [_packed(head.SerializeToString(), *body) for head, body in heads]


def reframe(data: bytes) -> bytes:
    """Repair the lengths of one frame, and the checksums of entries in its body."""
    if len(data) < PREFIX_BYTES:
        return data
    head_bytes = min(PREFIX.unpack_from(data)[1], len(data) - PREFIX_BYTES)
    body = reseal.entries(data[PREFIX_BYTES + head_bytes :])
    return PREFIX.pack(head_bytes + len(body), head_bytes) + data[PREFIX_BYTES : PREFIX_BYTES + head_bytes] + body


# ---- what clients read ---------------------------------------------------------------------------------------


def fetch_replies() -> list[bytes]:
    made = [
        pb.FetchReply(request_id=1, high_watermark=9, leader_epoch=3, leader=2, frames=frames(chain()), next_offset=4)
    ]
    made.append(pb.FetchReply(request_id=2, error=error_to_wire(NotLeader("x", leader=1, leader_address="h:1"))))
    return [reply.SerializeToString() for reply in made]


def read_reply(data: bytes) -> object:
    """Read a reply of the gRPC stream, or refuse it."""
    fetched = read_fetched(data)
    reply = pb.FetchReply.FromString(data)  # protobuf reads it as well
    assert bytes(fetched.frames) == reply.frames
    assert (fetched.request_id, fetched.high_watermark, fetched.next_offset, fetched.leader) == (
        reply.request_id, reply.high_watermark, reply.next_offset, reply.leader,
    )  # fmt: skip
    assert (fetched.error is not None) == reply.HasField("error")
    position = 0
    while position < len(fetched.frames):
        position += parse_header(fetched.frames, position).size
        assert position >= HEADER_SIZE
    return fetched


@cache
def _view() -> tuple[pb.MetadataReply, View]:
    partitions = [pb.PartitionInfo(partition=n, leader=1 + n, leader_epoch=n, replicas=[1, 2, 3]) for n in range(3)]
    topics = [pb.TopicInfo(name=name, topic_id=name.encode() * 16, partitions=partitions) for name in "ab"]
    topics.append(pb.TopicInfo(name="c", error=error_to_wire(NotLeader("x"))))
    brokers = [pb.BrokerInfo(id=n, address=f"h:{n}", alive=True) for n in (1, 2, 3)]
    reply = pb.MetadataReply(cluster_id=CLUSTER, broker_id=1, version=5, brokers=brokers, topics=topics)
    return reply, merge(View(), reply, ["a", "b", "c"])


def take_metadata(data: bytes) -> object:
    """The metadata after any answer has the partitions that the answer names."""
    try:
        reply = pb.MetadataReply.FromString(data)
    except DecodeError:
        raise CorruptData("grpc refuses it") from None
    if reply.HasField("error"):
        read_error(reply.error)
    for view in (View(), _view()[1]):
        after = merge(view, reply, ["a", "x"])
        for topic in after.topics.values():
            for number in topic.numbers:
                at = after.partition(topic.name, number)
                assert at.partition == number
                after.address(at.leader)
            with_topic(after, topic)
    return reply


def targets() -> list[Target]:
    return [
        Target("peer.frames", streams, read_frames, bytes_max=4 * FRAME_BYTES_MAX + 2 * streams_bytes()),
        Target("peer.hello", lambda: [_spoken()[0]], take_hello),
        Target("peer.answer", lambda: [_spoken()[1]], take_answer),
        Target("peer.proof", lambda: [_spoken()[2]], take_proof),
        Target("peer.messages", peer_streams, deliver, (reframe,)),
        Target("client.fetched", fetch_replies, read_reply, bytes_max=2 << 20),
        Target("client.metadata", lambda: [_view()[0].SerializeToString()], take_metadata),
    ]


def streams_bytes() -> int:
    return max(map(len, streams()))
