"""`dump`: a segment file in plain words, whole, torn or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.published import NAME, append_new, copy, discard, publish, stage
from tests.log.values import GROUP, append, faulty, following, open_both, run
from tinymq.base.errors import StorageError
from tinymq.cli.verbs.log import describe
from tinymq.format.entry import Kind, NewEntry, crc32c, make_entry
from tinymq.format.transactional import Item, pack_publish
from tinymq.log.files.files import open_to_read
from tinymq.log.segment.dump import DumpedEnd, DumpedEntry, DumpedSegment, dump_segment, format_dumped
from tinymq.simulation.faulty_files import FaultyFiles


def filled() -> FaultyFiles:
    files = faulty()

    async def body() -> None:
        store, opened = await open_both(files)
        append(opened.log, 3, records=2)
        opened.log.append([following(opened.log, b"", kind=Kind.NOOP, term=4)])
        await store.close()

    run(body())
    return files


def segment_file(tmp_path: Path, content: bytes | None = None) -> Path:
    files = filled()
    path = tmp_path / "1.log"
    path.write_bytes(
        files.content(next(p for p in files.paths() if p.endswith(".log"))) if content is None else content
    )
    return path


def test_a_whole_segment(tmp_path: Path) -> None:
    dumped = list(dump_segment(segment_file(tmp_path)))
    assert isinstance(dumped[0], DumpedSegment)
    assert dumped[0].header.group == GROUP
    entries = [d for d in dumped if isinstance(d, DumpedEntry)]
    assert [e.header.index for e in entries] == [1, 2, 3, 4, 5]
    assert all(e.problem is None for e in entries)
    assert len(entries[1].payload) == 100
    assert isinstance(dumped[-1], DumpedEnd)
    assert (dumped[-1].entries, dumped[-1].problem) == (5, None)
    lines = [format_dumped(d) for d in dumped]
    assert "entry 2 term 1 DATA 100 bytes, offsets 0..1" in lines[2]
    assert "entry 5 term 4 NOOP 0 bytes, no records" in lines[5]
    assert "5 entries, all whole" in lines[-1]


def test_a_damaged_frame_is_reported_with_its_position(tmp_path: Path) -> None:
    path = segment_file(tmp_path)
    content = bytearray(path.read_bytes())
    entry = [d for d in dump_segment(path) if isinstance(d, DumpedEntry)][2]
    content[entry.position + 70] ^= 1
    path.write_bytes(content)
    end = list(dump_segment(path))[-1]
    assert end == DumpedEnd(entry.position, 2, "entry payload checksum mismatch")
    assert "PROBLEM after 2 entries" in format_dumped(end)


def test_a_frame_out_of_place_is_shown_with_its_problem(tmp_path: Path) -> None:
    stray = make_entry(NewEntry(77, b""), index=9, term=9, prev_crc=1, base_offset=0, append_time_us=0)
    path = segment_file(tmp_path)
    path.write_bytes(strip(path) + stray.head)
    last = [d for d in dump_segment(path) if isinstance(d, DumpedEntry)][-1]
    assert last.problem == "entry 9 after entry 5"
    assert "kind 77" in format_dumped(last)


def strip(path: Path) -> bytes:
    end = list(dump_segment(path))[-1]
    assert isinstance(end, DumpedEnd)
    return path.read_bytes()[: end.position]


@pytest.mark.parametrize("content", [b"", b"short", b"not a segment at all, but long enough to be one's header" * 2])
def test_a_file_that_is_not_a_segment_is_reported(tmp_path: Path, content: bytes) -> None:
    (end,) = dump_segment(segment_file(tmp_path, content))
    assert isinstance(end, DumpedEnd)
    assert end.problem


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        list(dump_segment(tmp_path / "nothing.log"))
    with pytest.raises(FileNotFoundError):
        open_to_read(tmp_path / "nothing.log")


def transactions(tmp_path: Path) -> Path:
    """A segment with two batches, the entry that publishes them, and one that drops others."""
    files = faulty()

    async def body() -> None:
        store, opened = await open_both(files)
        log = opened.log
        publish(log, [(stage(log, b"first", number=0), 2), (stage(log, b"second", number=1), 3)])
        discard(log)
        await store.close()

    run(body())
    return segment_file(tmp_path, files.content(next(p for p in files.paths() if p.endswith(".log"))))


def test_entries_of_transactions_say_which_batches_they_have(tmp_path: Path) -> None:
    entries = [d for d in dump_segment(transactions(tmp_path)) if isinstance(d, DumpedEntry)]
    assert not any(entry.problem for entry in entries)
    name = "transaction 3 of producer 7, epoch 1"
    staged, _, published, dropped = (format_dumped(entry) for entry in entries[1:])
    assert staged.endswith(f"{name}, batch 0 of writer 1")
    assert dropped.endswith(name)
    head, first, second = published.split("\n")
    assert "PUBLISH 96 bytes, offsets 0..4" in head
    assert head.endswith(f"{name}, 2 batches")
    assert first.strip().startswith("entry 2: offsets 0..1, 5 bytes, crc ")
    assert second.strip().startswith("entry 3: offsets 2..4, 6 bytes, crc ")
    document = describe(entries[3])
    assert document["transaction"] == {"producer_id": 7, "number": 3, "epoch": 1}
    assert [(b["entry_index"], b["base_offset"], b["record_count"]) for b in document["batches"]] == [
        (2, 0, 2),
        (3, 2, 3),
    ]
    assert describe(entries[1])["transaction"]["batch_number"] == 0


def test_a_copy_is_shown_with_the_entry_that_it_replaces(tmp_path: Path) -> None:
    files = faulty()

    async def body() -> None:
        store, opened = await open_both(files)
        log = opened.log
        first, second = stage(log, b"first", number=0), stage(log, b"second", number=1)
        publish(log, [(copy(log, first), 2), (second, 3)])
        await store.close()

    run(body())
    path = segment_file(tmp_path, files.content(next(p for p in files.paths() if p.endswith(".log"))))
    copied, published = [d for d in dump_segment(path) if isinstance(d, DumpedEntry)][-2:]
    assert (copied.problem, published.problem) == (None, None)
    assert format_dumped(copied).endswith("batch 0 of writer 1, replaces entry 2")
    assert describe(copied)["transaction"]["replaced_index"] == 2
    assert [batch["entry_index"] for batch in describe(published)["batches"]] == [4, 3]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [("crc", "entry 2 is not the batch"), ("length", "entry 2 is not the batch"), ("first", "contradict each other")],
)
def test_items_that_do_not_fit_to_their_batches_are_a_problem(tmp_path: Path, wrong: str, problem: str) -> None:
    files = faulty()

    async def body() -> None:
        store, opened = await open_both(files)
        log = opened.log
        batch = stage(log, b"first")
        crc, length = crc32c(b"first"), 5
        item = Item(batch.index, int(wrong == "first"), 5, 2, length + (wrong == "length"), crc ^ (wrong == "crc"))
        append_new(log, NewEntry(Kind.PUBLISH, pack_publish(NAME, [item]), 2, 5))
        await store.close()

    run(body())
    path = segment_file(tmp_path, files.content(next(p for p in files.paths() if p.endswith(".log"))))
    last = [d for d in dump_segment(path) if isinstance(d, DumpedEntry)][-1]
    assert last.problem is not None
    assert problem in last.problem
