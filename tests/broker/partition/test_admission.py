"""Bad input, one case per line. Each raises a typed error before anything is appended."""

from __future__ import annotations

import dataclasses
import functools

import pyarrow as pa
import pytest

from tests.fakes.batches import payload
from tinymq.base.config import KIB, MIB, Limits
from tinymq.base.errors import BatchTooLarge, InvalidBatch, InvalidName, TinymqError
from tinymq.broker.partition.admission import LIGHT_VALUES_MAX, admit, check_topic_id, declare, is_heavy
from tinymq.format.batch import HEADER_SIZE, Codec, encode, pack_batch
from tinymq.format.entry import crc32c

SMALL = dataclasses.replace(
    Limits(), record_bytes_max=1000, batch_bytes_max=4000, batch_uncompressed_bytes_max=8000, batch_records_max=50
)
OTHER_SCHEMA = pa.record_batch({"a": pa.array([1], pa.int32())}).serialize()


@functools.cache  # unpacking it holds the interpreter's lock for a quarter of a second
def zstd_bomb() -> bytes:
    message = encode(None, [b"\0" * (255 * MIB)], None, [0], Codec.ZSTD)
    assert message.size < 32 * 1024
    return pack_batch(message, record_count=1, codec=Codec.ZSTD)


def lying_offsets() -> bytes:
    good = bytearray(payload(100, value=b"x" * 20))
    at = bytes(good).index((21).to_bytes(4, "little") + (42).to_bytes(4, "little"), HEADER_SIZE)
    good[at + 40 : at + 44] = (1 << 30).to_bytes(4, "little")
    return bytes(good)


BAD: dict[str, tuple[bytes, Limits, type[TinymqError]]] = {
    "nothing": (b"", Limits(), InvalidBatch),
    "not Arrow": (pack_batch(b"\xff" * 200, record_count=1), Limits(), InvalidBatch),
    "another schema": (pack_batch(OTHER_SCHEMA, record_count=1), Limits(), InvalidBatch),
    "a wrong record count": (pack_batch(payload(3)[HEADER_SIZE:], record_count=4), Limits(), InvalidBatch),
    "a truncated frame": (payload(3)[:-8], Limits(), InvalidBatch),
    "Arrow buffers with false lengths": (lying_offsets(), Limits(), InvalidBatch),
    "a batch over its limit": (payload(40, value=b"x" * 200), SMALL, BatchTooLarge),
    "a record over its limit": (payload(1, value=b"x" * 1500), SMALL, BatchTooLarge),
    "too many records": (payload(51), SMALL, BatchTooLarge),
    "declares 255 MiB": (zstd_bomb(), Limits(), BatchTooLarge),
    "declares more bytes than allowed": (payload(40, value=b"x" * 300, codec=Codec.ZSTD), SMALL, BatchTooLarge),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_refused(name: str) -> None:
    data, limits, error = BAD[name]
    with pytest.raises(error) as refused:
        admit(data, crc32c(data), limits)
    assert refused.value.hint
    assert not refused.value.retriable


def test_a_wrong_checksum() -> None:
    data = payload()
    with pytest.raises(InvalidBatch, match="checksum"):
        admit(data, crc32c(data) ^ 1, Limits())


def test_good_batches_pass() -> None:
    for codec in Codec:
        data = payload(10, codec=codec, time_us=5)
        batch = admit(data, crc32c(data), Limits())
        assert batch.header.record_count == 10
        assert batch.max_timestamp_us == 14


def test_the_declared_size_decides_which_batches_are_checked_off_the_loop() -> None:
    """Neither the codec byte of the header, which is only informative, nor the packed size decides."""

    def heavy(data: bytes) -> bool:
        return is_heavy(declare(data, crc32c(data), Limits()), len(data))

    packed = [b"\0" * MIB] * 7
    small, large = (encode(None, values, None, [0] * len(values), Codec.ZSTD) for values in (packed[:1], packed))
    assert len(large) < 4 * KIB
    for said in Codec:
        assert heavy(pack_batch(large, record_count=7, codec=said))
        assert heavy(pack_batch(small, record_count=1, codec=said))
        assert not heavy(payload(10, codec=said))
    assert not heavy(payload(1, value=b"x" * 4 * MIB)), "not unpacked, and only one value to check"
    assert heavy(payload(LIGHT_VALUES_MAX + 1))
    headers = encode(None, [b""], [[("k", None)] * LIGHT_VALUES_MAX], [0])
    assert heavy(pack_batch(headers, record_count=1))


def test_a_damaged_batch_is_corrupt_whatever_it_declares() -> None:
    good = payload(40, value=b"x" * 20)
    for at in range(0, len(good), 8):
        bad = bytearray(good)
        bad[at] ^= 0x7F
        with pytest.raises(InvalidBatch, match="checksum"):
            admit(bytes(bad), crc32c(good), Limits())


@pytest.mark.parametrize("topic_id", [b"", b"short", bytes(16), b"x" * 17])
def test_an_invalid_topic_id_is_refused(topic_id: bytes) -> None:
    with pytest.raises(InvalidName):
        check_topic_id(topic_id)
