"""The bare limit's three processes: the same bytes to three disks as tinymq, without any logic.

The leader takes messages from a `grpc.aio` bidirectional stream, forwards them to two followers over
framed TCP, and each of the three appends them to a file, with one fdatasync for all messages that arrived during the
previous one. A message counts when the leader's disk and another disk have it; the answer is the number of messages
that count. Nothing is parsed, checked, indexed or kept. A process ends when its standard input does.

    frame: length u32 | bytes          ack: durable u64, the number of frames synced so far
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from tinymq.net.socket_options import prepare

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[bytes, bytes]

LENGTH = struct.Struct("<I")
COUNT = struct.Struct("<Q")
SLICE_BYTES = 256 * 1024  # asyncio copies the bytes that the kernel does not accept at once: at most this many
WRITE_CHUNKS_MAX = 512  # below IOV_MAX
FETCH_BYTES = 1 << 20

GRPC_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


class Disk:
    """Appends to one file; `durable` counts the synced messages. One executor hop per sync, as in tinymq."""

    def __init__(self, path: str, on_durable: Callable[[], None]) -> None:
        self.durable = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._executor = ThreadPoolExecutor(1)
        self._waiting: list[bytes | memoryview] = []
        self._busy = False
        self._on_durable = on_durable

    def append(self, data: bytes | memoryview) -> None:
        self._waiting.append(data)
        if not self._busy:
            self._start()

    def _start(self) -> None:
        self._busy = True
        chunks, self._waiting = self._waiting, []
        job = asyncio.get_running_loop().run_in_executor(self._executor, self._write, chunks)
        job.add_done_callback(self._done)

    def _write(self, chunks: list[bytes | memoryview]) -> int:
        for start in range(0, len(chunks), WRITE_CHUNKS_MAX):
            some = chunks[start : start + WRITE_CHUNKS_MAX]
            written = os.writev(self._file, some)
            assert written == sum(map(len, some)), "a short write"
        os.fdatasync(self._file)
        return len(chunks)

    def _done(self, job: asyncio.Future[int]) -> None:
        self.durable += job.result()
        self._busy = False
        if self._waiting:
            self._start()
        self._on_durable()


class Frames(asyncio.BufferedProtocol):
    """Receives frames, each straight into its own buffer."""

    def __init__(self, on_frame: Callable[[memoryview], None], on_made: Callable[[asyncio.Transport], None]) -> None:
        self._on_frame = on_frame
        self._on_made = on_made
        self._length = memoryview(bytearray(LENGTH.size))
        self._buffer = self._length
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        prepare(transport.get_extra_info("socket"))  # as brokers and clients do
        self._on_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        done, self._filled = self._buffer, 0
        if done is self._length:
            self._buffer = memoryview(bytearray(LENGTH.unpack(done)[0]))
        else:
            self._buffer = self._length
            self._on_frame(done)


class Follower(asyncio.Protocol):
    """The leader's end of one follower's connection: frames out, acks in."""

    def __init__(self, on_ack: Callable[[], None]) -> None:
        self.durable = 0
        self._on_ack = on_ack
        self._acks = b""
        self._queue: deque[bytes | memoryview] = deque()
        self._full = False
        self._transport: asyncio.Transport | None = None

    def send(self, data: bytes) -> None:
        self._queue += (LENGTH.pack(len(data)), memoryview(data))
        self._flush()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=1, low=0)
        prepare(transport.get_extra_info("socket"))
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._acks + data
        whole = len(data) - len(data) % COUNT.size
        if whole:
            self.durable = COUNT.unpack_from(data, whole - COUNT.size)[0]
            self._on_ack()
        self._acks = data[whole:]

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def _flush(self) -> None:
        assert self._transport is not None
        while self._queue and not self._full:
            chunk = self._queue.popleft()
            if len(chunk) > SLICE_BYTES:
                self._queue.appendleft(chunk[SLICE_BYTES:])
                chunk = chunk[:SLICE_BYTES]
            self._transport.write(chunk)


class Leader:
    """Takes, forwards, syncs, counts."""

    def __init__(self, path: str) -> None:
        self._disk = Disk(path, self._count)
        self._followers: list[Follower] = []
        self._counted = 0
        self._advanced = asyncio.Event()

    async def connect(self, ports: list[int]) -> None:
        for port in ports:
            loop = asyncio.get_running_loop()
            _, follower = await loop.create_connection(lambda: Follower(self._count), "127.0.0.1", port)
            self._followers.append(follower)

    async def produce(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Every request is a message; every answer is the number of this stream's messages that count."""
        before = self._counted
        answers = asyncio.get_running_loop().create_task(self._answer(before, context))
        async for message in requests:
            for follower in self._followers:
                follower.send(message)
            self._disk.append(message)
        answers.cancel()

    async def fetch(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Every request is a number of messages to send."""
        message = os.urandom(FETCH_BYTES)
        async for request in requests:
            for _ in range(COUNT.unpack(request)[0]):
                await context.write(message)

    async def _answer(self, before: int, context: Context) -> None:
        answered = before
        while True:
            while answered == self._counted:
                self._advanced.clear()
                await self._advanced.wait()
            answered = self._counted
            await context.write(COUNT.pack(answered - before))

    def _count(self) -> None:
        counted = min(self._disk.durable, max(f.durable for f in self._followers))
        if counted > self._counted:
            self._counted = counted
            self._advanced.set()


async def lead(path: str, ports: list[int]) -> tuple[int, grpc.aio.Server]:
    """Serve gRPC. Returns the port, and the server, which serves until it is collected."""
    leader = Leader(path)
    await leader.connect(ports)
    server = grpc.aio.server(options=GRPC_OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Produce": grpc.stream_stream_rpc_method_handler(leader.produce, None, None),
        "Fetch": grpc.stream_stream_rpc_method_handler(leader.fetch, None, None),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Limit", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, server


async def follow(path: str) -> tuple[int, asyncio.Server]:
    """Listen for the leader. Returns the port and the server."""
    transports: list[asyncio.Transport] = []
    disk = Disk(path, lambda: transports[-1].write(COUNT.pack(disk.durable)))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Frames(disk.append, transports.append), "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1]), server


async def run(args: argparse.Namespace) -> None:
    port, server = await (lead(args.file, args.followers) if args.followers else follow(args.file))
    print(json.dumps({"port": port}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    assert server is not None
    os._exit(0)  # the parent has ended: no clean stop is needed


def main() -> None:
    parser = argparse.ArgumentParser(description="One process of the bare limit; started by benchmarks.bare.")
    parser.add_argument("--file", required=True, help="what it appends to")
    parser.add_argument("--followers", type=int, nargs="*", default=[], help="ports; their leader has them")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
