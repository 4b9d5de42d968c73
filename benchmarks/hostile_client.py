"""The attacks of benchmarks.hostile. Each runs until its process is ended.

    python -m benchmarks.hostile_client NAME SERVERS TOPIC

They use the wire protocol directly, because tinymq's own client sends no such requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tinymq.base.config import MIB, Limits, parse_address
from tinymq.base.errors import TinymqError
from tinymq.format.batch import Codec, encode, pack_batch
from tinymq.format.entry import crc32c
from tinymq.net.frame_stream import FrameStream
from tinymq.net.framing import READ_BUFFER_BYTES, pack_frame
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc

PRODUCE = "/tinymq.v1.Broker/Produce"
TINY_BATCHES = 2_000_000
FULL_BATCHES = 4096  # the most that one request may carry
BOMBS = 500
CONNECTIONS = 25
UNFINISHED = 150  # connections with a frame that never ends
FETCHES = 4096  # on each connection
WAIT_MS = 30_000
AGAIN_S = 0.01  # the pause after the broker has ended a stream
CALL_S = 10.0
LOOK_S = 1.0  # between two requests for the leader
GRPC_OPTIONS = [("grpc.max_send_message_length", 64 * MIB), ("grpc.max_receive_message_length", 64 * MIB)]


@dataclass(frozen=True, slots=True)
class Victim:
    """The broker that leads the partition under attack."""

    address: str
    stream_address: str
    topic_id: bytes


async def find(servers: list[str], topic: str) -> Victim:
    async with grpc.aio.insecure_channel(servers[0]) as channel:
        asked = pb.MetadataRequest(topics=[topic], fresh=True)
        about = await _broker(channel).Metadata(asked, timeout=CALL_S, wait_for_ready=True)
    info = about.topics[0]
    leader = next((broker for broker in about.brokers if broker.id == info.partitions[0].leader), about.brokers[0])
    async with grpc.aio.insecure_channel(leader.address) as channel:
        its_own = await _broker(channel).Metadata(pb.MetadataRequest(), timeout=CALL_S)
    return Victim(leader.address, its_own.stream_address, info.topic_id)


def _broker(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.BrokerStub(channel)


# ---- produce requests ----------------------------------------------------------------------------------------


async def send_requests(victim: Victim, request: bytes, results: int) -> None:
    """Send `request` again and again on a produce stream, each time after all `results` of the last one have
    arrived."""
    async with grpc.aio.insecure_channel(victim.address, GRPC_OPTIONS) as channel:
        call = channel.stream_stream(
            PRODUCE, request_serializer=bytes, response_deserializer=pb.ProduceReply.FromString
        )
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answered = asyncio.Event()

                async def requests(ready: asyncio.Event = answered) -> AsyncIterator[bytes]:
                    while True:
                        yield request
                        if results:
                            await ready.wait()
                            ready.clear()

                count = 0
                async for reply in call(requests()):
                    count += len(reply.results)
                    if count >= results:
                        count -= results
                        answered.set()
            await asyncio.sleep(AGAIN_S)


async def tiny(victim: Victim) -> None:
    """Send requests of 2,000,000 batches of four bytes without an answer: 7.6 MiB each."""
    one = pb.ProduceRequest(batches=[pb.ProduceBatch(acks=pb.ACKS_NONE)]).SerializeToString()
    await send_requests(victim, one * TINY_BATCHES, 0)


async def full(victim: Victim) -> None:
    """Send requests with the maximum number of batches, each valid and with one record."""
    payload = pack_batch(encode(None, [b"x"], None, [1]), record_count=1)
    await send_requests(victim, _request(victim, payload, FULL_BATCHES), FULL_BATCHES)


async def zstd(victim: Victim) -> None:
    """Send requests with 500 batches of 2.6 KB that each unpack to 56 MiB, which their headers do not show."""
    message = encode(None, [b"\0" * (8 * MIB - 64)] * 7, None, [1] * 7, Codec.ZSTD)
    payload = pack_batch(message, record_count=7, codec=Codec.NONE)
    await send_requests(victim, _request(victim, payload, BOMBS), BOMBS)


def _request(victim: Victim, payload: bytes, count: int) -> bytes:
    crc = crc32c(payload)
    batches = (
        pb.ProduceBatch(request_id=number, topic_id=victim.topic_id, payload=payload, payload_crc=crc)
        for number in range(count)
    )
    return pb.ProduceRequest(batches=batches).SerializeToString()


# ---- fetches --------------------------------------------------------------------------------------------------


async def fetches(victim: Victim) -> None:
    """Let 102,400 fetches wait for the next record on 25 connections, and repeat each fetch that is answered."""
    await asyncio.gather(*(_wait_on(victim) for _ in range(CONNECTIONS)))


async def _wait_on(victim: Victim) -> None:
    host, port = parse_address(victim.stream_address)
    most = Limits().grpc_message_bytes_max
    hello = pb.StreamHello(protocol=1, kind=pb.STREAM_FETCH).SerializeToString()
    while True:
        with contextlib.suppress(TinymqError, OSError):
            _, stream = await asyncio.get_running_loop().create_connection(lambda: FrameStream(most, most), host, port)
            await stream.send(hello)
            await stream.receive()
            asked = asyncio.ensure_future(_ask_all(victim, stream))
            end = 0
            try:
                while True:
                    head, _ = await stream.receive()
                    reply = pb.FetchReply.FromString(head)
                    end = max(end, reply.high_watermark)  # 0 in an answer with an error
                    await stream.send(_fetch(victim, reply.request_id, end))
            finally:
                asked.cancel()
                stream.abort()
        await asyncio.sleep(AGAIN_S)


async def _ask_all(victim: Victim, stream: FrameStream) -> None:
    for number in range(1, FETCHES + 1):
        await stream.send(_fetch(victim, number, 0))


def _fetch(victim: Victim, number: int, offset: int) -> bytes:
    return pb.FetchRequest(
        request_id=number, topic_id=victim.topic_id, offset=offset, max_bytes=1, min_bytes=1, max_wait_ms=WAIT_MS
    ).SerializeToString()


# ---- frames that never end --------------------------------------------------------------------------------------


async def frames(victim: Victim) -> None:
    """Begin a frame of 8 MiB on each of 150 connections, send all of it but its last byte, and begin again when the
    broker has ended the connection."""
    await asyncio.gather(*(_begin_frame(victim) for _ in range(UNFINISHED)))


async def _begin_frame(victim: Victim) -> None:
    hello = pb.StreamHello(protocol=1, kind=pb.STREAM_PRODUCE).SerializeToString()
    body = bytes(Limits().batch_bytes_max)
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*parse_address(victim.stream_address))
            writer.writelines(pack_frame(hello)[0])
            chunks, _ = pack_frame(b"", (body,))
            writer.writelines([*chunks[:-1], chunks[-1][:-1]])
            while await reader.read(READ_BUFFER_BYTES):
                pass
            writer.close()
        await asyncio.sleep(AGAIN_S)


ATTACKS: dict[str, Callable[[Victim], Awaitable[None]]] = {
    "tiny": tiny,
    "full": full,
    "zstd": zstd,
    "fetches": fetches,
    "frames": frames,
}


async def main() -> None:
    """Attack the leader, and follow the leadership when it moves."""
    name, servers, topic = sys.argv[1:]
    victim, attacking = None, None
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            leader = await find(servers.split(","), topic)
            if leader != victim:
                victim = leader
                if attacking is not None:
                    attacking.cancel()
                attacking = asyncio.ensure_future(ATTACKS[name](victim))
        await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    asyncio.run(main())
