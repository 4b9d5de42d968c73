"""The bytes of a partition's applied state: a checksum, a head of fixed size, the producers, and the rest.

offset size field (little-endian)
     0    4 crc32c          u32  of everything after it
     4    2 version         u16  2
     6    2 reserved        u16  0
     8    8 applied_index   u64  the last entry that counts
    16    8 high_watermark  u64  offset after the last record up to it
    24    8 record_bytes    u64  payload bytes of all records up to it
    32    8 producers       u64  bytes of the next field
    40    … producers            tinymq/broker/state/producers.py
     …    … State                tinymq/proto/partition.proto: log start, cursors, index, holds, epochs
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError

from tinymq.base.errors import CorruptData
from tinymq.format.entry import crc32c
from tinymq.proto import partition_pb2 as pb

STATE_VERSION = 2
_HEAD = struct.Struct("<IHHQQQQ")


class Head(NamedTuple):
    """The numbers of a state, as drawn above."""

    applied_index: int
    high_watermark: int
    record_bytes: int


def pack_state(numbers: Head, producers: bytes, state: pb.State) -> bytes:
    """The bytes of a state."""
    crc_later = reserved = 0
    head = _HEAD.pack(crc_later, STATE_VERSION, reserved, *numbers, len(producers))
    body = b"".join((head[4:], producers, state.SerializeToString(deterministic=True)))
    return crc32c(body).to_bytes(4, "little") + body


def unpack_state(data: bytes) -> tuple[Head, bytes, pb.State]:
    """The inverse of `pack_state`. Raises CorruptData for damage, and for anything that `pack_state` cannot write."""
    if len(data) < _HEAD.size:
        raise CorruptData("a partition's applied state is cut short")
    crc, version, reserved, *numbers, length = _HEAD.unpack_from(data)
    if crc32c(data[4:]) != crc:
        raise CorruptData("a partition's applied state does not match its checksum")
    if version != STATE_VERSION:
        raise CorruptData(f"a partition's applied state has version {version}, this build knows {STATE_VERSION}")
    if reserved or max(numbers) >> 63 or length > len(data) - _HEAD.size:
        raise CorruptData("a partition's applied state is out of range")
    end = _HEAD.size + length
    return Head(*numbers), data[_HEAD.size : end], _parse(data[end:])


def _parse(data: bytes) -> pb.State:
    """Parse what `pack_state` wrote, byte for byte. An unknown field, or another order, would be lost by the next dump,
    and the replicas' states would differ."""
    try:
        state = pb.State.FromString(data)
        state.DiscardUnknownFields()
    except DecodeError:
        raise CorruptData("a partition's applied state does not parse") from None
    if state.SerializeToString(deterministic=True) != data:
        raise CorruptData("a partition's applied state is not as it was written")
    return state
