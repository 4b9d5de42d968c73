"""`tinymq consume`: print records on standard output, in a format that the user chooses or as JSON lines."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from tinymq.base.errors import InvalidRequest, OffsetOutOfRange
from tinymq.base.types import Offset
from tinymq.cli.common.escapes import visible_json
from tinymq.cli.common.offsets import Last, Start, parse_start
from tinymq.cli.common.options import Lines, Raw, epilogue
from tinymq.cli.common.output import flush, record_bytes, write_record
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions
from tinymq.cli.common.template import compile_template, iso
from tinymq.cli.verbs.group import place_of
from tinymq.cli.verbs.queues.member import copy_as_member

if TYPE_CHECKING:
    from tinymq.client import Client, Message, Reader
    from tinymq.client.common.start_positions import Places

ReplicaChoice = Literal["leader", "follower", "nearest", "any"]
DEFAULT_FORMAT = r"%v\n"
POLL_S = 1.0
SHARED_POLL_S = 0.05  # of each topic, if there are several: a quiet one delays the others by this
RECORDS_PER_POLL_MAX = 10_000


def consume(
    topics: Annotated[list[str], Parameter(help="The topics.")],
    /,
    *,
    format: Annotated[
        str | None,
        Parameter(name=["--format", "-f"], help="%t topic %p partition %o offset %k key %v value %T time %h headers."),
    ] = None,
    offset: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="start, end, a number, -N (the last N of each partition), @time (ISO 8601, seconds), @-1h, @12:00.",
        ),
    ] = "start",
    partition: Annotated[
        list[int] | None, Parameter(name=["--partition", "-p"], help="Only these partitions; may be repeated.")
    ] = None,
    group: Annotated[
        str | None,
        Parameter(name=["--group", "-g"], help="Read as a member of this stream group; it is made if there is none."),
    ] = None,
    count: Annotated[int | None, Parameter(name=["--count", "-n"], help="Stop after this many records.")] = None,
    exit_at_end: Annotated[
        bool, Parameter(name=["--exit-at-end", "-e"], negative="", help="Stop at the end of the topic.")
    ] = False,
    replica: Annotated[ReplicaChoice, Parameter(help="Which replica serves the reads.")] = "leader",
    raw: Raw = False,
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Lines = "table",
) -> None:
    r"""Print the records of topics until you interrupt the command, or until an option stops it.

    On a terminal, control characters of records are printed as escapes, such as \\x1b and \\n. --raw prints the bytes
    unchanged, as a file or a pipe always gets them. -o jsonl prints one JSON object per line, which `tinymq produce -i
    jsonl` reads; a key or value that is not UTF-8 text is printed as key_base64 or value_base64.

    With -g, the members of a group divide the partitions, and what is printed is committed: the next call goes on from
    there. --offset is where a new group begins. -e ends the command when the group has read what was there at first.
    """
    if count is not None and count < 0:
        raise InvalidRequest(f"-n {count}: the number of records must be 0 or more")
    render = renderer(format, output, raw)
    if group is not None and (partition or replica != "leader"):
        raise InvalidRequest("-p and --replica exclude -g", hint="the members of a group divide its partitions")
    if group is not None:
        names, place = list(dict.fromkeys(topics)), place_of(offset)
        with servers.connect() as mq:
            copy_as_member(mq, names, group, place, render, count=count, exit_at_end=exit_at_end)
        return
    start = parse_start(offset)
    with servers.connect() as mq:
        _copy_topics(mq, topics, partition, start, replica, render, count=count, exit_at_end=exit_at_end)


def _copy_topics(
    mq: Client,
    topics: list[str],
    partitions: list[int] | None,
    start: Start,
    replica: ReplicaChoice,
    render: Callable[[Message], bytes],
    *,
    count: int | None,
    exit_at_end: bool,
) -> None:
    """Print records of topics without a group."""
    end: Places | None = "latest" if exit_at_end else None
    with ExitStack() as opened:
        readers = []
        for topic in dict.fromkeys(topics):
            places: Places = start if not isinstance(start, Last) else _last(mq, topic, start.count, partitions)
            if isinstance(start, Offset):
                _check_within(mq, topic, start.value, partitions)
            readers.append(opened.enter_context(mq.reader(topic, partitions, places, end, replica=replica)))
        _copy(readers, render, count)


def _last(mq: Client, topic: str, count: int, partitions: list[int] | None) -> dict[int, Offset]:
    """Return the offset of the first of the last `count` records, for each partition to read."""
    return {
        partition: Offset(max(at.log_start, at.high_watermark - count))
        for partition, at in mq.admin.offsets(topic).items()
        if partitions is None or partition in partitions
    }


def _check_within(mq: Client, topic: str, offset: int, partitions: list[int] | None) -> None:
    """Raise OffsetOutOfRange if one of the partitions to read ends before `offset`."""
    for partition, at in mq.admin.offsets(topic).items():
        if (partitions is None or partition in partitions) and offset > at.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is past the end of {topic}/{partition}, which is at {at.high_watermark}",
                hint=f"it has offsets from {at.log_start}; choose partitions with -p, or start from start, end or -N",
                log_start=at.log_start,
                high_watermark=at.high_watermark,
            )


def _copy(readers: list[Reader], render: Callable[[Message], bytes], count: int | None) -> None:
    """Print records until the readers' ends or `count` records. Flushes before each wait for more."""
    left = RECORDS_PER_POLL_MAX if count is None else count
    while left > 0 and readers:
        wait_s = POLL_S if len(readers) == 1 else SHARED_POLL_S
        for reader in list(readers):
            found = reader.poll(wait_s, min(left, RECORDS_PER_POLL_MAX))
            for message in found:
                write_record(render(message))
            if found:
                flush()
            elif reader.at_end:
                readers.remove(reader)
            if count is not None:
                left -= len(found)
            if left <= 0:
                return


def renderer(format: str | None, output: Literal["table", "json", "jsonl"], raw: bool) -> Callable[[Message], bytes]:
    """Return the function that renders a record. Raises InvalidRequest for options that exclude one another."""
    if output == "table":
        return compile_template(DEFAULT_FORMAT if format is None else format, record_bytes(raw))
    if format is not None or raw:
        raise InvalidRequest(f"{'-f' if format is not None else '--raw'} and -o {output} exclude one another")
    return as_json


def as_json(record: Message) -> bytes:
    """Render a record as one line of JSON."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": iso(record.timestamp_us),
        **_json_bytes("key", record.key),
        **_json_bytes("value", record.value),
    }
    document["headers"] = [{"name": name, **_json_bytes("value", value)} for name, value in record.headers]
    return visible_json(document, ascii_only=False).encode() + b"\n"


def _json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


app = App(
    name="consume",
    help_epilogue=epilogue(
        consume,
        r"tinymq consume orders --offset @-1h -f '%T %k %v\n'",
        "tinymq consume orders --offset -10 --exit-at-end",
        "tinymq consume orders -e -o jsonl",
        "tinymq consume orders -g billing",
    ),
)
app.default(consume)
