"""Applied states: what the state machine knew where a segment begins, kept as long as that segment.

offset size field
     0    8 magic         bytes "tinymqst"
     8    2 version       u16   1
    10    2 reserved      u16   0
    12    4 crc           u32   crc32c of everything else
    16    8 applied_index u64   the last entry that the state includes
    24    … state
"""

from __future__ import annotations

import struct

from tinymq.entry import crc32c
from tinymq.errors import CorruptData, UnsupportedVersion

MAGIC = b"tinymqst"
VERSION = 1
_HEADER = struct.Struct("<8sHHIQ")
_HEADER_SIZE = 24
assert _HEADER.size == _HEADER_SIZE


def pack_state(applied_index: int, state: bytes) -> bytes:
    packed = _HEADER.pack(MAGIC, VERSION, 0, 0, applied_index)
    crc = crc32c(state, crc32c(packed[:12] + packed[16:]))
    return _HEADER.pack(MAGIC, VERSION, 0, crc, applied_index) + state


def parse_state(data: bytes) -> tuple[int, bytes]:
    """(applied index, state). Raises CorruptData, or UnsupportedVersion when it is whole but newer."""
    if len(data) < _HEADER_SIZE:
        raise CorruptData("truncated applied state")
    magic, version, _, crc, applied_index = _HEADER.unpack_from(data)
    state = data[_HEADER_SIZE:]
    if magic != MAGIC or crc32c(state, crc32c(data[:12] + data[16:_HEADER_SIZE])) != crc:
        raise CorruptData("applied state checksum mismatch")
    if version != VERSION:
        raise UnsupportedVersion(f"an applied state of version {version}; this build reads {VERSION}")
    return applied_index, state
