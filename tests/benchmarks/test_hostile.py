"""The attacks of `benchmarks.hostile` are beyond a bound, or just within it, as they claim."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import hostile_client
from benchmarks.hostile_client import BOMBS, FULL_BATCHES, Victim
from tinymq.base.config import MIB, Limits
from tinymq.base.errors import InvalidRequest
from tinymq.broker.partition.admission import declare, is_heavy
from tinymq.net.framing import PREFIX_BYTES, READ_BUFFER_BYTES, FrameReader
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.bounds import parse

VICTIM = Victim("h:1", "h:2", b"t" * 16)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests of the attacks on produce streams."""
    requests: list[bytes] = []

    async def send_requests(victim: Victim, request: bytes, results: int) -> None:
        requests.append(request)

    monkeypatch.setattr(hostile_client, "send_requests", send_requests)
    return requests


def made_by(attack: Any, sent: list[bytes]) -> bytes:
    with pytest.raises(StopIteration):
        attack(VICTIM).send(None)
    assert len(sent[0]) < Limits().grpc_message_bytes_max
    return sent[0]


def test_tiny_is_refused_before_it_is_parsed(sent: list[bytes]) -> None:
    with pytest.raises(InvalidRequest):
        parse(pb.ProduceRequest, made_by(hostile_client.tiny, sent))


def test_full_is_within_the_bound(sent: list[bytes]) -> None:
    assert len(parse(pb.ProduceRequest, made_by(hostile_client.full, sent)).batches) == FULL_BATCHES


def test_zstd_unpacks_to_far_more_than_it_is_packed_into(sent: list[bytes]) -> None:
    batches = parse(pb.ProduceRequest, made_by(hostile_client.zstd, sent)).batches
    assert len(batches) == BOMBS
    declared = declare(batches[0].payload, batches[0].payload_crc, Limits())
    assert declared.layout.unpacked_bytes > 50 * MIB
    assert len(batches[0].payload) < 4096
    assert is_heavy(declared, len(batches[0].payload))


def test_frames_lack_their_last_byte() -> None:
    """Behind a hello that is whole, each connection sends all of a frame but one byte, and waits."""
    received = bytearray()

    async def main() -> None:
        complete = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(READ_BUFFER_BYTES):
                received.extend(data)
                if len(received) > Limits().batch_bytes_max:
                    complete.set()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            victim = replace(VICTIM, stream_address=f"{host}:{port}")
            attacking = asyncio.ensure_future(hostile_client._begin_frame(victim))
            await asyncio.wait_for(complete.wait(), 20)
            attacking.cancel()

    asyncio.run(main())
    reader = FrameReader(Limits().grpc_message_bytes_max, 1024)
    taken = 0
    while taken < len(received):
        buffer = reader.get_buffer()
        count = min(len(buffer), len(received) - taken)
        buffer[:count] = received[taken : taken + count]
        taken += count
        reader.received(count)
        while (frame := reader.next_frame()) is not None:
            assert pb.StreamHello.FromString(frame[0]).kind == pb.STREAM_PRODUCE
    assert reader.begun_bytes == Limits().batch_bytes_max + PREFIX_BYTES
    assert reader.cut_short() is not None
