"""A record batch as bytes: 32 bytes of header, then one Arrow IPC message, and nothing else.

    offset size field (little-endian)
         0    1 version          u8   1
         1    1 codec            u8   0 none, 1 LZ4 frames, 2 ZSTD (informative: Arrow's metadata decides)
         2    2 reserved         u16  0
         4    4 record_count     u32  at least 1
         8    8 producer_id      u64  0: plain, not idempotent
        16    4 producer_epoch   u32  0 when plain
        20    4 reserved         u32  0
        24    8 first_sequence   i64  of the first record; -1 when plain
        32    … message               encapsulated RecordBatch message of SCHEMA, without a schema message

Brokers and readers trust bytes from outside only after `check_batch` or `decode_batch`. For any bytes, these functions
raise InvalidBatch or BatchTooLarge and nothing else, and they unpack nothing before they know that the unpacked size is
within the limits (tinymq/format/ipc.py reads it from the metadata).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import pyarrow as pa

from tinymq.base.errors import BatchTooLarge, InvalidBatch
from tinymq.base.value import value
from tinymq.format.columns import (
    BINARY,
    HEADERS,
    TIMESTAMP,
    Headers,
    binary_column,
    headers_column,
    int64_column,
    no_headers,
    no_keys,
    null_column,
    time_column,
)
from tinymq.format.ipc import Layout, read_layout

HEADER = struct.Struct("<BBHIQIIq")
HEADER_SIZE = 32
BATCH_VERSION = 1
NO_SEQUENCE = -1
assert HEADER.size == HEADER_SIZE

SCHEMA = pa.schema(
    [
        ("key", BINARY),
        ("value", BINARY),
        ("headers", HEADERS),
        ("timestamp", TIMESTAMP),
    ]
)
"""The schema of every batch, for good. All columns are nullable, but no timestamp and no header's key is null."""

# Python's datetime spans the years 1 to 9999. A timestamp outside would fail in the reader, and not here.
TIMESTAMP_US_MIN = -62_135_596_800_000_000
TIMESTAMP_US_MAX = 253_402_300_799_999_999
FEW_ROWS = 64  # up to so many, a loop over the timestamps takes 2 µs, and one call of Arrow takes 17 µs

PACK_HINT = (
    f"a batch has the column value, and may have others of {SCHEMA.names}; pack columns of your own first, such as "
    'pa.table({"value": [json.dumps(row).encode() for row in table.to_pylist()]})'
)


class Codec(IntEnum):
    """The compression of a batch's buffers."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_WRITE = {
    Codec.NONE: pa.ipc.IpcWriteOptions(use_threads=False),
    Codec.LZ4: pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False),
    Codec.ZSTD: pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False),
}


class BatchLimits(Protocol):
    """The bounds of a batch. `tinymq.base.config.Limits` has them."""

    @property
    def record_bytes_max(self) -> int: ...
    @property
    def batch_bytes_max(self) -> int: ...
    @property
    def batch_uncompressed_bytes_max(self) -> int: ...
    @property
    def batch_records_max(self) -> int: ...


@value
class BatchHeader:
    """The 32 bytes before the Arrow message, unpacked and consistent in themselves."""

    version: int
    codec: int
    record_count: int  # invariant: >= 1
    producer_id: int  # 0: plain
    producer_epoch: int
    first_sequence: int  # invariant: >= 0, or -1 when plain


@value
class Declared:
    """A batch's own description of itself, checked for consistency and limits. Its values are not checked yet."""

    header: BatchHeader
    layout: Layout


@value
class CheckedBatch:
    """A batch that has passed every check, as far as a broker needs to know it."""

    header: BatchHeader
    max_timestamp_us: int


def pack_batch(
    message: bytes | pa.Buffer,
    *,
    record_count: int,
    codec: int = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    first_sequence: int = NO_SEQUENCE,
) -> bytes:
    """The stored payload: header and `message` in one piece (the message's one copy)."""
    fields = (BATCH_VERSION, codec, 0, record_count, producer_id, producer_epoch, 0, first_sequence)  # as drawn above
    return b"".join((HEADER.pack(*fields), message))


