"""Prints data on stdout as a table or JSON, and everything else on stderr. All output of a command goes through here.

Nothing else in tinymq/cli writes to stdout or stderr (a test checks that), so that no text of a broker, a record, a log
or an error reaches a terminal with its control characters (tinymq/cli/common/escapes.py). Records that go to a file or
a pipe are written unchanged. Only terminals get colour and progress, and rich honours NO_COLOR.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tinymq.cli.common.escapes import visible, visible_bytes, visible_json

Row = Sequence[object]

_WIDTH = 10_000  # wider than any terminal: the terminal wraps a long reason, and rich cuts nothing off
_PADDING = re.compile(r" +(\x1b\[0m)?$")


# ---- data -----------------------------------------------------------------------------------------------------------


def print_line(text: object = "") -> None:
    """Print one line on stdout."""
    print(visible(str(text)))


def print_text(text: str) -> None:
    """Print lines that the program itself made, such as a script."""
    for line in text.splitlines():
        print(visible(line, keep="\t"))


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document, indented."""
    print(visible_json(value, indent=2))


def print_json_line(value: Mapping[str, Any]) -> None:
    """Print one JSON document on one line."""
    print(visible_json(value))


def print_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print columns of text, with numbers aligned right. Every cell is printed in full, on one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # rich prints a Text cell literally: no markup, no :emoji:

    rows = [tuple(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        numbers = all(isinstance(row[i], int | float) for row in rows) and bool(rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text("-" if cell is None else visible(str(cell))) for cell in row))
    console = Console(width=_WIDTH)
    with console.capture() as printed:
        console.print(table, markup=False, highlight=False)
    for line in printed.get().splitlines():
        print(_PADDING.sub(r"\1", line))


def record_bytes(raw: bool) -> Callable[[bytes], bytes] | None:
    """Return the function that escapes a record's bytes for a terminal.

    Returns None if the bytes are to be printed unchanged: with `raw`, or when stdout is not a terminal.
    """
    return None if raw or not sys.stdout.isatty() else visible_bytes


def write_record(data: bytes) -> None:
    """Write a record that is rendered already. It is buffered until `flush`."""
    sys.stdout.buffer.write(data)


def flush() -> None:
    """Flush stdout."""
    sys.stdout.flush()


def abandon_stdout() -> None:
    """Discard all further output, also at exit, because the reader of stdout has exited."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- messages -----------------------------------------------------------------------------------------------------


def say(message: str) -> None:
    """Print a line for people on stderr."""
    print(visible(message), file=sys.stderr, flush=True)


def ask(question: str) -> str:
    """Print a question on stderr, and return the line that the user types; "" at the end of input."""
    print(visible(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


def say_mistyped(error: Exception) -> None:
    """Print the error of a mistyped command line, in the box that cyclopts draws."""
    from cyclopts import CycloptsPanel
    from rich.console import Console  # imported here: it costs a tenth of the start time, and only this needs it

    text = "\n".join(
        map(visible, str(error).split("\n"))
    )  # cyclopts wraps lines, so text cannot forge a line within the box
    Console(stderr=True).print(CycloptsPanel(text))


def say_traceback(error: BaseException) -> None:
    """Print the whole traceback of a bug."""
    for part in traceback.format_exception(error):
        for line in part.removesuffix("\n").split("\n"):
            say(line)


@contextmanager
def progress(files: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of the bytes sent on stderr, if stderr is a terminal.

    The bar shows a total only when `files` are given, because the size of standard input is unknown.
    """
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


def log_stream() -> TextIO:
    """The stream to which a broker's process logs. tinymq/cli/common/broker_log.py escapes each line."""
    return sys.stderr
