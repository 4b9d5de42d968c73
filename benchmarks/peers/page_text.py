"""The text of pages that benchmarks write: lines that fit a screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

LINE_LENGTH_MAX = 100


def wrapped(lines: Sequence[str]) -> Iterator[str]:
    """Break paragraphs and items of lists. Tables, headings, pictures and what is broken already stay as they are."""
    for line in lines:
        if len(line) <= LINE_LENGTH_MAX or "\n" in line or line.startswith(("|", "#", "![")):
            yield line
        else:
            indent = "  " if line.startswith("- ") else ""
            yield from textwrap.wrap(
                line, LINE_LENGTH_MAX, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
