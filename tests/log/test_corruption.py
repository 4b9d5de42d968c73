"""Tables of flipped bits and lost files, and what survives them. Each data directory was closed cleanly, so everything
was synced and marked, and every defect is damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.log.values import GROUP, append, everything, faulty, first_entry, open_both, open_store, run
from tinymq.base.errors import CorruptData
from tinymq.format.entry import HEADER_SIZE, Entry
from tinymq.log import OpenedLog
from tinymq.log.files.layout import group_directory
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE
from tinymq.simulation.faulty_files import FaultyFiles

FIELDS = {
    "header_crc": 0, "payload_crc": 4, "prev_crc": 8, "length": 12, "kind": 16, "version": 17, "reserved": 18,
    "index": 20, "term": 28, "base_offset": 36, "record_count": 44, "append_time_us": 48, "max_timestamp_us": 56,
    "payload": HEADER_SIZE + 3,
}  # fmt: skip
FRAME = HEADER_SIZE + 100


class Folder:
    """A data directory with one log of 45 entries in several segments, and its entries."""

    def __init__(self, *, trimmed: bool = False, reopened: bool = False) -> None:
        self.files = faulty()
        self.entries: list[Entry] = []
        run(self._fill(trimmed))
        if reopened:
            run(self._reopen())
        self.files.power_cut()
        self.before = self.logs()

    async def _fill(self, trimmed: bool) -> None:
        store, opened = await open_both(self.files)
        log = opened.log
        append(log, 44)
        store.votes.set(GROUP, 3, 2)
        await store.writer.drain()
        store.votes.set(GROUP, 4, 1)
        for index in range(1, log.last_index + 1):
            log.note_applied(index)
            if log.segments.end_at(index):
                log.save_snapshot(index, b"state at %d" % index)
        await store.writer.drain()
        if trimmed:
            log.remove_before(30)
            assert log.first_index > 1
        self.entries = await everything(log)
        await store.close()

    async def _reopen(self) -> None:
        store, _ = await open_both(self.files)
        await store.close()

    def logs(self) -> dict[str, bytes]:
        return {p: self.files.content(p) for p in self.files.paths() if p.startswith("groups/")}

    def segments(self) -> list[str]:
        return [p for p in self.files.paths() if p.endswith(".log")]

    def paths(self, kind: str) -> list[str]:
        return [p for p in self.files.paths() if p.endswith(kind)]

    def frame(self, path: str, which: int) -> int:
        """Return the position of a frame in its segment."""
        position = SEGMENT_HEADER_SIZE
        ends = []
        content = self.files.content(path).rstrip(b"\0")
        while position < len(content):
            ends.append(position)
            position += HEADER_SIZE + int.from_bytes(content[position + 12 : position + 16], "little")
        return ends[which]


async def look(files: FaultyFiles) -> tuple[OpenedLog, list[Entry] | CorruptData]:
    store, opened = await open_both(files)
    try:
        found: list[Entry] | CorruptData = await everything(opened.log)
    except CorruptData as error:
        found = error
    await store.close()
    return opened, found


def check(folder: Folder, *, damage: bool, tail_intact: bool = True, count: int = 0) -> OpenedLog:
    opened, found = run(look(folder.files))
    assert (opened.damage is not None, opened.tail_intact, opened.count) == (damage, tail_intact, count)
    if damage:
        assert folder.logs() == folder.before, "nothing is truncated or repaired silently"
        with pytest.raises(CorruptData):
            append(opened.log, 1)
    else:
        assert found == folder.entries
    folder.files.power_cut()
    again, _ = run(look(folder.files))
    assert (again.damage is not None, again.tail_intact, again.count) == (damage, tail_intact, count)
    return opened


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("bit", [0, 7])
def test_the_last_marked_frame(field: str, bit: int) -> None:
    folder = Folder()
    path = folder.segments()[-1]
    folder.files.flip_bit(path, folder.frame(path, -1) + FIELDS[field], bit)
    folder.before = folder.logs()
    check(folder, damage=True, tail_intact=False, count=1)


@pytest.mark.parametrize("field", FIELDS)
def test_an_older_frame_of_the_last_segment(field: str) -> None:
    folder = Folder()
    path = folder.segments()[-1]
    folder.files.flip_bit(path, folder.frame(path, 2) + FIELDS[field], 1)
    folder.before = folder.logs()
    check(folder, damage=True, tail_intact=True, count=0)


@pytest.mark.parametrize("field", FIELDS)
def test_a_frame_of_an_older_segment_is_found_when_it_is_read(field: str) -> None:
    folder = Folder()
    path = folder.segments()[1]
    folder.files.flip_bit(path, folder.frame(path, 4) + FIELDS[field], 2)
    opened, found = run(look(folder.files))
    assert opened.damage is None
    assert isinstance(found, CorruptData)


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "payload"])
def test_the_first_frame_of_the_log_is_checked_in_any_segment(field: str) -> None:
    folder = Folder()
    path = folder.segments()[0]
    folder.files.flip_bit(path, folder.frame(path, 0) + FIELDS[field], 3)
    folder.before = folder.logs()
    check(folder, damage=True)


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("position", [0, 9, 13, 20, 35, 37, 40, 50, 60])
def test_a_segments_header(which: int, position: int) -> None:
    folder = Folder()
    path = folder.segments()[which]
    folder.files.flip_bit(path, position, 5)
    folder.before = folder.logs()
    check(folder, damage=True)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_segment(which: int) -> None:
    folder = Folder()
    folder.files.remove(folder.segments()[which])
    folder.files.sync_directory(group_directory(GROUP))
    folder.before = folder.logs()
    check(folder, damage=True, tail_intact=which != -1, count=1 if which == -1 else 0)


def test_a_truncated_segment() -> None:
    for which in (1, -1):
        folder = Folder()
        path = folder.segments()[which]
        folder.files.put(path, folder.files.content(path).rstrip(b"\0")[:-1])
        folder.before = folder.logs()
        check(folder, damage=True, tail_intact=which != -1, count=1 if which == -1 else 0)


def test_a_damaged_or_missing_index_is_rebuilt() -> None:
    folder = Folder()
    path = folder.paths(".index")[1]
    good = folder.files.content(path)
    for position in range(0, len(good), 5):
        folder.files.flip_bit(path, position, position % 8)
        check(folder, damage=False)
        assert folder.files.content(path) == good
    folder.files.remove(path)
    check(folder, damage=False)
    assert folder.files.content(path) == good


def test_an_index_of_another_segment_is_rebuilt() -> None:
    folder = Folder()
    one, two = folder.paths(".index")[:2]
    folder.files.put(one, folder.files.content(two))
    check(folder, damage=False)


@pytest.mark.parametrize("reopened", [False, True])
def test_marks_flipped_anywhere_cost_nothing_when_the_log_is_whole(reopened: bool) -> None:
    folder = Folder(reopened=reopened)
    marks = folder.files.content("marks")
    used = len(marks.rstrip(b"\0"))
    for position in range(0, used, 3):
        folder.files.put("marks", marks)
        folder.files.flip_bit("marks", position, position % 8)
        check(folder, damage=False)
    folder.files.remove("marks")
    check(folder, damage=False)


@pytest.mark.parametrize("position", [3, 30, 60, 100])
def test_with_damaged_marks_every_bad_frame_is_damage(position: int) -> None:
    """It is unknown whether the frame was durable, so it is not truncated."""
    for frame in (2, -1):
        folder = Folder(reopened=True)
        folder.files.flip_bit("marks", position)
        path = folder.segments()[-1]
        folder.files.flip_bit(path, folder.frame(path, frame) + 70)
        folder.before = folder.logs()
        opened, _ = run(look(folder.files))
        assert opened.damage is not None
        assert folder.logs() == folder.before


def test_the_newest_applied_state() -> None:
    folder = Folder()
    paths = folder.paths(".state")
    for position in range(len(folder.files.content(paths[-1]))):
        folder.files.flip_bit(paths[-1], position, 6)
        opened = check(folder, damage=False)
        assert opened.snapshot == b"state at %d" % opened.applied_index
        assert f"{opened.applied_index + 1:020d}" in paths[-2]
        folder.files.flip_bit(paths[-1], position, 6)


def test_all_applied_states() -> None:
    folder = Folder()
    for path in folder.paths(".state"):
        folder.files.flip_bit(path, 30)
    opened = check(folder, damage=False)
    assert (opened.applied_index, opened.snapshot) == (0, None)


def test_all_applied_states_of_a_log_that_begins_later() -> None:
    folder = Folder(trimmed=True)
    check(folder, damage=False)
    folder.before = folder.logs()
    for path in folder.paths(".state"):
        folder.files.flip_bit(path, 30)
    folder.before = folder.logs()
    check(folder, damage=True, tail_intact=True)


# Votes


async def hard_state(files: FaultyFiles) -> tuple[int, int | None, int]:
    store, opened = await open_both(files)
    term, voted_for = store.votes.get(GROUP)
    await store.close()
    return term, voted_for, opened.count


def flip(*paths: str) -> Callable[[FaultyFiles, int], None]:
    def act(files: FaultyFiles, position: int) -> None:
        for path in paths:
            files.flip_bit(path, position, 4)

    return act


@pytest.mark.parametrize("path", ["ballots-a", "ballots-b"])
def test_either_copy_of_the_hard_state_may_be_damaged_or_missing(path: str) -> None:
    for reopened in (False, True):
        folder = Folder(reopened=reopened)
        content = {p: folder.files.content(p) for p in ("ballots-a", "ballots-b")}
        for position in range(len(content[path].rstrip(b"\0"))):
            flip(path)(folder.files, position)
            assert run(hard_state(folder.files)) == (4, 1, 0), position
            for each, data in content.items():
                folder.files.put(each, data)
        folder.files.remove(path)
        assert run(hard_state(folder.files)) == (4, 1, 0)


@pytest.mark.parametrize(
    ("round_", "expected"),
    [
        (0, (4, 1, 1)),  # the snapshot: its records are lost, later ones are not
        (1, (4, 1, 1)),  # the first vote, with another one behind it: amnesia
        (2, (3, 2, 0)),  # the last one: taken for torn, a documented limit
    ],
)
def test_both_copies_of_the_hard_state_damaged(round_: int, expected: tuple[int, int | None, int]) -> None:
    folder = Folder()
    starts = [0, 24, 24 + 56]
    flip("ballots-a", "ballots-b")(folder.files, starts[round_] + 5)
    assert run(hard_state(folder.files)) == expected
    assert run(hard_state(folder.files)) == expected, "told once"


def test_both_copies_of_the_hard_state_missing() -> None:
    folder = Folder()
    folder.files.remove("ballots-a")
    folder.files.remove("ballots-b")
    assert run(hard_state(folder.files)) == (0, None, 1)


def test_copies_damaged_at_different_places_complete_each_other() -> None:
    rng = random.Random(7)
    for _ in range(50):
        folder = Folder()
        one, two = rng.sample([0, 24, 80], 2)
        flip("ballots-a")(folder.files, one + rng.randrange(24))
        flip("ballots-b")(folder.files, two + rng.randrange(24))
        assert run(hard_state(folder.files)) == (4, 1, 0)


# Lost folders


def test_a_lost_group_directory_differs_from_one_never_created() -> None:
    folder = Folder()
    for lost in (1, 2):
        folder.files.remove_tree(group_directory(GROUP))
        folder.files.sync_directory(group_directory(GROUP).rpartition("/")[0])
        opened, found = run(look(folder.files))
        assert (opened.count, opened.damage, opened.applied_index) == (lost, None, 0)
        assert found == [first_entry()]
        folder.files.power_cut()
        assert run(look(folder.files))[0].count == lost


def test_logs_without_the_data_directorys_identity_are_refused() -> None:
    folder = Folder()
    folder.files.remove("broker.json")
    with pytest.raises(CorruptData):
        run(open_store(folder.files))


def test_an_identity_flipped_anywhere_is_refused() -> None:
    folder = Folder()
    good = folder.files.content("broker.json")
    for position in range(len(good)):
        folder.files.flip_bit("broker.json", position, position % 7)
        if folder.files.content("broker.json").split() != good.split():  # white space says nothing
            with pytest.raises(CorruptData):
                run(open_store(folder.files))
            folder.files.kill()
        folder.files.put("broker.json", good)
