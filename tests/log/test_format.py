"""docs/on-disk-format.md and the packing code have the same drawings, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from tinymq.format import delayed, entry, transactional
from tinymq.log.broker_files import durability_marks, vote_store
from tinymq.log.files import record_file
from tinymq.log.segment import index, segment, snapshot_files

DOCUMENT = Path(__file__).parents[2] / "docs" / "on-disk-format.md"
ROW = re.compile(r"^\s+(\d+)\s+(\d+n?)\s+(\w+(?: \w+)?)\s+([ui]\d+|bytes)", re.MULTILINE)


def rows(text: str) -> set[tuple[str, ...]]:
    return {found.groups() for found in ROW.finditer(text)}


@pytest.mark.parametrize(
    "module",
    [entry, delayed, transactional, segment, index, snapshot_files, record_file, durability_marks, vote_store],
)
def test_a_drawing_is_the_same_in_the_document(module: ModuleType) -> None:
    drawn = rows(module.__doc__ or "")
    assert len(drawn) >= 3
    assert drawn <= rows(DOCUMENT.read_text())


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (entry, 64),
        (segment, 64),
        (snapshot_files, 40),
        (record_file, 24),
        (durability_marks, durability_marks.RECORD_SIZE),
        (vote_store, vote_store.RECORD_SIZE),
    ],
)
def test_a_drawing_has_neither_gaps_nor_overlaps(module: ModuleType, size: int) -> None:
    end = 0
    for offset, length, *_ in sorted(rows(module.__doc__ or ""), key=lambda row: int(row[0])):
        assert int(offset) == end
        end += int(length)
    assert end == size


def test_kinds_have_the_numbers_that_are_on_disks_and_on_the_page() -> None:
    numbers = {"NOOP": 1, "CONFIG": 2, "DATA": 3, "COMMAND": 4, "STAGED": 5, "PUBLISH": 6, "DISCARD": 7}
    assert {kind.name: kind.value for kind in entry.Kind} == numbers
    page = DOCUMENT.read_text()
    assert all(f"{number} {name}" in page for name, number in numbers.items())