def parse_batch_header(payload: bytes | memoryview) -> BatchHeader:
    """Unpack the header alone. Raises InvalidBatch."""
    if len(payload) < HEADER_SIZE:
        raise InvalidBatch(f"a batch has at least {HEADER_SIZE} bytes, this one {len(payload)}")
    version, codec, zero, count, producer, epoch, zero2, sequence = HEADER.unpack_from(payload)
    if version != BATCH_VERSION:
        raise InvalidBatch(f"batch version {version} is not known here")
    if zero or zero2 or codec > Codec.ZSTD or count == 0:
        raise InvalidBatch("batch header out of range")
    if producer == 0:
        if epoch or sequence != NO_SEQUENCE:
            raise InvalidBatch("a plain batch has neither epoch nor sequence")
    elif not 0 <= sequence < (1 << 63) - count:
        raise InvalidBatch("an idempotent batch has a first sequence of 0 or more")
    return BatchHeader(version, codec, count, producer, epoch, sequence)


def read_producer_id(payload: bytes | memoryview) -> int:
    """Read the producer's id alone, of a batch that was checked before."""
    return int.from_bytes(payload[8:16], "little")


def read_declared(payload: bytes | memoryview, limits: BatchLimits) -> Declared:
    """The first half of `check_batch`: read the header and Arrow's metadata, without unpacking anything.

    Raises InvalidBatch or BatchTooLarge.
    """
    if len(payload) > limits.batch_bytes_max:
        raise BatchTooLarge(f"batch of {len(payload)} bytes; batch_bytes_max is {limits.batch_bytes_max}")
    header = parse_batch_header(payload)
    if header.record_count > limits.batch_records_max:
        raise BatchTooLarge(f"batch of {header.record_count} records; the limit is {limits.batch_records_max}")
    layout = read_layout(payload, HEADER_SIZE, header.record_count)
    if layout.unpacked_bytes > limits.batch_uncompressed_bytes_max:
        raise BatchTooLarge(
            f"batch unpacks to {layout.unpacked_bytes} bytes;"
            f" batch_uncompressed_bytes_max is {limits.batch_uncompressed_bytes_max}"
        )
    return Declared(header, layout)


def check_batch(payload: bytes | memoryview, limits: BatchLimits, declared: Declared | None = None) -> CheckedBatch:
    """Check everything in `payload` that a reader relies on. Raises InvalidBatch or BatchTooLarge.

    `declared`: the result of `read_declared` for the same payload and limits, if the caller has it already.
    """
    declared = declared or read_declared(payload, limits)
    _, max_timestamp_us = _open(payload, limits, declared)
    return CheckedBatch(declared.header, max_timestamp_us)


def decode_batch(payload: bytes | memoryview, limits: BatchLimits) -> pa.RecordBatch:
    """Return the records, after the checks of `check_batch`. Uncompressed buffers are views of `payload`."""
    return _open(payload, limits, read_declared(payload, limits))[0]


def _open(payload: bytes | memoryview, limits: BatchLimits, declared: Declared) -> tuple[pa.RecordBatch, int]:
    try:
        message = pa.py_buffer(payload).slice(HEADER_SIZE)
        batch = pa.ipc.read_record_batch(message, SCHEMA)
        batch.validate(full=True)
        first, last = _bounds(batch.column(3))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidBatch(f"not an Arrow record batch: {str(error)[:200]}") from error
    if first < TIMESTAMP_US_MIN or last > TIMESTAMP_US_MAX:
        raise InvalidBatch("a timestamp lies outside the years 1 to 9999")
    if declared.layout.unpacked_bytes > limits.record_bytes_max:
        largest = record_bytes(batch)
        if largest > limits.record_bytes_max:
            raise BatchTooLarge(f"record of {largest} bytes; record_bytes_max is {limits.record_bytes_max}")
    return batch, last


def _bounds(times: pa.Array) -> tuple[int, int]:
    """The least and the greatest of some timestamps, none of them null."""
    if len(times) <= FEW_ROWS:
        start = 8 * times.offset
        few = memoryview(times.buffers()[1])[start : start + 8 * len(times)].cast("q")
        return min(few), max(few)
    import pyarrow.compute as pc  # here: it takes as long to load as the rest of Arrow, and many programs never need it

    bounds = pc.min_max(times)
    return bounds["min"].value, bounds["max"].value


