"""What a command prints: data on stdout as a table or JSON, everything else on stderr.

Colour and progress are for terminals only, and NO_COLOR is honoured (by rich).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print data.")]
Row = Sequence[object]

_WIDTH = 10_000  # whatever the terminal's is: it wraps a long reason, and nothing is cut off
_PADDING = re.compile(r" +(\x1b\[0m)?$")


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document, indented."""
    print(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Columns of text; numbers to the right. Every cell is printed whole."""
    from rich.console import Console
    from rich.table import Table

    rows = [tuple(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        numbers = all(isinstance(row[i], int | float) for row in rows) and bool(rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console = Console(width=_WIDTH)
    with console.capture() as printed:
        console.print(table, markup=False, highlight=False)
    for line in printed.get().splitlines():
        print(_PADDING.sub(r"\1", line))


def say(message: str) -> None:
    """A line of what happens, for people: on stderr."""
    print(message, file=sys.stderr, flush=True)
