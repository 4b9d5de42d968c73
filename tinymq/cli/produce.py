"""`tinymq produce`: lines as records, with a progress bar on long work."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from cyclopts import Parameter

from tinymq.cli.exits import Exit
from tinymq.cli.output import Output, print_json, say
from tinymq.cli.servers import HERE, Where
from tinymq.config import Limits
from tinymq.errors import BatchTooLarge, InvalidRequest, NotDelivered, TinymqError

if TYPE_CHECKING:
    from tinymq.client import Delivery

FILES = r"Files to read lines from; else standard input. Only the \n at its end is not part of a record."
LINE_BYTES_MAX = Limits().record_bytes_max
PROGRESS_EVERY = 1_000
ERRORS_SHOWN_MAX = 5


@dataclass(slots=True)
class Tally:
    """What became of the lines."""

    lines: int = 0
    bytes: int = 0
    acknowledged: int = 0
    errors: list[TinymqError] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Lines not known to be acknowledged. Of an interrupted run some of them may have been written."""
        return self.lines - self.acknowledged


def produce(
    topic: Annotated[str, Parameter(help="The topic.")],
    files: Annotated[list[Path] | None, Parameter(help=FILES)] = None,
    /,
    *,
    key: Annotated[str | None, Parameter(name=["--key", "-k"], help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None, Parameter(name=["--key-separator", "-K"], help="What is before the first of these is the key.")
    ] = None,
    header: Annotated[list[str] | None, Parameter(name=["--header", "-H"], help="name=value; may be repeated.")] = None,
    partition: Annotated[int | None, Parameter(name=["--partition", "-p"], help="Instead of by key.")] = None,
    compression: Literal["none", "lz4", "zstd"] = "none",
    where: Where = HERE,
    output: Output = "table",
) -> int:
    """Send each line of standard input or of files as one record, and wait until all are acknowledged.

    What was not acknowledged within --timeout has failed. How many lines were, and how many not, is said at the
    end, whatever ended it.
    """
    if key is not None and key_separator is not None:
        raise InvalidRequest("--key and --key-separator exclude one another")
    headers = parse_headers(header or [])
    split = splitter(key, key_separator)
    began = time.monotonic()
    tally = Tally()
    waiting: deque[Delivery] = deque()
    patience = where.timeout_ms
    try:
        with (
            where.connect() as mq,
            _progress(files or []) as advance,
            mq.producer(compression=compression, delivery_timeout_ms=patience, block_ms_max=patience) as producer,
        ):
            for line in _lines(files or []):
                key_bytes, value = split(line)
                tally.lines += 1
                waiting.append(producer.send(topic, value, key=key_bytes, headers=headers, partition=partition))
                tally.bytes += len(line)
                if tally.lines % PROGRESS_EVERY == 0:
                    advance(tally.bytes)
                _count_done(waiting, tally)
            if not tally.lines:
                mq.admin.describe_topic(topic)  # who sends nothing is told all the same that it is not there
            with suppress(NotDelivered):  # each delivery is asked below
                producer.flush()
            for delivery in waiting:
                delivery.exception()  # waits, and takes the error for told
    finally:
        _count_done(waiting, tally)
        _report(tally, time.monotonic() - began, output)
    return Exit.FAILED if tally.failed else Exit.OK


def parse_headers(texts: list[str]) -> list[tuple[str, bytes]]:
    """["name=value"] as headers. Raises InvalidRequest."""
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"{text!r} is not a header", hint="write name=value")
        headers.append((name, value.encode()))
    return headers


def splitter(key: str | None, separator: str | None) -> Callable[[bytes], tuple[bytes | None, bytes]]:
    """How a line becomes key and value. With a separator, a line without it has no key."""
    if separator is None:
        fixed = None if key is None else key.encode()
        return lambda line: (fixed, line)
    mark = separator.encode()
    if not mark:
        raise InvalidRequest("the key separator is empty")

    def split(line: bytes) -> tuple[bytes | None, bytes]:
        before, found, after = line.partition(mark)
        return (before, after) if found else (None, line)

    return split


def _lines(files: list[Path]) -> Iterator[bytes]:
    if not files:
        yield from without_ends(sys.stdin.buffer)
    for path in files:
        with open(path, "rb") as file:
            yield from without_ends(file)


def without_ends(file: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """Raises BatchTooLarge at a line that no record can hold, without having read all of it."""
    while line := file.readline(line_bytes_max + 1):
        if len(line) > line_bytes_max and not line.endswith(b"\n"):
            raise BatchTooLarge(f"a line of more than {line_bytes_max} bytes")
        yield line.removesuffix(b"\n")


def _count_done(waiting: deque[Delivery], tally: Tally) -> None:
    """Take the deliveries that have ended from the front."""
    while waiting and waiting[0].done():
        error = waiting.popleft().exception()
        if error is None:
            tally.acknowledged += 1
        elif len(tally.errors) < ERRORS_SHOWN_MAX:
            tally.errors.append(error)


@contextmanager
def _progress(files: list[Path]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, for a terminal. It has an end when all sizes are known."""
    if not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = sum(path.stat().st_size for path in files) if files else None
        task = bar.add_task("sending", total=total)
        yield lambda done: bar.update(task, completed=done)


def _report(tally: Tally, seconds: float, output: Output) -> None:
    for error in tally.errors:
        say(f"error: {error.message} [{error.code}]")
    for hint in dict.fromkeys(error.hint for error in tally.errors if error.hint):
        say(f"hint: {hint}")
    if output == "json":
        counts = {"acknowledged": tally.acknowledged, "failed": tally.failed}
        print_json({**counts, "bytes": tally.bytes, "seconds": seconds})
    else:
        rate = tally.bytes / 1e6 / max(seconds, 1e-6)
        say(f"{tally.acknowledged} acknowledged, {tally.failed} not, {seconds:.2f} s, {rate:.1f} MB/s")
