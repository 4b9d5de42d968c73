"""A broker that speaks tinymq's protocol until a stream is open, and then whatever a test wants: a real TCP server for
the stream port, and a real gRPC server. The tests of the client's parsers use it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from tinymq.net.framing import pack_frame
from tinymq.proto import tinymq_pb2 as pb

TOPIC = "t"
TOPIC_ID = b"i" * 16
RECORDS = 1000  # that its partition claims to have

Answer = Callable[["Stream"], Iterator[bytes]]
"""What the broker sends on one open stream, piece by piece: on the stream port bytes, over gRPC whole messages."""


class Gone(Exception):
    """The client has ended its side."""


class Stream:
    """One open stream, as an answer sees it."""

    def __init__(self, kind: str, framed: bool, requests: Iterator[bytes]) -> None:
        self.kind = kind  # produce, fetch, work
        self.framed = framed
        self._requests = requests

    def request(self) -> Any:
        """The next request of the client: a ProduceBatch, a FetchRequest, or a WorkRequest. Raises Gone."""
        data = next(self._requests, None)
        if data is None:
            raise Gone
        if self.kind == "produce":
            return pb.ProduceBatch.FromString(data) if self.framed else pb.ProduceRequest.FromString(data).batches[0]
        return (pb.FetchRequest if self.kind == "fetch" else pb.WorkRequest).FromString(data)

    def packed(self, reply: Any, body: bytes = b"") -> bytes:
        """A reply as this stream carries it. `body`: the frames of a FetchReply."""
        if not self.framed:
            if body:
                reply.frames = body
            return bytes(reply.SerializeToString())
        return b"".join(bytes(chunk) for chunk in pack_frame(reply.SerializeToString(), (body,) if body else ())[0])


class LyingBroker(grpc.GenericRpcHandler):
    """The only broker of a cluster on loopback. With `framed` it has a stream port."""

    def __init__(self, answer: Answer, framed: bool) -> None:
        self._answer = answer
        self._stopped = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.stream_address = f"127.0.0.1:{self._listening.getsockname()[1]}" if framed else ""
        self.welcome: Callable[[], Iterator[bytes]] | None = None  # instead of the usual one
        options = [("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(32), options=options)
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._listening.close()
        for sock in list(self._open):
            sock.close()
        self._server.stop(None).wait()

    # ---- gRPC

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = details.method.rpartition("/")[2]
        if name in ("Produce", "Fetch", "Work"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._serve(Stream(name.lower(), False, requests), context)
            )
        calls: dict[str, Callable[[bytes], Any]] = {
            "Metadata": self._metadata,
            "OpenProducer": lambda data: pb.OpenProducerReply(producer_id=7),
            "ListOffsets": lambda data: pb.ListOffsetsReply(
                answers=[pb.OffsetAnswer(partition=0, offset=0, high_watermark=RECORDS, leader_epoch=1)]
            ),
            "CreateGroup": lambda data: pb.CreateGroupReply(
                group=pb.GroupInfo(name="g", kind="queue", group_id=1, state="ready", topics=[TOPIC])
            ),
        }
        call = calls.get(name)
        if call is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda data, context: call(data).SerializeToString())

    def _serve(self, stream: Stream, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            yield from self._until_stopped(self._answer(stream))
        except Gone:
            return

    def _metadata(self, data: bytes) -> pb.MetadataReply:
        broker = pb.BrokerInfo(id=1, address=self.address, alive=True)
        place = pb.PartitionInfo(partition=0, leader=1, leader_epoch=1, replicas=[1])
        topic = pb.TopicInfo(name=TOPIC, topic_id=TOPIC_ID, partitions=[place], replication_factor=1)
        return pb.MetadataReply(
            cluster_id=b"c" * 16, broker_id=1, version=1, brokers=[broker], topics=[topic],
            stream_address=self.stream_address,
        )  # fmt: skip

    # ---- the stream port

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self._open.add(sock)
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        try:
            heads = _heads(sock)
            hello = pb.StreamHello.FromString(next(heads))
            stream = Stream("produce" if hello.kind == pb.STREAM_PRODUCE else "fetch", True, heads)
            if self.welcome is not None:
                for piece in self._until_stopped(self.welcome()):
                    sock.sendall(piece)
                return
            sock.sendall(stream.packed(pb.StreamWelcome(protocol=1)))
            for piece in self._until_stopped(self._answer(stream)):
                sock.sendall(piece)
        except (OSError, Gone, StopIteration):  # the last one: it has gone before its hello
            pass
        finally:
            self._open.discard(sock)
            sock.close()

    def _until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._stopped.is_set():
                return
            yield piece


def _heads(sock: socket.socket) -> Iterator[bytes]:
    """The heads of the frames that a client sends."""
    with sock.makefile("rb") as file:
        while len(prefix := file.read(8)) == 8:
            whole, head = int.from_bytes(prefix[:4], "little"), int.from_bytes(prefix[4:], "little")
            yield file.read(head)
            file.read(whole - head)
