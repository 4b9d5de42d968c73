"""Faults that take synced bytes strike one broker, and damage only what may be damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.real.stand_in import StandIn
from tests.chaos.real.test_faults_disks import DiskTarget, Scene
from tests.log.values import GROUP, append, first_entry, open_store, run
from tinymq.format.entry import HEADER_SIZE, parse_header
from tinymq.log.broker_files.durability_marks import load_marks
from tinymq.log.files.files import RealFiles
from tinymq.log.files.layout import INDEX, MARKS, SEGMENT, SNAPSHOT, VOTES, group_directory
from tinymq_chaos.real.faults import FAULTS, files
from tinymq_chaos.real.faults import disks as disk_faults

ENTRIES = 60  # three segments


@pytest.fixture
def target(tmp_path: Path) -> StandIn:
    return StandIn(3, tmp_path)


@pytest.fixture
def scene(target: StandIn, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(files, "BETWEEN_S", 0.0)
    return Scene(target)


def fill(data: Path) -> None:
    """Write a broker's data directory and close it politely."""

    async def body() -> None:
        store = await open_store(RealFiles(data))
        await store.bind_cluster(b"c" * 16)
        store.votes.set(GROUP, 1, 2)
        log = (await store.open_log(GROUP, first_entry())).log
        append(log, ENTRIES)
        log.note_commit(ENTRIES)
        log.note_applied(ENTRIES)
        for index in range(1, log.last_index + 1):
            if log.segments.end_at(index):
                log.save_snapshot(index, b"state at %d" % index)
        await store.writer.drain()
        await store.close()

    run(body())


def contents(data: Path) -> dict[str, bytes]:
    return {path.relative_to(data).as_posix(): path.read_bytes() for path in data.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [SEGMENT, INDEX, SNAPSHOT, *VOTES, MARKS])
def test_bits_of_this_kind_of_file_are_flipped_while_the_broker_is_stopped(
    scene: Scene, target: StandIn, kind: str
) -> None:
    data = target.data(2)
    fill(data)
    before = contents(data)
    fault, words = scene.begin("flip_bits", broker=2.0, file=kind, bits=2.0)
    after = contents(data)
    changed = {path for path in before if before[path] != after[path]}
    assert before.keys() == after.keys()
    assert changed
    assert words is not None
    for path in changed:
        assert path.endswith(kind)
        assert path in words
        assert len(before[path]) == len(after[path])
    bits = sum((a ^ b).bit_count() for path in changed for a, b in zip(before[path], after[path], strict=True))
    assert 1 <= bits <= 2
    assert target.done == ["stop 2", "start 2"]
    assert next(fault, None) is None


def test_only_bits_that_a_mark_covers_are_flipped(target: StandIn) -> None:
    """Flips reach up to the end of the marked frame in the mark's segment, anywhere in earlier segments, and nowhere in
    later ones.
    """
    data = target.data(1)
    fill(data)
    mark = load_marks(RealFiles(data)).marks[GROUP]
    assert mark.segment > 1
    assert mark.index == ENTRIES + 1
    segments = files.files_of(data, SEGMENT)
    assert len(segments) >= 3
    marked = f"{group_directory(GROUP)}/{mark.segment:020d}{SEGMENT}"
    content = (data / marked).read_bytes()
    end = mark.position + HEADER_SIZE + parse_header(content, mark.position).length
    assert files.covered_bytes(data, marked) == end <= len(content)
    for path in segments:
        size = (data / path).stat().st_size
        if path != marked:
            assert files.covered_bytes(data, path) == (size if path < marked else 0)
    for name in (*VOTES, MARKS):
        content = (data / name).read_bytes()
        assert 0 < files.covered_bytes(data, name) < len(content), "the rest is zeros for what is to come"
        assert not content[files.covered_bytes(data, name) :].strip(b"\0")
    later = f"{group_directory(GROUP)}/{ENTRIES + 50:020d}{SEGMENT}"
    (data / later).write_bytes(b"x" * 100)
    assert files.covered_bytes(data, later) == 0


def test_a_flip_without_suitable_files_changes_nothing_and_the_broker_runs(scene: Scene, target: StandIn) -> None:
    target.data(3).mkdir(parents=True)
    _, words = scene.begin("flip_bits", broker=3.0)
    assert words is None
    assert 3 in target.up


def test_a_wiped_broker_starts_again_at_the_end(scene: Scene, target: StandIn) -> None:
    fault, words = scene.begin("wipe", broker=2.0)
    assert words == "broker 2"
    assert target.wiped == {2}
    assert 2 not in target.up
    assert next(fault, None) is None
    assert target.up == {1, 2, 3}


@pytest.mark.parametrize("nodes", [3, 5])
def test_after_amnesia_no_running_broker_has_the_last_writes(
    tmp_path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BETWEEN_S", 0.0)
    scene = Scene(target := StandIn(nodes, tmp_path))
    fault, words = scene.begin("wipe_then_kill", broker=1.0)
    assert words is not None
    few = nodes // 2
    behind = {int(done.split()[1]) for done in target.done[:few]}
    assert [done.split()[0] for done in target.done[:few]] == ["kill"] * few
    assert target.done[few] == "kill 1", "while the others have gone on"
    holders = {int(done.split()[1]) for done in target.done[few + 1 : 2 * few + 1]}
    assert behind | holders | {1} == {*target.brokers}
    assert target.wiped == {1}
    assert target.up == behind | {1}, "a majority, of which nobody has what was written last"
    assert next(fault, None) is None
    assert target.up == {*target.brokers}


def test_amnesia_waits_until_all_are_up(scene: Scene, target: StandIn) -> None:
    target.kill(3)
    _, words = scene.begin("wipe_then_kill", broker=1.0)
    assert words is None
    assert not target.wiped


def test_a_tail_is_torn_above_what_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_faults, "PATIENCE_S", 0.0)
    scene = Scene(target := DiskTarget(tmp_path))
    target.write(2, "a.log", b"s" * 600, synced=True)
    target.disks[2].open("a.log").write(600, [b"n" * 600])
    fault, words = scene.begin("torn_tail", broker=2.0)
    assert words is not None
    content = (target.data(2) / "a.log").read_bytes()
    assert content.startswith(b"s" * 600)
    kept = len(content[600:].rstrip(b"\0"))
    assert content == b"s" * 600 + b"n" * kept + bytes(600 - kept)
    assert kept < 600
    assert next(fault, None) is None
    assert target.up == {1, 2, 3}


def test_damage_strikes_the_broker_that_the_nemesis_names() -> None:
    for name in ("wipe", "wipe_then_kill", "flip_bits", "read_error"):
        assert FAULTS[name].real.damages, name
    assert not FAULTS["torn_tail"].real.damages, "nothing that was synced"
    assert {name for name, kind in FAULTS.items() if kind.real.scars} == {"flip_bits", "read_error"}


def test_the_same_seed_flips_the_same_bits(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        fill(tmp_path / folder)
    chosen = [files._flips(tmp_path / folder, random.Random(7), SEGMENT, 3) for folder in ("a", "b")]
    assert chosen[0] == chosen[1]
    assert chosen[0]
