"""Pack batches and unpack fetched frames. On the stream port neither is copied.

There, a frame carries its payload beside the message: the fields of a ProduceBatch are packed by hand, because this is
done for every batch, and the Arrow buffer follows them. gRPC carries one serialised message. It is packed by hand, too,
because protobuf would copy the payload three times; it is read by protobuf (docs/adr/0044 has the figures). The tests
compare what is packed here with what protobuf reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import pyarrow as pa
from google.protobuf.message import DecodeError

from tinymq.base.errors import Closed, CorruptData, NotReady, TinymqError
from tinymq.client.common.due import Due
from tinymq.client.net.ports import Fetched, PackedBatch
from tinymq.format import batch as batches
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire

_VARINT, _LENGTH, _FIXED32 = 0, 2, 5
_BATCHES = bytes([1 << 3 | _LENGTH])  # ProduceRequest.batches
# The fields of ProduceBatch.
_REQUEST_ID = bytes([1 << 3 | _VARINT])
_TOPIC_ID = bytes([2 << 3 | _LENGTH])
_PARTITION = bytes([3 << 3 | _VARINT])
_PAYLOAD_CRC = bytes([4 << 3 | _FIXED32])
_PAYLOAD = bytes([5 << 3 | _LENGTH])
_ACKS = bytes([6 << 3 | _VARINT])
_TIMEOUT_MS = bytes([7 << 3 | _VARINT])
_MESSAGE_ID = bytes([8 << 3 | _LENGTH])
_DELIVER_AT_US = bytes([9 << 3 | _VARINT])
_DELAY_US = bytes([10 << 3 | _VARINT])
_TRANSACTION = bytes([11 << 3 | _LENGTH])


def varint(value: int) -> bytes:
    """Encode `value`, 0 or more, as a protobuf varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def produce_batch(
    *,
    request_id: int,
    topic_id: bytes,
    partition: int,
    head: bytes,
    message: pa.Buffer,
    acks: int,
    timeout_ms: int,
    message_id: bytes = b"",
    due: Due | None = None,
    transaction: bytes = b"",
) -> tuple[PackedBatch, int]:
    """Pack one batch. Returns (the batch, the bytes of its fields and its payload).

    `transaction`: the serialised BatchTransaction; empty: the batch belongs to none.
    """
    crc = int(google_crc32c.extend(int(google_crc32c.value(head)), message))
    fields = b"".join(
        (
            _REQUEST_ID, varint(request_id), _TOPIC_ID, varint(len(topic_id)), topic_id, _PARTITION,
            varint(partition), _PAYLOAD_CRC, crc.to_bytes(4, "little"), _ACKS, varint(acks),
            _TIMEOUT_MS, varint(timeout_ms),
        )
    )  # fmt: skip
    if message_id:
        fields += _MESSAGE_ID + varint(len(message_id)) + message_id
    if due is not None:
        at_us, delay_us = due.deliver_at_us, due.delay_us
        fields += _DELAY_US + varint(delay_us or 0) if at_us is None else _DELIVER_AT_US + varint(at_us)
    if transaction:
        fields += _TRANSACTION + varint(len(transaction)) + transaction
    return PackedBatch(fields, head, message), len(fields) + len(head) + message.size


def batch_head(*, codec: int, record_count: int, producer_id: int, producer_epoch: int, first_sequence: int) -> bytes:
    """Return the 32 bytes before a batch's Arrow message."""
    return batches.HEADER.pack(
        batches.BATCH_VERSION, codec, 0, record_count, producer_id, producer_epoch, 0, first_sequence
    )


def view_of(message: pa.Buffer) -> memoryview:
    """Return the buffer's bytes without copying them."""
    return memoryview(message).cast("B")


def join(batches: Sequence[PackedBatch]) -> bytes:
    """Return the serialised ProduceRequest of some batches, for gRPC: the one copy of their payloads."""
    pieces: list[bytes | pa.Buffer] = []
    for fields, head, message in batches:
        payload = _PAYLOAD + varint(len(head) + message.size)
        length = len(fields) + len(payload) + len(head) + message.size
        pieces += [_BATCHES, varint(length), fields, payload, head, message]
    return b"".join(pieces)


def read_error(error: pb.Error) -> TinymqError:
    """Return the error that a broker answered. Closed, from a broker that stops, becomes NotReady for the client."""
    read = from_wire(error)
    read.hint = read.hint or read.default_hint
    return NotReady(read.message, **read.detail) if isinstance(read, Closed) else read


def read_fetched(data: bytes) -> Fetched:
    """Read a serialised FetchReply, as gRPC carries it. Raises CorruptData."""
    reply = _parsed(data)
    return _fetched(reply, memoryview(reply.frames))


def fetched(head: bytes, frames: memoryview) -> Fetched:
    """Read a serialised FetchReply without its frames, which the stream port sends apart. Raises CorruptData."""
    return _fetched(_parsed(head), frames)


def _parsed(data: bytes) -> pb.FetchReply:
    try:
        return pb.FetchReply.FromString(data)
    except DecodeError as error:
        raise CorruptData(f"not a fetch reply: {error}") from None


def _fetched(reply: pb.FetchReply, frames: memoryview) -> Fetched:
    return Fetched(
        request_id=reply.request_id,
        high_watermark=reply.high_watermark,
        log_start=reply.log_start,
        leader_epoch=reply.leader_epoch,
        leader=reply.leader,
        next_offset=reply.next_offset,
        frames=frames,
        error=read_error(reply.error) if reply.HasField("error") else None,
        throttled_ms=reply.throttled_ms,
        history=reply.history,
        ending=reply.ending,
    )
