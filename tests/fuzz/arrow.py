"""Arrow batches down to their buffers, on every path: produce, fetch, lookup of a time. Accepted batches are read to
the last byte by all code that readers use. An undetected defect ends the process with a segmentation fault, so these
targets run in a process of their own.
"""

from __future__ import annotations

import ctypes
import random
from functools import cache

import pyarrow as pa

from tests.fuzz import reseal
from tests.fuzz.driver import Target
from tests.fuzz_batch import read_everything, seeds
from tinymq.base.config import MIB, Limits
from tinymq.base.errors import CorruptData
from tinymq.broker.partition.admission import admit, declare, is_heavy
from tinymq.broker.serve.offsets import _first_at
from tinymq.client.consume.records import read_chunks, to_table
from tinymq.format.batch import check_batch, decode_batch
from tinymq.format.entry import Entry, Kind, NewEntry, crc32c, iter_entries, make_entry

LIMITS = Limits(record_bytes_max=MIB, batch_bytes_max=MIB, batch_uncompressed_bytes_max=MIB)
ARROW_BYTES_MAX = 16 * MIB  # accepted data is read several times; unpacked unchecked it would be GiBs
METADATA_BYTES = 640  # the most interesting bytes are there


@cache
def _pool() -> pa.MemoryPool:
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))  # it must outlive the last of Arrow's buffers, at exit
    return pool


def _bounded() -> None:
    greatest = _pool().max_memory() or 0
    assert greatest <= ARROW_BYTES_MAX, f"Arrow allocated {greatest} bytes"


@cache
def payloads() -> list[bytes]:
    return seeds(random.Random(1))


def produce(data: bytes) -> object:
    """A broker accepts the batch; then a reader reads it."""
    _pool()
    try:
        declared = declare(data, crc32c(data), LIMITS)
        is_heavy(declared, len(data))
        checked = admit(data, crc32c(data), LIMITS, declared)
    finally:
        _bounded()
    batch = decode_batch(data, LIMITS)
    assert batch.num_rows == checked.header.record_count
    assert check_batch(memoryview(data), LIMITS) == checked
    read_everything(batch)
    _bounded()
    return checked


@cache
def fetched_frames() -> list[bytes]:
    """A few batches in a row, as a log stores them."""
    made = []
    for first in range(0, len(payloads()), 3):
        stored, offset = b"", 7
        for n, payload in enumerate(payloads()[first : first + 3]):
            count = int.from_bytes(payload[4:8], "little")
            entry = make_entry(
                NewEntry(Kind.DATA, payload, record_count=count),
                index=1 + n,
                term=1,
                prev_crc=0,
                base_offset=offset,
                append_time_us=5,
            )
            stored += entry.head + entry.payload
            offset += count
        made.append(stored)
    return made


def fetch(data: bytes) -> object:
    """A client unpacks a broker's answer, as messages and as tables."""
    _pool()
    try:
        chunks = list(read_chunks(0, memoryview(data), 8, None, LIMITS))
    finally:
        _bounded()
    messages = [message for chunk in chunks for message in chunk.messages("t")]
    for message in messages:
        assert message.offset >= 8
        assert message.timestamp.year >= 1
        message.header("h")
    assert to_table(chunks).num_rows == len(messages)
    to_table(chunks).to_pylist()
    _bounded()
    return len(messages)


def find_time(data: bytes) -> object:
    """A broker looks up a time in its stored batches."""
    _pool()
    entries: list[Entry] = list(iter_entries(data))
    found = []
    for entry in entries:
        if entry.header.kind == Kind.DATA:
            try:
                found.append(_first_at(entry, 1 << 40, 0))
            except CorruptData:
                continue
    return found


def targets() -> list[Target]:
    common = {"alone": True, "head_bytes": METADATA_BYTES, "bytes_max": 32 * MIB}
    return [
        Target("arrow.produce", payloads, produce, cases=400, **common),
        Target("arrow.fetch", fetched_frames, fetch, (reseal.entries, reseal.entries), cases=400, **common),
        Target("arrow.time", fetched_frames, find_time, (reseal.entries, reseal.entries), cases=200, **common),
    ]
