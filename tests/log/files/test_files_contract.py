"""The contract of `Files`, for real files, faulty files, faulty files over real ones, and files in memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.seeds import first_of
from tinymq.base.errors import FolderInUse, SyncFailed
from tinymq.log.files.files import Files, RealFiles, failed_paths
from tinymq.log.files.memory_files import MemoryFiles
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq_chaos.real.disks.disks import FaultyDisk


@pytest.fixture(params=["real", "faulty", "memory", "faulty over real"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "memory":
        return MemoryFiles()
    if request.param == "faulty over real":
        return FaultyDisk(RealFiles(tmp_path), tmp_path)
    return RealFiles(tmp_path) if request.param == "real" else FaultyFiles(random.Random(1))


def test_written_bytes_are_read(files: Files) -> None:
    file = files.open("a", create=True)
    file.write(0, [b"hello ", b"", b"world"])
    assert file.read(0, 100) == b"hello world"
    assert file.read(6, 3) == b"wor"
    assert file.read(11, 5) == b""
    assert file.size() == 11
    assert file.path == "a"


def test_a_write_replaces_and_extends_and_leaves_zeros_in_a_gap(files: Files) -> None:
    file = files.open("a", create=True)
    file.write(0, [b"abcdef"])
    file.write(4, [b"XYZ"])
    file.write(10, [b"!"])
    assert file.read(0, 100) == b"abcdXYZ\0\0\0!"


def test_more_chunks_than_one_system_call_takes(files: Files) -> None:
    chunks = [b"%06d" % i for i in range(3000)]
    file = files.open("a", create=True)
    file.write(5, chunks)
    assert file.read(5, 1 << 20) == b"".join(chunks)


def test_truncate_cuts_and_extends(files: Files) -> None:
    file = files.open("a", create=True)
    file.write(0, [b"abcdef"])
    file.truncate(2)
    assert file.read(0, 10) == b"ab"
    file.truncate(4)
    assert file.read(0, 10) == b"ab\0\0"


def test_opening_a_missing_file_raises_and_create_keeps_the_content(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.open("a")
    with pytest.raises(FileNotFoundError):
        files.open("no-folder/a", create=True)
    files.open("a", create=True).write(0, [b"kept"])
    assert files.open("a", create=True).read(0, 10) == b"kept"


def test_two_open_files_see_each_other(files: Files) -> None:
    one, two = files.open("a", create=True), files.open("a")
    one.write(0, [b"seen"])
    assert two.read(0, 10) == b"seen"


def test_directories_list_sorted_names(files: Files) -> None:
    assert files.list("groups") == []
    files.make_directory("groups/x/y")
    files.make_directory("groups/x/y")
    for name in ("b", "a", "c"):
        files.open(f"groups/x/{name}", create=True).close()
    assert files.list("groups/x") == ["a", "b", "c", "y"]
    assert files.list("groups") == ["x"]
    assert files.exists("groups/x")
    assert files.exists("groups/x/a")
    assert not files.exists("groups/z")


def test_remove_and_remove_tree_accept_missing_names(files: Files) -> None:
    files.remove("a")
    files.remove_tree("groups")
    files.make_directory("groups/x")
    files.open("groups/x/a", create=True).close()
    files.remove_tree("groups")
    assert not files.exists("groups")
    files.open("a", create=True).close()
    files.remove("a")
    assert not files.exists("a")


def test_rename_replaces(files: Files) -> None:
    files.open("a", create=True).write(0, [b"new"])
    files.open("b", create=True).write(0, [b"old"])
    files.rename("a", "b")
    assert files.open("b").read(0, 10) == b"new"
    assert not files.exists("a")
    with pytest.raises(FileNotFoundError):
        files.rename("a", "b")


def test_a_removed_file_that_is_open_can_still_be_read(files: Files) -> None:
    file = files.open("a", create=True)
    file.write(0, [b"still here"])
    files.remove("a")
    assert file.read(0, 20) == b"still here"


def test_sync_takes_any_number_of_files(files: Files) -> None:
    opened = [files.open(f"f{i}", create=True) for i in range(40)]
    for file in opened:
        file.write(0, [b"x"])
    files.sync(opened)
    files.sync(opened[:1])
    files.sync([])
    files.sync_directory("")
    assert [file.read(0, 2) for file in opened] == [b"x"] * 40


def test_a_directory_that_cannot_be_synced_is_named(files: Files) -> None:
    with pytest.raises(SyncFailed) as raised:
        files.sync_directory("nowhere")
    assert failed_paths(raised.value) == {"nowhere"}


def test_the_start_of_the_machine_has_an_id(files: Files) -> None:
    assert len(files.boot_id()) == 16
    assert files.boot_id() == files.boot_id()


def test_a_lock_is_held_until_it_is_closed(files: Files) -> None:
    lock = files.lock("LOCK")
    with pytest.raises(FolderInUse):
        files.lock("LOCK")
    lock.close()
    files.lock("LOCK").close()


@pytest.mark.parametrize("seed", first_of(range(20), 5))
def test_any_writes_and_truncations_have_their_effect(files: Files, seed: int) -> None:
    rng, model = random.Random(seed), bytearray()
    file = files.open("a", create=True)
    for _ in range(60):
        size = rng.choice((1, 64, 700, 5000, 70_000))
        if rng.random() < 0.2:
            cut = rng.randint(0, len(model) + 100)
            file.truncate(cut)
            model = model[:cut] + bytes(max(0, cut - len(model)))
        else:
            at = len(model) if rng.random() < 0.7 else rng.randint(0, len(model) + 50)
            chunks = [rng.randbytes(size), b"", rng.randbytes(rng.randrange(100))]
            file.write(at, chunks)
            data = b"".join(chunks)
            model += bytes(max(0, at - len(model)))
            model[at : at + len(data)] = data
        assert file.size() == len(model)
        start = rng.randint(0, len(model))
        length = rng.choice((10, 1000, 200_000))
        assert file.read(start, length) == model[start : start + length]
    assert file.read(0, len(model) + 1) == model
