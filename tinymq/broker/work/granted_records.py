"""Reads the stored batches of granted records, and cuts out parts of batches of which a worker gets only a part."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.broker.partition.admission import is_heavy
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.unpack_queue import BlockingRunner
from tinymq.format.batch import BatchLimits, decode_batch, encode_record_batch, pack_batch, read_declared
from tinymq.format.entry import Entry, Kind, crc32c, iter_entries

READ_BYTES = 1 << 20  # bytes of one read; a larger batch is read whole
CACHE_BYTES_MAX = 64 << 20  # bytes of unpacked batches, per broker
CACHED_MAX = 256  # unpacked batches, per broker


CacheKey = tuple[GroupId, int, int]  # of a batch: its partition, the history of the log, and its first offset


class GrantedBatch(NamedTuple):
    """Records that follow each other without gaps."""

    base_offset: int
    record_count: int
    append_time_us: int
    payload: bytes
    payload_crc: int


class Unpacked(NamedTuple):
    """A batch in the cache."""

    base_offset: int
    append_time_us: int
    records: pa.RecordBatch

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.records)


class GrantedRecords:
    """The reads of one broker. A bounded cache keeps unpacked batches for the next grants of their records."""

    def __init__(self, unpack: BlockingRunner, limits: BatchLimits) -> None:
        self._unpack = unpack
        self._limits = limits
        self._cache: OrderedDict[CacheKey, Unpacked] = OrderedDict()  # the most recently used last
        self._cached_bytes = 0

    def read_now(self, partition: Partition, offsets: Sequence[int]) -> list[GrantedBatch] | None:
        """The batches of these records, in order. None: one is not in memory, or takes long to unpack; call `read`."""
        frames = partition.group.log.reader.tail_from_offset(offsets[0], offsets[-1] + 1, READ_BYTES)
        if not frames:
            return None
        found, at = [], 0
        for entry in iter_entries(frames):
            wanted, at = _within(entry, offsets, at)
            if not wanted:
                continue
            if not _is_slice(entry, len(wanted)):
                found.append(_whole(entry))
                continue
            kept = self._keep_light(partition, entry)
            if kept is None:
                return None
            found += [_cut(kept, first, last) for first, last in _runs(wanted)]
        return found if at == len(offsets) else None

    async def read(self, partition: Partition, offsets: Sequence[int]) -> list[GrantedBatch]:
        """The batches of these records, in order. Records that retention has removed are left out.

        Raises CorruptData, and other errors of a disk.
        """
        found: list[GrantedBatch] = []
        at = 0
        while at < len(offsets):
            kept = self._find(partition, offsets[at])
            if kept is not None:
                wanted, at = _until(kept.next_offset, offsets, at)
                found += [_cut(kept, first, last) for first, last in _runs(wanted)]
                continue
            reader = partition.group.log.reader
            frames = await reader.read_from_offset(offsets[at], offsets[-1] + 1, READ_BYTES)
            before = at
            for entry in iter_entries(frames):
                while at < len(offsets) and offsets[at] < entry.header.base_offset:
                    at += 1  # retention has removed this record
                wanted, at = _within(entry, offsets, at)
                if wanted and _is_slice(entry, len(wanted)):
                    kept = await self._keep(partition, entry)
                    found += [_cut(kept, first, last) for first, last in _runs(wanted)]
                elif wanted:
                    found.append(_whole(entry))
            if at == before:
                break  # there is nothing more to read
        return found

    async def keys(self, partition: Partition, start: int) -> list[tuple[int, list[int | None]]]:
        """The hashes of the keys of records from `start` on, by batch: (first offset, hashes); None: no key.

        The hashes mean nothing outside of this process. Raises CorruptData, and other errors of a disk.
        """
        found: list[tuple[int, list[int | None]]] = []
        frames = await partition.group.log.reader.read_from_offset(start, partition.high_watermark, READ_BYTES)
        for entry in iter_entries(frames):
            if entry.header.kind == Kind.DATA:
                kept = self._find(partition, entry.header.base_offset) or await self._keep(partition, entry)
                keys = kept.records.column(0).to_pylist()
                found.append((kept.base_offset, [None if key is None else hash(key) for key in keys]))
        return found

    def _find(self, partition: Partition, offset: int) -> Unpacked | None:
        group, history = partition.group.id, partition.state.epoch_cache.newest_term
        for key, kept in self._cache.items():
            if key[:2] == (group, history) and kept.base_offset <= offset < kept.next_offset:
                self._cache.move_to_end(key)
                return kept
        return None

    def _keep_light(self, partition: Partition, entry: Entry) -> Unpacked | None:
        """The unpacked batch, from the cache or unpacked now. None, if that takes long or fails."""
        key = _key_of(partition, entry)
        kept = self._cache.get(key)
        if kept is not None:
            self._cache.move_to_end(key)
            return kept
        payload = entry.batch
        try:
            if is_heavy(read_declared(payload, self._limits), len(payload)):
                return None
            return self._put(key, entry, decode_batch(payload, self._limits))
        except TinymqError:
            return None  # `read` fails, too, and its caller reports it

    async def _keep(self, partition: Partition, entry: Entry) -> Unpacked:
        payload = entry.batch
        if is_heavy(read_declared(payload, self._limits), len(payload)):
            records = await self._unpack.run(lambda: decode_batch(payload, self._limits))
        else:
            records = decode_batch(payload, self._limits)
        return self._put(_key_of(partition, entry), entry, records)

    def _put(self, key: CacheKey, entry: Entry, records: pa.RecordBatch) -> Unpacked:
        kept = Unpacked(entry.header.base_offset, entry.header.append_time_us, records)
        if key not in self._cache:
            self._cache[key] = kept
            self._cached_bytes += records.nbytes
        while self._cached_bytes > CACHE_BYTES_MAX or len(self._cache) > CACHED_MAX:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.records.nbytes
        return kept


def _key_of(partition: Partition, entry: Entry) -> CacheKey:
    return partition.group.id, partition.state.epoch_cache.newest_term, entry.header.base_offset


def _within(entry: Entry, offsets: Sequence[int], at: int) -> tuple[Sequence[int], int]:
    """The offsets from `offsets[at]` on that lie in the entry, and the place in `offsets` behind them."""
    if entry.header.kind != Kind.DATA or at >= len(offsets) or offsets[at] < entry.header.base_offset:
        return (), at
    return _until(entry.header.next_offset, offsets, at)


def _until(end: int, offsets: Sequence[int], at: int) -> tuple[Sequence[int], int]:
    after = at
    while after < len(offsets) and offsets[after] < end:
        after += 1
    return offsets[at:after], after


def _is_slice(entry: Entry, wanted: int) -> bool:
    """Whether the worker gets only a part of the batch. Sent whole, the rest would use up its credit."""
    return 2 * wanted < entry.header.record_count


def _whole(entry: Entry) -> GrantedBatch:
    header = entry.header
    payload = entry.batch
    payload_crc = header.payload_crc if payload is entry.payload else crc32c(payload)
    return GrantedBatch(header.base_offset, header.record_count, header.append_time_us, payload, payload_crc)


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers among rising offsets, as (first, last)."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and offset == found[-1][1] + 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


def _cut(kept: Unpacked, first: int, last: int) -> GrantedBatch:
    count = last - first + 1
    message = encode_record_batch(kept.records.slice(first - kept.base_offset, count))
    payload = pack_batch(message, record_count=count)
    return GrantedBatch(first, count, kept.append_time_us, payload, crc32c(payload))
