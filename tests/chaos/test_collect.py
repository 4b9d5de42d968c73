"""The content of a log for the checkers, also while the log changes."""

from __future__ import annotations

import pytest

from tests.fakes.batches import payload
from tests.log.opened import settle, with_log
from tests.log.published import publish, stage
from tests.log.values import append
from tinymq.format.entry import Entry, Kind
from tinymq.log import Log, Store
from tinymq_chaos.checkers.common import replica_reader
from tinymq_chaos.checkers.common.replica_reader import GONE, ReplicaReader
from tinymq_chaos.history import StoredEntry


class Undecoded(ReplicaReader):
    """The records of these tests are not record batches."""

    def entry(self, entry: Entry) -> StoredEntry:
        header = entry.header
        return StoredEntry(header.index, header.term, header.base_offset, header.prev_crc, header.header_crc, ())


def test_entries_removed_during_a_read_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention and trims go on until the end of a run. The part that was read before does not meet the rest."""
    monkeypatch.setattr(replica_reader, "READ_BYTES", 200)

    async def body(store: Store, log: Log) -> None:
        append(log, 80)
        await settle(store, log)
        ends = [last for _, last, _, _ in log.segments.bounds()]
        assert len(ends) > 3, "else nothing can be removed"
        real, reads = log.reader.read, 0

        async def read(index: int, bytes_max: int) -> list[Entry]:
            nonlocal reads
            reads += 1
            if reads == 3:
                log.remove_before(ends[2] + 1)
            return await real(index, bytes_max)

        monkeypatch.setattr(log.reader, "read", read)
        found = await Undecoded().stored(log, log.last_index - 1)
        assert log.first_index > ends[0], "else nothing was removed"
        assert [entry.index for entry in found] == list(range(log.first_index, log.last_index))

    with_log(body, segment_bytes=1500)


def test_records_of_transactions_are_found_where_they_are_published() -> None:
    """A replica that has not all batches any more learns the others from a replica that was read before."""

    async def body(store: Store, log: Log) -> None:
        staged = [
            (stage(log, payload(records, value=b"%d" % number)), records) for number, records in enumerate((2, 3))
        ]
        published = publish(log, staged)
        append(log, 20, kind=Kind.NOOP)
        await settle(store, log)
        reader = ReplicaReader()
        whole = (await reader.stored(log, log.last_index))[published.index - 1]
        assert (whole.base_offset, len(whole.records), len(whole.timestamps)) == (0, 5, 5)
        assert GONE not in whole.records
        log.remove_before(published.index)
        assert staged[0][0].index < log.first_index <= published.index
        again = [e for e in await reader.stored(log, log.last_index) if e.index == published.index]
        assert again == [whole]
        (alone,) = [e for e in await ReplicaReader().stored(log, log.last_index) if e.index == published.index]
        assert alone.records == (GONE,) * 5
        assert alone.end_offset == 5

    with_log(body, segment_bytes=600)
