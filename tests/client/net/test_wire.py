"""Protobuf reads the batches that are packed by hand, and fetch replies are read or refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymq.base.errors import CorruptData, NotReady
from tinymq.client.common.due import Due
from tinymq.client.net.ports import PackedBatch
from tinymq.client.net.wire import join, produce_batch, read_fetched, varint
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire

u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)


@given(
    st.lists(st.tuples(u64, st.binary(max_size=20), u32, st.binary(max_size=300), st.integers(0, 2), u32), max_size=5),
    st.binary(max_size=256),
    st.none() | st.builds(Due, st.none(), u64) | st.builds(Due, st.integers(0, (1 << 63) - 1), st.none()),
)
@settings(deadline=None)
def test_produce_requests(
    batches: list[tuple[int, bytes, int, bytes, int, int]], message_id: bytes, due: Due | None
) -> None:
    packed: list[PackedBatch] = []
    total = 0
    for request_id, topic_id, partition, message, acks, timeout_ms in batches:
        one, size = produce_batch(
            request_id=request_id, topic_id=topic_id, partition=partition, head=b"h" * 32,
            message=pa.py_buffer(message), acks=acks, timeout_ms=timeout_ms, message_id=message_id,
            due=due,
        )  # fmt: skip
        packed.append(one)
        total += size
    data = join(packed)
    assert total <= len(data) <= total + 16 * len(batches)
    parsed = pb.ProduceRequest.FromString(data)
    assert len(parsed.batches) == len(batches)
    for batch, (request_id, topic_id, partition, message, acks, timeout_ms) in zip(
        parsed.batches, batches, strict=True
    ):
        payload = b"h" * 32 + message
        assert (batch.request_id, batch.topic_id, batch.partition) == (request_id, topic_id, partition)
        assert (batch.payload, batch.payload_crc) == (payload, crc32c(payload))
        assert (batch.acks, batch.timeout_ms, batch.message_id) == (acks, timeout_ms, message_id)
        at_us = batch.deliver_at_us if batch.HasField("deliver_at_us") else None
        delay_us = batch.delay_us if batch.HasField("delay_us") else None
        assert (at_us, delay_us) == ((due.deliver_at_us, due.delay_us) if due is not None else (None, None))


@given(u64, u32, u64, u32, u32)
@settings(deadline=None)
def test_the_place_of_a_batch_in_a_transaction(
    producer_id: int, epoch: int, number: int, coordinator: int, of: int
) -> None:
    ref = pb.TransactionRef(producer_id=producer_id, epoch=epoch, number=number)
    place = pb.BatchTransaction(transaction=ref, coordinator=coordinator, number=of)
    packed, _ = produce_batch(
        request_id=1, topic_id=b"t" * 16, partition=2, head=b"h" * 32, message=pa.py_buffer(b"m"), acks=pb.ACKS_QUORUM,
        timeout_ms=5, transaction=place.SerializeToString(),
    )  # fmt: skip
    (batch,) = pb.ProduceRequest.FromString(join([packed])).batches
    assert batch.transaction == place
    assert batch.payload == b"h" * 32 + b"m"


@given(u64, u64, u64, u64, u32, st.binary(max_size=300), st.booleans())
@settings(deadline=None)
def test_fetch_replies(a: int, b: int, c: int, d: int, leader: int, frames: bytes, failed: bool) -> None:
    reply = pb.FetchReply(
        request_id=a, high_watermark=b, log_start=c, leader_epoch=d, leader=leader, frames=frames, next_offset=a
    )
    if failed:
        reply.error.CopyFrom(to_wire(NotReady("x", why="y")))
    fetched = read_fetched(reply.SerializeToString())
    assert (fetched.request_id, fetched.high_watermark, fetched.log_start) == (a, b, c)
    assert (fetched.leader_epoch, fetched.leader, fetched.next_offset) == (d, leader, a)
    assert bytes(fetched.frames) == frames
    assert (fetched.error is not None) == failed
    if fetched.error is not None:
        assert (fetched.error.code, fetched.error.detail) == ("NotReady", {"why": "y"})


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_nonsense_is_refused_or_read(data: bytes) -> None:
    try:
        read = read_fetched(data)
    except CorruptData:
        return
    assert bytes(read.frames) in data, "frames are of what arrived"


def test_varints() -> None:
    assert varint(0) == b"\0"
    assert varint(300) == b"\xac\x02"


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(CorruptData):
        read_fetched(b"\x08" + b"\xff" * 11)
