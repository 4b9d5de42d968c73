"""Transactions in a log, and what readers get of them, computed from a list of entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinymq.format.entry import Entry, Kind, NewEntry, crc32c, make_entry, parse_entry
from tinymq.format.made_frames import made_head
from tinymq.format.transactional import (
    COPIED_VERSION,
    STAGED_HEAD_SIZE,
    TRANSACTIONAL_VERSION,
    CopiedHead,
    PublishedItems,
    TransactionalHead,
    TransactionName,
    items_of,
    pack_copied,
    pack_discard,
    pack_publish,
    pack_transactional,
    publish_version,
)
from tinymq.log import Log

NAME = TransactionName(producer_id=7, number=3, epoch=1)


def append_new(log: Log, new: NewEntry, *, term: int = 1, append_time_us: int = 5) -> Entry:
    """Append `new` to a log."""
    entry = make_entry(
        new,
        index=log.last_index + 1,
        term=max(term, log.last_term),
        prev_crc=log.last_crc,
        base_offset=log.next_offset,
        append_time_us=append_time_us,
    )
    log.append([entry])
    return entry


def stage(log: Log, batch: bytes, *, number: int = 0, time_us: int = 5, term: int = 1) -> Entry:
    """Append a batch of a transaction."""
    head = TransactionalHead(
        producer_id=7, number=3, epoch=1, coordinator=0, writer=1, batch_number=number, max_timestamp_us=time_us
    )
    payload = pack_transactional(head, batch)
    return append_new(log, NewEntry(Kind.STAGED, payload, version=TRANSACTIONAL_VERSION), term=term)


def copy(log: Log, staged: Entry, *, term: int = 1) -> Entry:
    """Append the batch of a STAGED entry again, in the place of that entry."""
    head = CopiedHead(
        producer_id=7, number=3, epoch=1, coordinator=0, writer=1, batch_number=0, replaced_index=staged.index
    )
    payload = pack_copied(head, staged.payload[STAGED_HEAD_SIZE:])
    return append_new(log, NewEntry(Kind.STAGED, payload, version=COPIED_VERSION), term=term)


def publish(log: Log, staged: Sequence[tuple[Entry, int]], *, term: int = 1) -> Entry:
    """Append the entry that publishes batches in this order, which have so many records each."""
    items = items_of(
        (
            entry.index,
            records,
            len(entry.payload) - STAGED_HEAD_SIZE,
            time_of(entry),
            crc32c(entry.payload[STAGED_HEAD_SIZE:]),
        )
        for entry, records in staged
    )
    records = sum(records for _, records in staged)
    greatest = max(time_of(entry) for entry, _ in staged)
    new = NewEntry(Kind.PUBLISH, pack_publish(NAME, items), records, greatest, version=publish_version(items))
    return append_new(log, new, term=term)


def discard(log: Log, *, term: int = 1) -> Entry:
    """Append the entry that drops the batches of a transaction."""
    return append_new(log, NewEntry(Kind.DISCARD, pack_discard(NAME), version=TRANSACTIONAL_VERSION), term=term)


def time_of(staged: Entry) -> int:
    """The greatest timestamp of a batch. A copy does not have it, and any number does in its place."""
    return int.from_bytes(staged.payload[STAGED_HEAD_SIZE - 8 : STAGED_HEAD_SIZE], "little", signed=True)


def visible(entries: Iterable[Entry]) -> list[Entry]:
    """What readers get of a log with these entries: DATA entries, and published batches that are among `entries`."""
    found, by_index = list[Entry](), dict[int, Entry]()
    for entry in entries:
        by_index[entry.index] = entry
        if entry.header.kind == Kind.DATA:
            found.append(entry)
        elif entry.header.kind == Kind.PUBLISH:
            for item in PublishedItems(entry.payload):
                if item.entry_index in by_index:
                    batch = by_index[item.entry_index].payload[STAGED_HEAD_SIZE:]
                    found.append(parse_entry(made_head(entry.header, item) + batch))
    return found


def gone_before(entries: Sequence[Entry]) -> int:
    """The offset behind the last record whose batch is published, but not among `entries`; 0: there is no such one."""
    present = {entry.index for entry in entries}
    published = [entry for entry in entries if entry.header.kind == Kind.PUBLISH]
    return max(
        (
            entry.header.base_offset + item.first + item.record_count
            for entry in published
            for item in PublishedItems(entry.payload)
            if item.entry_index not in present
        ),
        default=0,
    )
