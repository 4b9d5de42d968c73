"""The layout that an Arrow IPC message declares, read without Arrow, so that nothing is unpacked on trust.

Arrow's reader allocates as much as a compressed buffer declares, and its validation assumes that the metadata is sane.
This module walks the flatbuffer metadata of one encapsulated RecordBatch message of `tinymq.format.batch.SCHEMA`, with
every access bounded. It refuses another kind of message, other counts of nodes or buffers, buffers outside the body,
and buffers too short for their nodes.

    offset size field (Arrow columnar format, "Encapsulated message format")
         0    4 continuation   0xFFFFFFFF
         4    4 metadata_size  i32, a multiple of 8
         8    … metadata       flatbuffer Message: version, header type, header, bodyLength
         …    … body           buffers, each at a multiple of 8

Pure: bytes in, a `Layout` out, or InvalidBatch.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from tinymq.base.errors import InvalidBatch
from tinymq.base.value import value

CONTINUATION = 0xFFFFFFFF
METADATA_BYTES_MAX = 64 * 1024
METADATA_V5 = 4  # MetadataVersion.V5, the only one written since Arrow 1.0
RECORD_BATCH = 3  # MessageHeader.RecordBatch; 1 is Schema, 2 DictionaryBatch
CACHED = 256  # results for metadata that was seen lately
CACHED_BYTES_MAX = 1024  # longer metadata is not cached
COMPRESSION_CODECS = (0, 1)  # LZ4_FRAME, ZSTD

# SCHEMA depth first. A node is (length, null_count); buffers are grouped by the node that they serve.
KEY, VALUE, LIST, STRUCT, HEADER_KEY, HEADER_VALUE, TIMESTAMP = range(7)
NODES = 7
BUFFERS = 17  # 3 + 3 + 2 + 1 + 3 + 3 + 2

_PREFIX = struct.Struct("<Ii")
_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_NODES = struct.Struct(f"<{2 * NODES}q")
_BUFFERS = struct.Struct(f"<{2 * BUFFERS}q")

# node, index of its first buffer, bytes per row of the fixed-width buffer after its validity: offsets
# (4, and one more than rows) or values (8). STRUCT has validity alone.
_COLUMNS = ((KEY, 0, 4), (VALUE, 3, 4), (LIST, 6, 4), (STRUCT, 8, 0), (HEADER_KEY, 9, 4), (HEADER_VALUE, 12, 4))
_TIMESTAMP_BUFFER = 15


@value
class Layout:
    """The layout of a message, consistent with its size."""

    unpacked_bytes: int  # sum of all buffers' lengths once unpacked
    compressed: bool
    values: int  # the number of records and headers, which validation visits one by one


@value
class _Packed:
    """A compressed message. The unpacked lengths stand in the body, at the start of each buffer."""

    nodes: tuple[int, ...]
    buffers: tuple[tuple[int, int], ...]  # (offset in the body, length)


def read_layout(data: bytes | memoryview, start: int, rows: int) -> Layout:
    """Read the message at data[start:], which must hold `rows` rows and end where `data` ends."""
    try:
        return _read(data, start, rows)
    except (struct.error, IndexError) as error:
        raise InvalidBatch("Arrow metadata points outside itself") from error


def _read(data: bytes | memoryview, start: int, rows: int) -> Layout:
    if len(data) < start + _PREFIX.size:
        raise InvalidBatch("no Arrow message")
    continuation, size = _PREFIX.unpack_from(data, start)
    first = start + _PREFIX.size
    if continuation != CONTINUATION or not 0 < size <= METADATA_BYTES_MAX or size % 8 or first + size > len(data):
        raise InvalidBatch("not an encapsulated Arrow message")
    meta = bytes(data[first : first + size])
    body = first + size
    declared = _declared_cached if size <= CACHED_BYTES_MAX else _declared
    layout = declared(meta, rows, len(data) - body)
    if isinstance(layout, Layout):
        return layout
    lengths = [_unpacked(data, body + offset, length) if length else 0 for offset, length in layout.buffers]
    _check_lengths(layout.nodes, lengths, rows)
    return Layout(sum(lengths), True, _values(layout.nodes))


def _declared(meta: bytes, rows: int, body_bytes: int) -> Layout | _Packed:
    """Read the metadata alone. It says everything, unless the buffers are compressed."""
    compressed, nodes, flat = _walk(meta, rows, body_bytes)
    buffers = tuple(zip(flat[::2], flat[1::2], strict=True))
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset % 8 or offset + length > body_bytes:
            raise InvalidBatch("an Arrow buffer lies outside the message's body")
    if compressed:
        return _Packed(nodes, buffers)
    lengths = [length for _, length in buffers]
    _check_lengths(nodes, lengths, rows)
    return Layout(sum(lengths), False, _values(nodes))


def _values(nodes: tuple[int, ...]) -> int:
    return nodes[2 * KEY] + nodes[2 * HEADER_KEY]


# Batches of equally many records of equal sizes have the same metadata: a producer of single records repeats it.
_declared_cached = lru_cache(CACHED)(_declared)


def _unpacked(data: bytes | memoryview, position: int, length: int) -> int:
    """The length that the compressed buffer of `length` bytes at `at` declares."""
    if length < _I64.size:
        raise InvalidBatch("a compressed Arrow buffer has no length")
    (declared,) = _I64.unpack_from(data, position)
    if declared == -1:  # Arrow: this buffer was left as it is
        return length - _I64.size
    if declared < 0:
        raise InvalidBatch("a compressed Arrow buffer declares a negative length")
    return int(declared)


def _walk(meta: bytes, rows: int, body_bytes: int) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """(compressed, node pairs, buffer pairs) from the flatbuffer, its message fields checked."""
    message = _Table(meta, _follow(meta, 0))
    if message.scalar(0, _U16) != METADATA_V5:
        raise InvalidBatch("Arrow metadata version is not V5")
    if message.byte(1) != RECORD_BATCH:
        raise InvalidBatch("the Arrow message is not a record batch")
    if message.scalar(3, _I64) != body_bytes:
        raise InvalidBatch("the Arrow message's body is not as long as it says")
    batch = _Table(meta, message.target(2))
    if batch.scalar(0, _I64) != rows:
        raise InvalidBatch("the Arrow message's row count is not the batch's record count")
    position = batch.vector(1, NODES, "nodes")
    nodes = _NODES.unpack_from(meta, position)
    position = batch.vector(2, BUFFERS, "buffers")
    buffers = _BUFFERS.unpack_from(meta, position)
    compressed = batch.has(3)
    if compressed:
        compression = _Table(meta, batch.target(3))
        if compression.byte(0) not in COMPRESSION_CODECS or compression.byte(1) != 0:
            raise InvalidBatch("Arrow compression is neither LZ4 nor ZSTD of buffers")
    if batch.has(4):
        batch.vector(4, 0, "variadic buffer counts")
    return compressed, nodes, buffers


def _check_lengths(nodes: tuple[int, ...], lengths: list[int], rows: int) -> None:
    """Check that every buffer is long enough for its node, so that Arrow's validation stays inside the buffers."""
    count, nulls = nodes[::2], nodes[1::2]
    if not count[KEY] == count[VALUE] == count[LIST] == count[TIMESTAMP] == rows:
        raise InvalidBatch("the Arrow columns differ in length")
    if not count[STRUCT] == count[HEADER_KEY] == count[HEADER_VALUE] >= 0:
        raise InvalidBatch("the Arrow header columns differ in length")
    if nulls[TIMESTAMP] or nulls[STRUCT] or nulls[HEADER_KEY]:
        raise InvalidBatch("a timestamp or a header's key is null")
    for node, first, width in _COLUMNS:
        n, null = count[node], nulls[node]
        if not 0 <= null <= n or (null and lengths[first] * 8 < n):
            raise InvalidBatch("Arrow nulls are more than the rows, or not marked")
        if width and n and lengths[first + 1] < width * (n + 1):
            raise InvalidBatch("an Arrow offsets buffer is too short")
    if lengths[_TIMESTAMP_BUFFER + 1] < 8 * rows:
        raise InvalidBatch("the Arrow timestamps are too short")


