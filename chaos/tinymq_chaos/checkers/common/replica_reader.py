"""Read the log of a replica for the checkers."""

from __future__ import annotations

import google_crc32c
import pyarrow as pa

from tinymq.base.config import Limits
from tinymq.base.errors import OffsetOutOfRange
from tinymq.format.batch import decode_batch
from tinymq.format.entry import Entry, Kind
from tinymq.format.transactional import STAGED_HEAD_SIZE, Item, PublishedItems, is_transactional
from tinymq.log.replica_log.log import Log
from tinymq_chaos.history import StoredEntry
from tinymq_chaos.records import CHANGED, names_in_table

READ_BYTES = 1 << 20
GONE = f"{CHANGED}gone"  # in the place of a record whose batch was removed
Records = tuple[tuple[str, ...], tuple[int, ...]]  # (names, timestamps)


class ReplicaReader:
    """Replicas hold the same bytes, so each batch is decoded once.

    `seen` has the checksum of all of a batch's bytes as its key. `staged` has the batches of transactions: a PUBLISH
    entry names each by its place, its checksum and its length.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._seen: dict[tuple[int, int], Records] = {}
        self._staged: dict[tuple[int, int, int], Records] = {}

    async def stored(self, log: Log, upto: int) -> tuple[StoredEntry, ...]:
        """Return the entries from the log's first index up to and including `upto`.

        Starts over from the present first index if the next entries are removed meanwhile. Raises errors of the read
        (CorruptData).
        """
        found: list[StoredEntry] = []
        index = log.first_index
        while index <= upto:
            try:
                entries = await log.reader.read(index, READ_BYTES)
            except OffsetOutOfRange:  # a trim or retention: the entries read so far do not meet the rest
                found, index = [], log.first_index
                continue
            if not entries:
                break
            found += [self.entry(entry) for entry in entries if entry.index <= upto]
            index = entries[-1].index + 1
        return tuple(found)

    def entry(self, entry: Entry) -> StoredEntry:
        """Return the entry as histories have it.

        If its bytes do not match their checksums, it holds a record that no producer sent.
        """
        header = entry.header
        place = (header.header_crc, header.payload_crc)
        if google_crc32c.value(entry.payload) != header.payload_crc or (
            google_crc32c.value(entry.head[4:]) != header.header_crc
        ):  # the replica should have reported it
            records: Records = ((f"{CHANGED}entry {entry.index}",), ())
        else:
            records = self._seen.get(place) or self._records(entry)
            if header.kind != Kind.PUBLISH:  # another replica may have more of its batches
                self._seen[place] = records
        return StoredEntry(
            header.index, header.term, header.base_offset, header.prev_crc, header.header_crc, *records,
            append_time_us=header.append_time_us,
        )  # fmt: skip

    def _records(self, entry: Entry) -> Records:
        header = entry.header
        if header.kind == Kind.DATA:
            return self._decoded(entry.batch)
        if header.kind == Kind.STAGED and is_transactional(header.version):
            batch = entry.payload[STAGED_HEAD_SIZE:]
            self._staged[header.index, google_crc32c.value(batch), len(batch)] = self._decoded(batch)
        if header.kind != Kind.PUBLISH:
            return (), ()
        found = [self._published(item) for item in PublishedItems(entry.payload)]
        return tuple(name for names, _ in found for name in names), tuple(at for _, times in found for at in times)

    def _published(self, item: Item) -> Records:
        """The records of a published batch. A batch that no replica holds any more lies below the log start."""
        gone: Records = (GONE,) * item.record_count, (item.max_timestamp_us,) * item.record_count
        return self._staged.get((item.entry_index, item.batch_crc, item.length), gone)

    def _decoded(self, batch: bytes) -> Records:
        table = decode_batch(batch, self._limits)
        return tuple(names_in_table(table)), tuple(table.column("timestamp").cast(pa.int64()).to_pylist())
