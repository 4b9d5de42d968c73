"""docs/on-disk-format.md draws what the code packs: every row of every drawing stands in both."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from tinymq import entry
from tinymq.log import ballots, index, marks, rounds, segment, states

DOCUMENT = Path(__file__).parents[2] / "docs" / "on-disk-format.md"
ROW = re.compile(r"^\s+(\d+)\s+(\d+)\s+(\w+(?: \w+)?)\s+([ui]\d+|bytes)", re.MULTILINE)


def rows(text: str) -> set[tuple[str, ...]]:
    return {found.groups() for found in ROW.finditer(text)}


@pytest.mark.parametrize("module", [entry, segment, index, states, rounds, marks, ballots])
def test_a_drawing_is_the_same_in_the_document(module: ModuleType) -> None:
    drawn = rows(module.__doc__ or "")
    assert len(drawn) >= 3
    assert drawn <= rows(DOCUMENT.read_text())


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (entry, 64),
        (segment, 64),
        (states, 40),
        (rounds, 24),
        (marks, marks.RECORD_SIZE),
        (ballots, ballots.RECORD_SIZE),
    ],
)
def test_a_drawing_has_neither_gaps_nor_overlaps(module: ModuleType, size: int) -> None:
    end = 0
    for offset, length, *_ in sorted(rows(module.__doc__ or ""), key=lambda row: int(row[0])):
        assert int(offset) == end
        end += int(length)
    assert end == size
