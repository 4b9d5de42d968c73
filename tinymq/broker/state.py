"""A partition's applied state: what every replica knows of the log up to one index, and nothing else.

    offset size field (little-endian)
         0    4 crc32c          u32  of everything after it
         4    2 version         u16  1
         6    2 reserved        u16  0
         8    8 applied_index   u64  the last entry that counts
        16    8 high_watermark  u64  offset after the last record up to it
        24    8 record_bytes    u64  payload bytes of all records up to it
        32    … producers            tinymq/broker/producers.py

Equal logs give equal bytes. `apply` is total: whatever was committed is counted, never refused.
"""

from __future__ import annotations

import struct

from tinymq.batch import BatchHeader, parse_batch_header
from tinymq.broker.producers import PRODUCERS_MAX, Producers
from tinymq.entry import Entry, Kind, crc32c
from tinymq.errors import CorruptData, InvalidBatch

STATE_VERSION = 1
_HEAD = struct.Struct("<IHHQQQ")


class PartitionState:
    """Changed by `apply` and `load` alone."""

    __slots__ = ("applied_index", "high_watermark", "producers", "record_bytes")

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self.applied_index = 0
        self.high_watermark = 0
        self.record_bytes = 0
        self.producers = Producers(producers_max)

    def apply(self, entry: Entry) -> None:
        """Count one committed entry, of any kind; entries come in order, each once."""
        header = entry.header
        self.applied_index = header.index
        self.high_watermark = header.next_offset
        if header.kind != Kind.DATA:
            return
        self.record_bytes += header.length
        batch = _batch_header(entry)
        if batch is not None and batch.producer_id:
            self.producers.add(batch, header.base_offset, header.append_time_us)

    def dump(self) -> bytes:
        head = _HEAD.pack(0, STATE_VERSION, 0, self.applied_index, self.high_watermark, self.record_bytes)
        body = head[4:] + self.producers.dump()
        return crc32c(body).to_bytes(4, "little") + body

    def load(self, data: bytes) -> None:
        """Take over what `dump` made. Raises CorruptData, and then nothing has changed."""
        if len(data) < _HEAD.size:
            raise CorruptData("a partition's applied state is cut short")
        crc, version, reserved, applied_index, high_watermark, record_bytes = _HEAD.unpack_from(data)
        if crc32c(data[4:]) != crc:
            raise CorruptData("a partition's applied state does not match its checksum")
        if version != STATE_VERSION:
            raise CorruptData(f"a partition's applied state has version {version}, this build knows {STATE_VERSION}")
        if reserved or (applied_index | high_watermark | record_bytes) >> 63:
            raise CorruptData("a partition's applied state is out of range")
        self.producers.load(data[_HEAD.size :])
        self.applied_index, self.high_watermark, self.record_bytes = applied_index, high_watermark, record_bytes


def _batch_header(entry: Entry) -> BatchHeader | None:
    try:
        return parse_batch_header(entry.payload)
    except InvalidBatch:  # committed all the same: its offsets are taken, and it names no producer
        return None
