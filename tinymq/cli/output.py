"""What a command prints: data on stdout as a table or JSON, everything else on stderr.

Colour and progress are for terminals only, and NO_COLOR is honoured (by rich).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print data.")]
Row = Sequence[object]

_WIDTH_OF_A_PIPE = 10_000  # a pipe has no width: nothing is cut off or wrapped


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document, indented."""
    print(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Columns of text; numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    rows = [tuple(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        numbers = all(isinstance(row[i], int | float) for row in rows) and bool(rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_A_PIPE)
    console.print(table, markup=False, highlight=False)


def say(message: str) -> None:
    """A line of what happens, for people: on stderr."""
    print(message, file=sys.stderr, flush=True)
