"""Batches survive packing, and false headers are refused. The fuzzer runs in a process of
its own, because what it looks for ends the process."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymq.base.errors import BatchTooLarge, InvalidBatch, TinymqError
from tinymq.format import batch as tb
from tinymq.format import ipc
from tinymq.format.batch import SCHEMA, BatchHeader, Codec, check_batch, conform, decode_batch, encode, pack_batch

NOW_US = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    record_bytes_max: int = 1 << 20
    batch_bytes_max: int = 8 << 20
    batch_uncompressed_bytes_max: int = 64 << 20
    batch_records_max: int = 1_000_000


LIMITS = Bounds()


def payload_of(rows: int = 3, codec: Codec = Codec.NONE, headers: bool = True) -> bytes:
    message = encode(
        [b"k%d" % i if i % 2 else None for i in range(rows)],
        [b"value %d" % i * 5 for i in range(rows)],
        [[("h", b"x"), ("h", None)] if i % 3 == 0 else None for i in range(rows)] if headers else None,
        [NOW_US + i for i in range(rows)],
        codec,
    )
    return pack_batch(message, record_count=rows, codec=codec)


def repack(message: pa.Buffer | bytes, rows: int) -> bytes:
    return pack_batch(message, record_count=rows)


record = st.tuples(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=200),
    st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4),
    st.integers(tb.TIMESTAMP_US_MIN, tb.TIMESTAMP_US_MAX),
)


@given(st.lists(record, min_size=1, max_size=30), st.sampled_from(Codec))
@settings(max_examples=150, deadline=None)
def test_records_come_back_as_they_were(records: list[tuple[object, ...]], codec: Codec) -> None:
    keys, values, headers, times = (list(column) for column in zip(*records, strict=True))
    message = encode(keys, values, headers, times, codec)
    payload = pack_batch(message, record_count=len(records), codec=codec)
    checked = check_batch(payload, LIMITS)
    assert checked.header == BatchHeader(1, codec, len(records), 0, 0, -1)
    assert checked.max_timestamp_us == max(times)
    batch = decode_batch(payload, LIMITS)
    assert batch.column(0).to_pylist() == keys
    assert batch.column(1).to_pylist() == values
    got = [None if r is None else [(h["key"], h["value"]) for h in r] for r in batch.column(2).to_pylist()]
    assert got == headers
    assert batch.column(3).cast(pa.int64()).to_pylist() == times
    assert len(payload) % 8 == 0  # frames in a row keep Arrow's alignment


def test_producer_fields_come_back() -> None:
    message = encode(None, [b"a", b"b"], None, [1, 2])
    payload = pack_batch(message, record_count=2, producer_id=7, producer_epoch=3, first_sequence=41)
    assert check_batch(payload, LIMITS).header == BatchHeader(1, 0, 2, 7, 3, 41)


HEADER_DAMAGE = {
    "version": struct.pack("<B", 2) + payload_of()[1:],
    "codec": payload_of()[:1] + b"\x09" + payload_of()[2:],
    "reserved": payload_of()[:2] + b"\1\0" + payload_of()[4:],
    "reserved after the epoch": payload_of()[:20] + b"\1" + payload_of()[21:],
    "no records": payload_of()[:4] + bytes(4) + payload_of()[8:],
    "wrong record count": payload_of()[:4] + struct.pack("<I", 4) + payload_of()[8:],
    "epoch without a producer": payload_of()[:16] + b"\1" + payload_of()[17:],
    "producer without a sequence": payload_of()[:8] + b"\1" + payload_of()[9:],
    "sequence over its range": pack_batch(
        payload_of()[32:], record_count=3, producer_id=1, first_sequence=(1 << 63) - 2
    ),
    "empty": b"",
    "header alone": payload_of()[:32],
    "cut": payload_of()[:-8],
    "more": payload_of() + bytes(8),
    "not Arrow": payload_of()[:32] + b"\xff\xff\xff\xff" + b"hello, world" * 40,
    "legacy framing": payload_of()[:32] + payload_of()[36:],
}


@pytest.mark.parametrize("what", HEADER_DAMAGE)
def test_damage_is_refused(what: str) -> None:
    with pytest.raises(InvalidBatch):
        check_batch(HEADER_DAMAGE[what], LIMITS)


def other_messages() -> dict[str, pa.Buffer]:
    ints = pa.record_batch({"value": pa.array([1, 2, 3])})
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("w", words.type)])) as writer:
        writer.write_batch(pa.record_batch([words], ["w"]))
    stream = sink.getvalue()
    schema_bytes = 8 + int.from_bytes(stream.slice(4, 4).to_pybytes(), "little")
    return {
        "another schema": ints.serialize(),
        "a schema message": SCHEMA.serialize(),
        "a dictionary batch": stream.slice(schema_bytes),
    }


@pytest.mark.parametrize("what", other_messages())
def test_other_arrow_messages_are_refused(what: str) -> None:
    with pytest.raises(InvalidBatch):
        check_batch(repack(other_messages()[what], 3), LIMITS)


def test_a_null_timestamp_is_refused() -> None:
    columns = [pa.nulls(1, f.type) for f in SCHEMA]
    message = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize()
    with pytest.raises(InvalidBatch, match="null"):
        check_batch(repack(message, 1), LIMITS)


def test_a_timestamp_that_no_datetime_holds_is_refused() -> None:
    for time_us in (tb.TIMESTAMP_US_MIN - 1, tb.TIMESTAMP_US_MAX + 1):
        with pytest.raises(InvalidBatch, match="years"):
            check_batch(repack(encode(None, [b""], None, [time_us]), 1), LIMITS)
    assert datetime.fromtimestamp(0, UTC) is not None


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_small_batch_that_unpacks_to_255_mib_is_refused_unopened(codec: Codec) -> None:
    message = encode(None, [bytes(255 << 20)], None, [NOW_US], codec)
    payload = pack_batch(message, record_count=1, codec=codec)
    if codec is Codec.ZSTD:
        assert len(payload) < 40_000
    before = pa.total_allocated_bytes()
    with pytest.raises(BatchTooLarge, match="unpacks"):
        check_batch(payload, Bounds(record_bytes_max=1 << 30))
    assert pa.total_allocated_bytes() == before


def test_a_declared_length_that_differs_from_the_content_is_refused() -> None:
    payload = bytearray(payload_of(200, Codec.ZSTD, headers=False))
    declared = struct.pack("<q", 201 * 4)  # the value offsets
    at = payload.index(declared, 400)
    payload[at : at + 8] = struct.pack("<q", 201 * 4 + 8)
    with pytest.raises(InvalidBatch):
        check_batch(bytes(payload), LIMITS)


def test_limits_hold() -> None:
    payload = payload_of(100)
    with pytest.raises(BatchTooLarge, match="batch_bytes_max"):
        check_batch(payload, Bounds(batch_bytes_max=len(payload) - 1))
    with pytest.raises(BatchTooLarge, match="records"):
        check_batch(payload, Bounds(batch_records_max=99))
    big = repack(encode([b"k" * 60, None], [b"v" * 10, b""], [[("h" * 20, b"v" * 20)], None], [1, 2]), 2)
    assert check_batch(big, Bounds(record_bytes_max=110))
    with pytest.raises(BatchTooLarge, match="record of 110 bytes"):
        check_batch(big, Bounds(record_bytes_max=109))


def test_a_corrupt_offset_in_the_middle_is_refused() -> None:
    """The batch passes shallow validation, but reading it ends the process."""
    payload = bytearray(payload_of(1000, headers=False))
    offsets = struct.pack("<4i", *(sum(len(b"value %d" % i * 5) for i in range(n)) for n in (500, 501, 502, 503)))
    at = payload.index(offsets)
    payload[at : at + 4] = struct.pack("<i", 1 << 30)
    message = pa.py_buffer(bytes(payload)).slice(32)
    pa.ipc.read_record_batch(message, SCHEMA).validate()  # Arrow itself sees nothing wrong
    with pytest.raises(InvalidBatch):
        check_batch(bytes(payload), LIMITS)


def test_encode_refuses_what_is_not_records() -> None:
    with pytest.raises(InvalidBatch):
        encode(None, [1], None, [1])  # type: ignore[list-item]
    with pytest.raises(InvalidBatch):
        encode([b"a", b"b"], [b"a"], None, [1])
    with pytest.raises(InvalidBatch, match="no key"):
        encode(None, [b"a"], [[(None, b"")]], [1])  # type: ignore[list-item]


def test_tables_conform() -> None:
    headers = pa.array([[("a", b"1"), ("a", b"2")], None], pa.map_(pa.string(), pa.binary()))
    table = pa.table(
        {"headers": headers, "value": pa.array(["x", "é"]), "key": pa.array(["k", "k"]).dictionary_encode()}
    )
    (batch,) = conform(table, NOW_US)
    assert batch.schema.equals(SCHEMA)
    payload = repack(tb.encode_record_batch(batch), 2)
    assert decode_batch(payload, LIMITS).to_pydict()["value"] == [b"x", "é".encode()]
    assert decode_batch(payload, LIMITS).column(2).to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], None
    ]  # fmt: skip
    assert check_batch(payload, LIMITS).max_timestamp_us == NOW_US
    assert conform(batch, NOW_US)[0] is batch
    assert conform(table.slice(0, 0), NOW_US) == []
    times = pa.table(
        {"value": [b""], "timestamp": pa.array([datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("s", "UTC"))}
    )
    assert conform(times, NOW_US)[0].column(3)[0].as_py() == datetime(2020, 1, 1, tzinfo=UTC)


BAD_TABLES = {
    "no value": pa.table({"key": [b""]}),
    "an unknown column": pa.table({"value": [b""], "valeu": [b""]}),
    "a type that does not convert": pa.table({"value": [1.5]}),
    "a time without a zone": pa.table({"value": [b""], "timestamp": pa.array([0], pa.timestamp("us"))}),
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_tables_are_refused(what: str) -> None:
    with pytest.raises(InvalidBatch):
        conform(BAD_TABLES[what], NOW_US)


def test_slices_are_cut_to_what_they_show() -> None:
    whole = decode_batch(payload_of(1000), LIMITS)
    for start, length in ((0, 1), (7, 9), (500, 500), (999, 1)):
        part = whole.slice(start, length)
        payload = repack(tb.encode_record_batch(part), length)
        assert len(payload) < 1500 + 120 * length
        assert decode_batch(payload, LIMITS).equals(part)


# More cases run in the long tests. The fuzz target arrow.produce (tests/fuzz) has another thousand.
@pytest.mark.parametrize("cases", ["1500", pytest.param("6000", marks=pytest.mark.long)])
def test_the_fuzzer_finds_nothing(cases: str) -> None:
    """Many byte flips, truncations and wrong integers: a value or a typed error, and the process survives."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "fuzz_batch.py"), cases, "1"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert child.returncode == 0, f"exit {child.returncode}\n{child.stdout[-2000:]}{child.stderr[-2000:]}"


