"""`tinymq produce`: send lines as records, with a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from cyclopts import App, Parameter

from tinymq.base.config import Limits
from tinymq.base.errors import BatchTooLarge, InvalidRequest, NotDelivered, TinymqError
from tinymq.cli.common.due import DueTime, parse_due
from tinymq.cli.common.escapes import unescaped
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.json_records import InputRecord, LinePlace, json_record, plain_record
from tinymq.cli.common.options import Output, epilogue
from tinymq.cli.common.output import print_json, progress, say
from tinymq.cli.common.servers import DEFAULT_SERVERS, ServerOptions

if TYPE_CHECKING:
    from tinymq.client import Delivery, Producer, ScheduledDelivery

FILES = r"Files to read lines from. [default: standard input] The \n at the end of a line is not part of its record."
SEPARATOR = r"The text before the first separator in a line is the key. \t, \n, \r, \0, \xNN and \\\\ are escapes."
KeyOptional = Annotated[
    bool, Parameter(negative="", help="With -K: send a line without the separator as a record without a key.")
]
Input = Annotated[
    Literal["lines", "jsonl"],
    Parameter(name=["--input", "-i"], help="jsonl: each line is a record, as `tinymq consume -o jsonl` prints it."),
]
OnePartition = Annotated[
    int | None,
    Parameter(name=["--partition", "-p"], help="Send every record to this partition instead of choosing by key."),
]
Partitioner = Annotated[
    Literal["keyed", "round_robin", "sticky"],
    Parameter(help="keyed: by the key; lines without one go to one partition per batch. round_robin: line by line."),
]
DELAY = "Deliver each record so long after it is stored: 1s to 30d, such as 90s, 5m or 1.5h."
DELIVER_AT = "Deliver the records then: 18:00 (when it is next 18:00 in UTC), ISO 8601, or seconds since 1970."
LINE_BYTES_MAX = Limits().record_bytes_max
PROGRESS_EVERY = 1_000
ERRORS_SHOWN_MAX = 5


@dataclass(slots=True)
class LineCounts:
    """Counts of lines and of their outcomes."""

    lines: int = 0
    bytes: int = 0
    sent: int = 0  # records passed to the producer; each of them is acknowledged or fails
    acknowledged: int = 0
    errors: list[TinymqError] = field(default_factory=list)
    pending: deque[Delivery | ScheduledDelivery] = field(default_factory=deque)  # sent, and not counted yet

    @property
    def failed(self) -> int:
        """Lines not known to be acknowledged. After an interrupt, some of them may have been written."""
        return self.lines - self.acknowledged


def produce(
    topic: Annotated[str, Parameter(help="The topic.")],
    files: Annotated[list[Path] | None, Parameter(help=FILES)] = None,
    /,
    *,
    key: Annotated[str | None, Parameter(name=["--key", "-k"], help="The key of every record.")] = None,
    key_separator: Annotated[str | None, Parameter(name=["--key-separator", "-K"], help=SEPARATOR)] = None,
    key_optional: KeyOptional = False,
    input: Input = "lines",
    header: Annotated[list[str] | None, Parameter(name=["--header", "-H"], help="name=value; may be repeated.")] = None,
    partition: OnePartition = None,
    partitioner: Partitioner = "keyed",
    delay: Annotated[str | None, Parameter(help=DELAY)] = None,
    deliver_at: Annotated[str | None, Parameter(help=DELIVER_AT)] = None,
    compression: Literal["none", "lz4", "zstd"] = "none",
    servers: ServerOptions = DEFAULT_SERVERS,
    output: Output = "table",
) -> int:
    """Send each line of standard input or of files as one record, and wait until all are acknowledged.

    A record that is not acknowledged within --timeout has failed. The counts at the end say how many lines were
    acknowledged and how many were not. They are also printed after an interrupt or an error, unless no record was sent
    before it. With -K, a line without the separator is such an error.

    With --delay or --deliver-at, records are stored now and delivered then: see `tinymq schedule`.

    With -i jsonl each line is a JSON object with `value` or `value_base64`, and may have `key` or `key_base64`,
    `headers` and `timestamp`. Its topic, partition and offset are ignored. -H adds headers to each record.
    """
    fixed = parse_headers(header or [])
    if partition is not None and partitioner != "keyed":
        raise InvalidRequest(f"--partition and --partitioner {partitioner} exclude one another")
    due = parse_due(delay, deliver_at)
    read = reader_of(input, key, key_separator, optional=key_optional)
    began, tally = time.monotonic(), LineCounts()
    timeout_ms = servers.timeout_ms
    try:
        with (
            servers.connect() as mq,
            progress(files or []) as advance,
            mq.producer(
                compression=compression,
                partitioner=partitioner,
                delivery_timeout_ms=timeout_ms,
                block_ms_max=timeout_ms,
            ) as producer,
        ):
            send = partial(_send, producer, topic, headers=fixed, partition=partition, due=due)
            _send_lines(_lines(files or []), read, send, tally, advance)
            if not tally.lines:
                mq.admin.describe_topic(topic)  # report an unknown topic even if there is nothing to send
            _wait(producer, tally)
    except BaseException:
        _count_done(tally)
        if tally.sent:
            _report(tally, time.monotonic() - began, output)
        raise
    _count_done(tally)
    _report(tally, time.monotonic() - began, output)
    return Exit.FAILED if tally.failed else Exit.OK


def _send_lines(
    lines: Iterator[tuple[bytes, LinePlace]],
    read: Callable[[bytes, LinePlace], InputRecord],
    send: Callable[[InputRecord], Delivery | ScheduledDelivery],
    tally: LineCounts,
    advance: Callable[[int], None],
) -> None:
    for line, place in lines:
        record = read(line, place)
        tally.lines += 1
        tally.pending.append(send(record))
        tally.sent += 1
        tally.bytes += len(line)
        if tally.lines % PROGRESS_EVERY == 0:
            advance(tally.bytes)
        _count_done(tally)


def _wait(producer: Producer, tally: LineCounts) -> None:
    with suppress(NotDelivered):  # the loop below collects the errors
        producer.flush()
    for delivery in tally.pending:
        delivery.exception()  # waits, and marks the error as handled


def _send(
    producer: Producer, topic: str, record: InputRecord, headers: list[tuple[str, bytes]], partition: int | None,
    due: DueTime | None,
) -> Delivery | ScheduledDelivery:  # fmt: skip
    value, key, every, timestamp = record.value, record.key, [*record.headers, *headers], record.timestamp
    if due is None:
        return producer.send(topic, value, key=key, headers=every, timestamp=timestamp, partition=partition)
    if isinstance(due, timedelta):
        return producer.send(topic, value, key=key, headers=every, timestamp=timestamp, partition=partition, delay=due)
    return producer.send(topic, value, key=key, headers=every, timestamp=timestamp, partition=partition, deliver_at=due)


def reader_of(
    input: str, key: str | None, separator: str | None, *, optional: bool
) -> Callable[[bytes, LinePlace], InputRecord]:
    """Return the function that makes a record of a line. Raises InvalidRequest as `splitter`."""
    if input != "jsonl":
        return plain_record(splitter(key, separator, optional=optional))
    if key is not None or separator is not None:
        raise InvalidRequest("-i jsonl and a key exclude one another", hint="give each line a field `key`")
    return json_record


def parse_headers(texts: list[str]) -> list[tuple[str, bytes]]:
    """Parse texts of the form "name=value" into headers. Raises InvalidRequest."""
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"{text!r} is not a header", hint="write name=value")
        headers.append((name, value.encode()))
    return headers


def splitter(
    key: str | None, separator: str | None, *, optional: bool = False
) -> Callable[[bytes, LinePlace], tuple[bytes | None, bytes]]:
    """Return the function that splits a line into key and value.

    Raises InvalidRequest for options that exclude one another, and for a separator that is empty or has an unknown
    escape.

    With a separator, a line that lacks it becomes a record without a key if the key is `optional`. Otherwise the
    returned function raises InvalidRequest.
    """
    if key is not None and separator is not None:
        raise InvalidRequest("--key and --key-separator exclude one another")
    if optional and separator is None:
        raise InvalidRequest("--key-optional without --key-separator", hint="without -K, no line has a key of its own")
    if separator is None:
        fixed = None if key is None else key.encode(errors="surrogateescape")
        return lambda line, place: (fixed, line)
    mark = unescaped(separator)
    if not mark:
        raise InvalidRequest("the key separator is empty")

    def split(line: bytes, place: LinePlace) -> tuple[bytes | None, bytes]:
        before, found, after = line.partition(mark)
        if found:
            return before, after
        if optional:
            return None, line
        file, number = place
        hint = "--key-optional sends such lines without a key; lines before this one have been sent"
        raise InvalidRequest(f"line {number} of {file} has no key separator ({separator})", hint=hint)

    return split


def _lines(files: list[Path]) -> Iterator[tuple[bytes, LinePlace]]:
    if not files:
        yield from _placed(sys.stdin.buffer, "standard input")
    for path in files:
        with open(path, "rb") as file:
            yield from _placed(file, str(path))


def _placed(file: BinaryIO, name: str) -> Iterator[tuple[bytes, LinePlace]]:
    for number, line in enumerate(without_ends(file), 1):
        yield line, (name, number)


def without_ends(file: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """Yield the lines of `file` without their ends.

    Raises BatchTooLarge for a line that does not fit into a record, without reading the rest of that line.
    """
    while line := file.readline(line_bytes_max + 1):
        if len(line) > line_bytes_max and not line.endswith(b"\n"):
            raise BatchTooLarge(
                f"a line has more than {line_bytes_max} bytes", hint="one line is one record: split longer lines"
            )
        yield line.removesuffix(b"\n")


def _count_done(tally: LineCounts) -> None:
    """Remove finished deliveries from the front of those that are pending, and count them."""
    while tally.pending and tally.pending[0].done():
        error = tally.pending.popleft().exception()
        if error is None:
            tally.acknowledged += 1
        elif len(tally.errors) < ERRORS_SHOWN_MAX:
            tally.errors.append(error)


def _report(tally: LineCounts, seconds: float, output: Output) -> None:
    for error in tally.errors:
        say(f"error: {error.message} [{error.code}]")
    for hint in dict.fromkeys(error.hint for error in tally.errors if error.hint):
        say(f"hint: {hint}")
    if output == "json":
        counts = {"acknowledged": tally.acknowledged, "failed": tally.failed}
        print_json({**counts, "bytes": tally.bytes, "seconds": seconds})
    else:
        took_s = max(seconds, 1e-6)
        rates = f"{tally.acknowledged / took_s:.0f} records/s, {tally.bytes / 1e6 / took_s:.1f} MB/s"
        say(f"{tally.acknowledged} acknowledged, {tally.failed} not, {seconds:.2f} s, {rates}")


app = App(
    name="produce",
    help_epilogue=epilogue(
        produce,
        "seq 1000 | tinymq produce orders",
        "tinymq produce orders -K ':' people.txt",
        "seq 6 | tinymq produce orders --partitioner round_robin",
        "echo 'remind 17' | tinymq produce orders --delay 5m",
        "tinymq consume orders -e -o jsonl | tinymq produce copies -i jsonl",
    ),
)
app.default(produce)
