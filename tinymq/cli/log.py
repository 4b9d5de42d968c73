"""`tinymq log`: stored bytes, looked at offline."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.cli.exits import Exit
from tinymq.cli.output import Output, say
from tinymq.cli.template import iso

if TYPE_CHECKING:
    from tinymq.entry import EntryHeader
    from tinymq.log.segment import Segment

app = App(name="log", help="Look into segment files, offline.")

COLUMNS = ("position", "index", "term", "kind", "offset", "records", "bytes", "appended", "crc")
LINE = "{:>12} {:>10} {:>6} {:<8} {:>12} {:>8} {:>10} {:<27} {:<8}\n"


@app.command
def dump(
    file: Annotated[Path, Parameter(help="A segment: groups/TOPIC/PARTITION/*.log in a broker's data folder.")],
    /,
    *,
    output: Output = "table",
) -> int:
    """Print the entries of a segment file, all checksums verified, and where what is wrong.

    For the files of a stopped broker. -o json prints one JSON object per line: the segment's header, then entries.
    Exit code 1 when an entry is damaged, or is not the one that follows.
    """
    from tinymq.errors import CorruptData
    from tinymq.log.files import RealFiles
    from tinymq.log.scan import scan_segment
    from tinymq.log.segment import SEGMENT_HEADER_SIZE, Segment, parse_segment_header

    if not file.is_file():
        raise FileNotFoundError(2, "no such file", str(file))
    opened = RealFiles(file.absolute().parent).open(file.name)
    try:
        try:
            header = parse_segment_header(opened.read(0, SEGMENT_HEADER_SIZE))
        except CorruptData as error:
            say(f"{file}: position 0: {error.message}")
            return Exit.FAILED
        segment = Segment(header, file.name)
        show = _lines(segment) if output == "table" else _json(segment)
        problem = scan_segment(opened, segment, show)
        size = opened.size()
    finally:
        opened.close()
    if problem is not None:
        say(f"{file}: position {problem.position}: {problem.what}; {size - problem.position} bytes not read")
        return Exit.FAILED
    say(f"{segment.last_index - segment.first_index + 1} entries, {segment.end} of {size} bytes in use, all whole")
    return Exit.OK


def describe(header: EntryHeader) -> dict[str, Any]:
    """An entry's header as a JSON object: names for kinds, hexadecimal checksums."""
    values = asdict(header)
    for name in ("header_crc", "payload_crc", "prev_crc"):
        values[name] = f"{values[name]:08x}"
    return {**values, "kind": _kind(header.kind)}


def _kind(kind: int) -> str:
    from tinymq.entry import Kind

    return Kind(kind).name if kind in set(Kind) else f"unknown {kind}"


def _lines(segment: Segment) -> Callable[[EntryHeader, int], None]:
    at = segment.header
    say(f"group {at.group}, first index {at.first_index}, base offset {at.base_offset}, term before {at.prev_term}")
    sys.stdout.write(LINE.format(*COLUMNS))

    def show(h: EntryHeader, position: int) -> None:
        cells = (position, h.index, h.term, _kind(h.kind), h.base_offset, h.record_count, h.length)
        sys.stdout.write(LINE.format(*cells, iso(h.append_time_us), f"{h.header_crc:08x}"))

    return show


def _json(segment: Segment) -> Callable[[EntryHeader, int], None]:
    at = segment.header
    first = {"topic_id": at.group.topic_id.hex(), "partition": at.group.partition, "first_index": at.first_index}
    print(json.dumps({**first, "base_offset": at.base_offset, "prev_term": at.prev_term}))

    def show(header: EntryHeader, position: int) -> None:
        print(json.dumps({"position": position, **describe(header)}))

    return show
