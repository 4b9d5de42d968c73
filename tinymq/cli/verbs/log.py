"""`tinymq log`: inspect stored bytes offline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest
from tinymq.base.quantity import quantity
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.options import Output
from tinymq.cli.common.output import print_json_line, print_line, say

if TYPE_CHECKING:
    from tinymq.log.segment.dump import Dumped, DumpedEntry

HELP = """
Example: tinymq log dump data/groups/orders/0/00000000000000000000.log
"""

app = App(name="log", help="Inspect segment files offline.", help_epilogue=HELP)


@app.command
def dump(
    file: Annotated[Path, Parameter(help="A segment: groups/TOPIC/PARTITION/*.log in a broker's data directory.")],
    /,
    *,
    output: Output = "table",
) -> int:
    """Print the entries of a segment file, verify all checksums, and report every problem with its position.

    Use it on the files of a stopped broker. -o json prints one JSON object per line: the segment's header, then the
    entries, then the end. The exit code is 1 if an entry is damaged or does not continue the one before it.
    """
    from tinymq.log.segment.dump import dump_segment, format_dumped

    if not file.exists():
        raise FileNotFoundError(2, "no such file", str(file))
    if not file.is_file():
        raise InvalidRequest(f"{file} is not a file", hint="name a segment: groups/TOPIC/PARTITION/*.log")
    problems = 0
    for item in dump_segment(file):
        document = describe(item)
        problems += document.get("problem") is not None
        if output == "json":
            print_json_line(document)
        else:
            print_line(format_dumped(item))
    if problems:
        say(f"{file}: {quantity(problems, 'problem')} found")
    return Exit.FAILED if problems else Exit.OK


def describe(item: Dumped) -> dict[str, Any]:
    """Return an item of the dump as a JSON object: kinds by name, checksums in hexadecimal, no payloads. Pure."""
    from tinymq.format.entry import Kind
    from tinymq.log.segment.dump import DumpedEntry, DumpedSegment

    if isinstance(item, DumpedSegment):
        header = item.header
        group = {"topic_id": header.group.topic_id.hex(), "partition": header.group.partition}
        return {**group, "first_index": header.first_index, "base_offset": header.base_offset, "size": item.size}
    if isinstance(item, DumpedEntry):
        values = {**asdict(item.header), **_transaction(item)}
        for name in ("header_crc", "payload_crc", "prev_crc"):
            values[name] = f"{values[name]:08x}"
        kind = item.header.kind
        values["kind"] = Kind(kind).name if kind in set(Kind) else f"unknown {kind}"
        return {"position": item.position, **values, "problem": item.problem}
    return {"end": item.position, "entries": item.entries, "problem": item.problem}


def _transaction(item: DumpedEntry) -> dict[str, Any]:
    """The transaction that an entry names, for the output; {} for other entries."""
    from tinymq.format.transactional import PublishedItems, TransactionName

    found = item.transaction
    if found is None:
        return {}
    if isinstance(found, TransactionName):
        return {"transaction": found._asdict()}
    if not isinstance(found, PublishedItems):
        return {"transaction": asdict(found)}
    base = item.header.base_offset
    batches = [
        {
            "entry_index": batch.entry_index,
            "base_offset": base + batch.first,
            "record_count": batch.record_count,
            "length": batch.length,
            "max_timestamp_us": batch.max_timestamp_us,
            "batch_crc": f"{batch.batch_crc:08x}",
        }
        for batch in found
    ]
    return {"transaction": found.name._asdict(), "batches": batches}
