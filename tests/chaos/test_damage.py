"""Bits are flipped in what a disk has vouched for, and not in what may pass for a torn tail."""

from __future__ import annotations

import random

import pytest

from tests.raft.values import GROUP, chain
from tinymq.format.entry import HEADER_SIZE
from tinymq.log.broker_files.durability_marks import DurabilityMark, DurabilityMarks, load_marks
from tinymq.log.files.layout import SEGMENT, group_directory, in_group
from tinymq.log.replica_log.creation import create_log
from tinymq_chaos.sim.faults.damage import covered_bytes
from tinymq_chaos.sim.virtual.disk import SimFiles

SEGMENTS = (1, 10, 20)


@pytest.fixture
def files() -> SimFiles:
    """A log of three entries in the first of three segments; the file of marks exists and is empty."""
    files = SimFiles(random.Random(1))
    first, *others = chain([1, 1, 1])
    create_log(files, GROUP, first, 0)
    content = files.content(_path(1)) + b"".join(entry.head + entry.payload for entry in others)
    for index in SEGMENTS:
        if index > 1:
            files.open(_path(index), create=True)
        files.put(_path(index), content)
    return files


def _path(first: int) -> str:
    return in_group(group_directory(GROUP), first, SEGMENT)


def _mark(files: SimFiles, mark: DurabilityMark, *, synced: bool = True) -> None:
    marks = DurabilityMarks(files, load_marks(files))
    marks.write([mark])
    if synced:
        marks.sync()


def test_a_log_without_a_mark_is_not_covered(files: SimFiles) -> None:
    assert [covered_bytes(files, _path(first)) for first in SEGMENTS] == [0, 0, 0]


def test_a_mark_covers_everything_up_to_its_entry(files: SimFiles) -> None:
    content = files.content(_path(10))
    last = chain([1, 1, 1])[1]
    position = content.index(last.head)
    _mark(files, DurabilityMark(GROUP, index=2, segment=10, position=position))
    whole = len(content)
    assert [covered_bytes(files, _path(first)) for first in SEGMENTS] == [whole, position + last.size, 0]
    assert position + last.size < whole


def test_an_unsynced_mark_covers_nothing(files: SimFiles) -> None:
    _mark(files, DurabilityMark(GROUP, index=1, segment=1, position=HEADER_SIZE), synced=False)
    assert covered_bytes(files, _path(1)) == 0


def test_a_damaged_marked_entry_is_not_covered(files: SimFiles) -> None:
    position = files.content(_path(1)).index(chain([1])[0].head)
    _mark(files, DurabilityMark(GROUP, index=1, segment=1, position=position))
    files.flip_bit(_path(1), position + 20)
    assert covered_bytes(files, _path(1)) == position


def test_other_files_are_covered_completely(files: SimFiles) -> None:
    files.open("ballots-a", create=True)
    files.put("ballots-a", bytes(100))
    assert covered_bytes(files, "ballots-a") == 100