def record_batch(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
    timestamps_us: Sequence[int],
) -> pa.RecordBatch:
    """Make a record batch of SCHEMA, with one record per item of the sequences. `keys` or `headers` is None if no
    record has any.

    Raises InvalidBatch for a value of a wrong type.
    """
    count = len(values)
    try:
        key = no_keys(count) if keys is None else binary_column(keys)
        header = no_headers(count) if headers is None else headers_column(headers)
        value, timestamp = binary_column(values), time_column(timestamps_us)
        return pa.RecordBatch.from_arrays([key, value, header, timestamp], schema=SCHEMA)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidBatch(f"not records: {str(error)[:200]}", hint="keys and values are bytes or None") from error


def encode(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
    timestamps_us: Sequence[int],
    codec: Codec = Codec.NONE,
) -> pa.Buffer:
    """Encode records as an Arrow message. Arguments and errors: as `record_batch`."""
    batch = record_batch(keys, values, headers, timestamps_us)
    if codec is Codec.NONE:
        return batch.serialize()
    return _compressed(batch, codec)


def encode_record_batch(batch: pa.RecordBatch, codec: Codec = Codec.NONE) -> pa.Buffer:
    """The Arrow message of `batch`, which has SCHEMA (see `conform`). Raises InvalidBatch for a keyless header."""
    headers = batch.column(2)
    if headers.null_count < len(headers):
        pairs = headers.flatten()
        if pairs.null_count or pairs.field(0).null_count:
            raise InvalidBatch("a header has no key")
    return batch.serialize() if codec is Codec.NONE else _compressed(batch, codec)


def _compressed(batch: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_WRITE[codec]) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = 8 + int.from_bytes(stream.slice(4, 4).to_pybytes(), "little")  # the schema message has no body
    end_of_stream = 8
    return stream.slice(start, stream.size - start - end_of_stream)


def conform(data: pa.Table | pa.RecordBatch, now_us: int) -> list[pa.RecordBatch]:
    """`data` as record batches of SCHEMA. Columns that have the right type already are not copied.

    The columns may have any order. `value` must be there; the others may be missing. Text becomes UTF-8 bytes, times
    become microseconds UTC, and a missing or null timestamp becomes `now_us`. Raises InvalidBatch for another column,
    or a type that does not convert without loss.
    """
    if isinstance(data, pa.RecordBatch):
        return [_conform(data, now_us)] if data.num_rows else []
    return [_conform(batch, now_us) for batch in data.to_batches() if batch.num_rows]


def _conform(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    if batch.schema.equals(SCHEMA) and batch.column(3).null_count == 0:
        return batch
    names = batch.schema.names
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown or len(set(names)) != len(names) or "value" not in names:
        raise InvalidBatch(f"columns {names}", hint=PACK_HINT)
    columns = []
    for field in SCHEMA:
        there = field.name in names
        column = _cast(batch.column(field.name), field) if there else null_column(batch.num_rows, field.type)
        if field.name == "timestamp" and column.null_count:
            column = column.fill_null(time_column([now_us])[0])
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_map(column.type):  # keeps order and duplicates
            column = column.cast(pa.map_(pa.string(), pa.binary()))
            items = pa.StructArray.from_arrays([column.keys, column.items], fields=list(field.type.value_type))
            return pa.ListArray.from_arrays(column.offsets, items, type=field.type, mask=column.is_null())
        if field.name == "timestamp" and pa.types.is_timestamp(column.type) and column.type.tz is None:
            raise InvalidBatch("timestamps without a zone", hint="say which: column.cast(pa.timestamp('us', 'UTC'))")
        return column.cast(field.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidBatch(f"column {field.name!r} of {column.type} is not {field.type}: {str(error)[:120]}") from error


def record_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of the largest record of a validated batch of SCHEMA: key, value and headers."""
    import pyarrow.compute as pc

    sizes = pc.add(_lengths(batch.column(0)), _lengths(batch.column(1)))
    headers = batch.column(2)
    if headers.null_count < len(headers) and len(headers.values):
        pairs = headers.values
        pair_bytes = pc.add(_lengths(pairs.field(0)), _lengths(pairs.field(1)))
        ends = pa.concat_arrays([int64_column([0]), pc.cumulative_sum(pair_bytes)])
        offsets = headers.offsets
        upto = ends.take(offsets)
        sizes = pc.add(sizes, pc.subtract(upto.slice(1), upto.slice(0, len(headers))))
    return int(pc.max(sizes).as_py())


def _lengths(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
