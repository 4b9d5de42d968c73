"""A segment file in plain words, for `tinymq log dump`. It needs neither a broker nor a data directory, and writes
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinymq.base.errors import CorruptData, StorageError
from tinymq.base.quantity import quantity
from tinymq.format import transactional
from tinymq.format.entry import EntryHeader, Kind, crc32c
from tinymq.format.made_frames import misfit
from tinymq.format.transactional import CopiedHead, PublishedItems, TransactionalHead, TransactionName
from tinymq.log.files.files import File, open_to_read
from tinymq.log.segment.scan import VerifiedFrame, frames
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE, Segment, SegmentHeader, parse_segment_header

Transaction = TransactionalHead | CopiedHead | PublishedItems | TransactionName


@dataclass(frozen=True, slots=True)
class DumpedSegment:
    """The segment's own header."""

    header: SegmentHeader
    size: int


@dataclass(frozen=True, slots=True)
class DumpedEntry:
    """One whole frame. `problem` says why it cannot follow the frame before it, or what contradicts its content."""

    position: int
    header: EntryHeader
    payload: bytes
    problem: str | None
    transaction: Transaction | None = None  # what it says of one


@dataclass(frozen=True, slots=True)
class DumpedEnd:
    """Where reading stopped: at the end, or at a problem."""

    position: int
    entries: int
    problem: str | None


Dumped = DumpedSegment | DumpedEntry | DumpedEnd


def dump_segment(path: Path) -> Iterator[Dumped]:
    """Everything in a segment file, verified, up to the first frame that is not whole.

    A frame that is whole but out of place is shown with its problem. Raises StorageError if the file cannot be read,
    UnsupportedVersion.
    """
    try:
        file = open_to_read(path)
    except FileNotFoundError as error:
        raise StorageError(f"there is no file {path}") from error
    try:
        yield from _dump(file)
    finally:
        file.close()


def _dump(file: File) -> Iterator[Dumped]:
    try:
        header = parse_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
    except CorruptData as error:
        yield DumpedEnd(0, 0, error.message)
        return
    yield DumpedSegment(header, file.size())
    segment = Segment(header, file.path)
    count, batches = 0, _Batches(header.first_index)
    try:
        for frame in frames(file):
            count += 1
            yield _entry(frame, segment.misfit(frame.header), batches)
            segment.append(frame.header)
    except CorruptData as error:
        yield DumpedEnd(int(error.detail["position"]), count, error.message)
    else:
        yield DumpedEnd(segment.end, count, None)


def _entry(frame: VerifiedFrame, problem: str | None, batches: _Batches) -> DumpedEntry:
    header, payload = frame.header, frame.payload
    transaction: Transaction | None = None
    try:
        match header.kind, header.version:
            case Kind.STAGED, transactional.TRANSACTIONAL_VERSION:
                transaction, batch = transactional.unpack_transactional(payload)
                batches.crcs[header.index] = header, crc32c(batch)
            case Kind.STAGED, transactional.COPIED_VERSION:
                transaction, batch = transactional.unpack_copied(payload)
                batches.crcs[header.index] = header, crc32c(batch)
            case Kind.DISCARD, transactional.TRANSACTIONAL_VERSION:
                transaction = transactional.unpack_discard(payload)
            case Kind.PUBLISH, _:
                transaction = published = PublishedItems(payload)
                published.check(header.index, header.version, header.record_count)
                problem = problem or batches.misfit(published)
    except CorruptData as error:
        problem = problem or error.message
    return DumpedEntry(frame.position, header, payload, problem, transaction)


class _Batches:
    """The batches of transactions in one segment, by the index of their entry."""

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index  # of the segment
        self.crcs: dict[int, tuple[EntryHeader, int]] = {}  # header of the entry, checksum of the batch

    def misfit(self, published: PublishedItems) -> str | None:
        """Why items are not those of their batches. Batches of earlier segments are not looked at."""
        for item in published:
            if item.entry_index >= self.first_index:
                header, batch_crc = self.crcs.get(item.entry_index, (None, 0))
                if header is None or misfit(item, header) or batch_crc != item.batch_crc:
                    return f"entry {item.entry_index} is not the batch that it names"
        return None


def format_dumped(item: Dumped) -> str:
    """A line for a person, and for a PUBLISH entry one more for each batch."""
    if isinstance(item, DumpedSegment):
        header = item.header
        return (
            f"segment of {header.group}, {item.size} bytes: from entry {header.first_index}, offset "
            f"{header.base_offset}, after term {header.prev_term}, crc {header.prev_crc:08x}"
        )
    if isinstance(item, DumpedEntry):
        entry = item.header
        records = f"offsets {entry.base_offset}..{entry.next_offset - 1}" if entry.record_count else "no records"
        problem = f"  PROBLEM: {item.problem}" if item.problem else ""
        return (
            f"@{item.position} entry {entry.index} term {entry.term} {kind_name(entry.kind)} "
            f"{entry.length} bytes, {records}, appended {entry.append_time_us} us, "
            f"crc {entry.header_crc:08x}{_format_transaction(item)}{problem}"
        ) + "".join(_batch_lines(item))
    entries = quantity(item.entries, "entry", "entries")
    if item.problem:
        return f"@{item.position} PROBLEM after {entries}: {item.problem}"
    return f"@{item.position} end: {entries}, all whole"


def _format_transaction(item: DumpedEntry) -> str:
    found = item.transaction
    match found:
        case None:
            return ""
        case TransactionalHead():
            name = found.producer_id, found.number, found.epoch
            what = f", batch {found.batch_number} of writer {found.writer}"
        case CopiedHead():
            name = found.producer_id, found.number, found.epoch
            what = f", batch {found.batch_number} of writer {found.writer}, replaces entry {found.replaced_index}"
        case TransactionName():
            name, what = found, ""
        case PublishedItems():
            name, what = found.name, f", {quantity(len(found), 'batch', 'batches')}"
    producer_id, number, epoch = name
    return f", transaction {number} of producer {producer_id}, epoch {epoch}{what}"


def _batch_lines(item: DumpedEntry) -> Iterator[str]:
    if isinstance(item.transaction, PublishedItems):
        for batch in item.transaction:
            first = item.header.base_offset + batch.first
            yield (
                f"\n    entry {batch.entry_index}: offsets {first}..{first + batch.record_count - 1}, "
                f"{batch.length} bytes, crc {batch.batch_crc:08x}"
            )


def kind_name(kind: int) -> str:
    """The kind's name, or its number if this build does not know it."""
    try:
        return Kind(kind).name
    except ValueError:
        return f"kind {kind}"