def test_errors_are_typed() -> None:
    assert issubclass(InvalidBatch, TinymqError)
    assert not InvalidBatch.retriable


def test_metadata_seen_before_is_not_walked_again_and_vouches_for_nothing_else() -> None:
    """A cached check holds only for the same number of rows and the same length; every other batch is checked."""
    payload = payload_of(1, headers=False)
    check_batch(payload, LIMITS)
    before = ipc._declared_cached.cache_info()
    check_batch(payload_of(1, headers=False), LIMITS)
    assert ipc._declared_cached.cache_info().hits == before.hits + 1
    for lie in (payload[:-8], payload + bytes(8), repack(payload[tb.HEADER_SIZE :], 2)):
        with pytest.raises(InvalidBatch):
            check_batch(lie, LIMITS)
    assert check_batch(payload, LIMITS).header.record_count == 1


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 100_000])
def test_a_slice_of_a_table_without_headers_takes_no_more_than_its_rows(rows: int) -> None:
    """Each slice was written with eight bytes for every row of the whole table."""
    (whole,) = conform(pa.table({"value": pa.array([b"v"] * rows, pa.binary())}), 1)
    whole.validate(full=True)
    part = whole.slice(rows // 2, 1)
    alone = encode(None, [b"v"], None, [1])
    assert tb.encode_record_batch(part).size <= alone.size + 128
    assert tb.encode_record_batch(whole).size <= alone.size + rows * 24
