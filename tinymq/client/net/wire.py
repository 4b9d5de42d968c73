"""The two hot messages, packed and unpacked without copying their payloads. Protocol Buffers by hand.

A ProduceRequest of a megabyte goes through protobuf's own code in three copies, a FetchReply in two: here the
one is joined once from the Arrow buffers, the other sliced. The tests hold both against protobuf itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import pyarrow as pa
from google.protobuf.message import DecodeError

from tinymq.base.errors import Closed, CorruptData, NotReady, TinymqError
from tinymq.client.net.ports import Fetched, PackedBatch
from tinymq.format import batch as batches
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BATCHES = bytes([1 << 3 | _LENGTH])  # ProduceRequest.batches
_REQUEST_ID = bytes([1 << 3 | _VARINT])  # ProduceBatch, from here on
_TOPIC_ID = bytes([2 << 3 | _LENGTH])
_PARTITION = bytes([3 << 3 | _VARINT])
_PAYLOAD_CRC = bytes([4 << 3 | _FIXED32])
_PAYLOAD = bytes([5 << 3 | _LENGTH])
_ACKS = bytes([6 << 3 | _VARINT])
_TIMEOUT_MS = bytes([7 << 3 | _VARINT])
_FRAMES = 6 << 3 | _LENGTH  # FetchReply.frames


def varint(value: int) -> bytes:
    """`value`, 0 or more, as a protobuf varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def produce_batch(
    *, request_id: int, topic_id: bytes, partition: int, head: bytes, message: pa.Buffer, acks: int, timeout_ms: int
) -> tuple[PackedBatch, int]:
    """(the batch, its bytes: of its fields and its payload)."""
    crc = int(google_crc32c.extend(int(google_crc32c.value(head)), message))
    fields = b"".join(
        (
            _REQUEST_ID, varint(request_id), _TOPIC_ID, varint(len(topic_id)), topic_id, _PARTITION,
            varint(partition), _PAYLOAD_CRC, crc.to_bytes(4, "little"), _ACKS, varint(acks),
            _TIMEOUT_MS, varint(timeout_ms),
        )
    )  # fmt: skip
    return PackedBatch(fields, head, message), len(fields) + len(head) + message.size


def batch_head(*, codec: int, record_count: int, producer_id: int, producer_epoch: int, first_sequence: int) -> bytes:
    """The 32 bytes before a batch's Arrow message."""
    return batches.HEADER.pack(
        batches.BATCH_VERSION, codec, 0, record_count, producer_id, producer_epoch, 0, first_sequence
    )


def view_of(message: pa.Buffer) -> memoryview:
    """Its bytes, where they are."""
    return memoryview(message).cast("B")


def join(batches: Sequence[PackedBatch]) -> bytes:
    """The serialised ProduceRequest: the one copy of the payloads."""
    pieces: list[bytes | pa.Buffer] = []
    for fields, head, message in batches:
        payload = _PAYLOAD + varint(len(head) + message.size)
        length = len(fields) + len(payload) + len(head) + message.size
        pieces += [_BATCHES, varint(length), fields, payload, head, message]
    return b"".join(pieces)


def read_error(error: pb.Error) -> TinymqError:
    """What a broker answered. One that stops says Closed; to a client that is a broker that is not there now."""
    read = from_wire(error)
    read.hint = read.hint or read.default_hint
    return NotReady(read.message, **read.detail) if isinstance(read, Closed) else read


def read_fetched(data: bytes) -> Fetched:
    """A serialised FetchReply; its frames stay where they are. Raises CorruptData."""
    start = end = 0
    field_start = field_end = 0
    at = 0
    try:
        while at < len(data):
            tag_at = at
            tag, at = _read_varint(data, at)
            kind = tag & 7
            if kind == _VARINT:
                _, at = _read_varint(data, at)
            elif kind == _LENGTH:
                length, at = _read_varint(data, at)
                at += length
                if tag == _FRAMES:
                    start, end = at - length, at
                    field_start, field_end = tag_at, at
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                raise CorruptData("a fetch reply has a field of an unknown kind")
        if at != len(data):
            raise CorruptData("a fetch reply is cut short")
        head = data[:field_start] + data[field_end:]
    except (IndexError, ValueError) as error:
        raise CorruptData(f"not a fetch reply: {error}") from None
    return fetched(head, memoryview(data)[start:end])


def fetched(head: bytes, frames: memoryview) -> Fetched:
    """A serialised FetchReply without its frames, and those. Raises CorruptData."""
    try:
        reply = pb.FetchReply.FromString(head)
    except DecodeError as error:
        raise CorruptData(f"not a fetch reply: {error}") from None
    return Fetched(
        reply.request_id,
        reply.high_watermark,
        reply.log_start,
        reply.leader_epoch,
        reply.leader,
        reply.next_offset,
        frames,
        read_error(reply.error) if reply.HasField("error") else None,
        reply.throttled_ms,
        reply.history,
    )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