def _follow(meta: bytes, position: int) -> int:
    """The position to which the u32 at `at` points. It is always ahead, and never outside."""
    target = position + int(_U32.unpack_from(meta, position)[0])
    if target == position or target >= len(meta):
        raise InvalidBatch("Arrow metadata points outside itself")
    return target


class _Table:
    """One flatbuffer table. An access outside of `meta` raises struct.error or InvalidBatch."""

    __slots__ = ("_at", "_meta", "_slots", "_vtable")

    def __init__(self, meta: bytes, position: int) -> None:
        vtable = position - int(_I32.unpack_from(meta, position)[0])
        if not 0 <= vtable <= len(meta) - 4:  # a negative position would read from the end
            raise InvalidBatch("Arrow metadata points outside itself")
        size = int(_U16.unpack_from(meta, vtable)[0])
        if size < 4 or size % 2 or vtable + size > len(meta):
            raise InvalidBatch("Arrow metadata points outside itself")
        self._meta, self._at, self._vtable, self._slots = meta, position, vtable, (size - 4) // 2

    def _field(self, number: int) -> int:
        if number >= self._slots:
            return 0
        offset = int(_U16.unpack_from(self._meta, self._vtable + 4 + 2 * number)[0])
        return self._at + offset if offset else 0

    def has(self, number: int) -> bool:
        return self._field(number) != 0

    def scalar(self, number: int, kind: struct.Struct) -> int:
        position = self._field(number)
        return int(kind.unpack_from(self._meta, position)[0]) if position else 0

    def byte(self, number: int) -> int:
        position = self._field(number)
        return self._meta[position] if position else 0

    def target(self, number: int) -> int:
        position = self._field(number)
        if not position:
            raise InvalidBatch("Arrow metadata lacks a field")
        return _follow(self._meta, position)

    def vector(self, number: int, items: int, what: str) -> int:
        """The position of the first item of a vector, which must have exactly `items` of them."""
        position = self.target(number)
        if _U32.unpack_from(self._meta, position)[0] != items:
            raise InvalidBatch(f"the Arrow message's {what} are not those of the schema")
        return position + 4
