"""Reads of published batches from a segment whose frames were damaged, some of them under valid checksums."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache

from tests.fuzz import reseal
from tests.fuzz.driver import Target
from tests.log.published import discard, publish, stage
from tests.log.values import LIMITS, append, faulty, open_both
from tinymq.format.entry import Kind, iter_entries
from tinymq.log import InlineRunner
from tinymq.log.files.memory_files import MemoryFiles
from tinymq.log.replica_log.reader import LogReader
from tinymq.log.replica_log.segment_list import SegmentList
from tinymq.log.replica_log.sync_progress import SyncProgress
from tinymq.log.replica_log.tail import Tail
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.replica_log.terms import TermRuns
from tinymq.log.replica_log.time_index import TimeIndex
from tinymq.log.segment.scan import scan_segment
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE, Segment, parse_segment_header

READS_MAX = 12
PATH = "1.log"


@cache
def segments() -> tuple[bytes, ...]:
    """A transaction right behind its batches, and one far behind them."""
    return tuple(asyncio.run(_segment(between_bytes)) for between_bytes in (100, 70_000))


async def _segment(between_bytes: int) -> bytes:
    files = faulty()
    store, opened = await open_both(files, limits=replace(LIMITS, segment_bytes=1 << 20))
    log = opened.log
    staged = [(stage(log, b"%d" % number * 50, number=number), 1 + number) for number in range(3)]
    append(log, 1, records=2)
    append(log, 1, between_bytes, kind=Kind.COMMAND)
    publish(log, staged)
    stage(log, b"never published")
    discard(log)
    append(log, 1, records=2)
    await store.close()
    (path,) = (path for path in files.paths() if path.endswith(".log"))
    return files.content(path)


def read_published(data: bytes) -> object:
    """All reads of the frames that a scan accepts."""
    files = MemoryFiles()
    file = files.open(PATH, create=True)
    file.write(0, [data])
    segment = Segment(parse_segment_header(data[:SEGMENT_HEADER_SIZE]), PATH)
    scan_segment(file, segment, lambda header, position: None)
    return asyncio.run(_read(files, segment))


async def _read(files: MemoryFiles, segment: Segment) -> list[int]:
    segments = SegmentList(segment.header.group, [segment], TermRuns())
    progress = SyncProgress(segment.last_index)
    reader = LogReader(segments, Tail(segment.last_index + 1, TailBudget(1)), progress, files, InlineRunner())
    start, end = segment.header.base_offset, segment.next_offset
    found = []
    for offset in range(start, min(end, start + READS_MAX)):
        frames = list(iter_entries(await reader.read_from_offset(offset, end, 1 << 16)))
        assert frames[0].header.base_offset <= offset < frames[0].header.next_offset
        found.append(len(frames))
    await TimeIndex(segments, reader).entry_for_time(1, end, start)
    return found


def targets() -> list[Target]:
    return [Target("published", segments, read_published, (reseal.segment,), bytes_max=4 << 20)]
