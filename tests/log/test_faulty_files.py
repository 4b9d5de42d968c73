"""The faults of FaultyFiles do occur: a test with a fault that never strikes would prove nothing."""

from __future__ import annotations

import random

import pytest

from tests.log.values import faulty
from tinymq.base.errors import DiskFull, StorageError, SyncFailed
from tinymq.log.files.files import failed_paths
from tinymq.simulation.faulty_files import Crash, FaultyFiles


def synced(files: FaultyFiles, path: str, content: bytes) -> None:
    file = files.open(path, create=True)
    file.write(0, [content])
    files.sync([file])
    files.sync_directory("")


def test_a_power_cut_keeps_synced_bytes() -> None:
    files = faulty()
    synced(files, "a", b"durable" * 500)
    files.power_cut()
    assert files.open("a").read(0, 1 << 20) == b"durable" * 500


def test_a_power_cut_keeps_any_unsynced_sectors() -> None:
    outcomes = set()
    for seed in range(40):
        files = faulty(seed)
        synced(files, "a", b"-" * 1536)
        files.open("a").write(0, [b"+" * 1536])
        files.power_cut()
        content = files.content("a")
        outcomes.add(bytes(content[i] for i in (0, 512, 1024)))
        assert all(len(set(content[i : i + 512])) == 1 for i in (0, 512, 1024))
    assert len(outcomes) == 8


def test_a_power_cut_may_keep_a_size_without_its_content() -> None:
    sizes = set()
    for seed in range(60):
        files = faulty(seed)
        synced(files, "a", b"")
        files.open("a").write(0, [b"+" * 1000])
        files.power_cut()
        sizes.add(len(files.content("a")))
    assert {0, 1000} < sizes


def test_names_survive_only_when_their_folder_was_synced() -> None:
    kept = set()
    for seed in range(20):
        files = faulty(seed)
        files.sync([files.open("a", create=True)])
        files.power_cut()
        kept.add(files.exists("a"))
    assert kept == {True, False}


def test_a_name_in_a_lost_folder_is_lost() -> None:
    for seed in range(20):
        files = faulty(seed)
        files.make_directory("x")
        files.open("x/a", create=True).close()
        files.sync_directory("x")
        files.power_cut()
        assert files.exists("x/a") == files.exists("x")


def test_a_rename_survives_as_a_whole_or_not_at_all() -> None:
    kept = set()
    for seed in range(20):
        files = faulty(seed)
        synced(files, "a", b"new")
        synced(files, "b", b"old")
        files.rename("a", "b")
        files.power_cut()
        kept.add(files.content("b"))
        assert files.exists("a") == (files.content("b") == b"old")
    assert kept == {b"new", b"old"}


def test_after_a_failed_sync_the_next_one_succeeds_and_writes_nothing() -> None:
    files = faulty()
    synced(files, "a", b"old")
    files.fail_sync("a")
    file = files.open("a")
    file.write(0, [b"new"])
    with pytest.raises(SyncFailed) as raised:
        files.sync([file])
    assert failed_paths(raised.value) == {"a"}
    files.sync([file])
    assert file.read(0, 3) == b"new"
    files.power_cut()
    assert files.content("a") == b"old"


def test_writing_again_after_a_failed_sync_makes_it_durable() -> None:
    files = faulty()
    synced(files, "a", b"old")
    files.fail_sync("a")
    file = files.open("a")
    file.write(0, [b"new"])
    with pytest.raises(SyncFailed):
        files.sync([file])
    files.kill()
    file = files.open("a")
    file.write(0, [file.read(0, 3)])
    files.sync([file])
    files.power_cut()
    assert files.content("a") == b"new"


def test_after_a_kill_everything_written_is_still_seen() -> None:
    files = faulty()
    file = files.open("a", create=True)
    file.write(0, [b"seen"])
    files.kill()
    assert files.open("a").read(0, 10) == b"seen"
    with pytest.raises(Crash):
        file.read(0, 1)


def test_a_crash_strikes_at_the_requested_operation() -> None:
    files = faulty()
    file = files.open("a", create=True)
    files.crash_after(1, bytes_written=2)
    file.write(0, [b"done"])
    with pytest.raises(Crash):
        file.write(4, [b"more"])
    with pytest.raises(Crash):
        files.exists("a")
    files.kill()
    assert files.content("a") == b"donemo"


def test_a_full_disk_writes_the_bytes_that_fit() -> None:
    files = faulty()
    file = files.open("a", create=True)
    file.write(0, [b"1234"])
    files.disk_full(3)
    file.write(0, [b"4321"])
    with pytest.raises(DiskFull):
        file.write(4, [b"56789"])
    assert file.read(0, 100) == b"4321567"
    files.disk_full(None)
    file.write(7, [b"89"])


def test_unreadable_files_raise() -> None:
    files = FaultyFiles(random.Random(1))
    files.open("a", create=True)
    files.fail_read("a")
    with pytest.raises(StorageError):
        files.open("a").read(0, 1)


def test_a_flipped_bit_is_on_the_disk_and_in_the_cache() -> None:
    files = faulty()
    synced(files, "a", b"\0\0")
    files.flip_bit("a", 1, 4)
    assert files.content("a") == b"\0\x10"
    files.power_cut()
    assert files.content("a") == b"\0\x10"


def test_a_recreated_directory_is_another_directory() -> None:
    """The new directory's durable content depends on its own name, not on the removal of the old directory."""
    for seed in range(40):
        files = faulty(seed)
        files.make_directory("x")
        synced(files, "x/a", b"old")
        files.sync_directory("x")
        files.remove_tree("x")
        files.make_directory("x")
        synced(files, "x/a", b"new")
        files.sync_directory("x")
        file = files.open("x/b", create=True)
        file.write(0, [b"newer"])
        files.sync([file])
        files.rename("x/b", "x/a")
        files.sync_directory("")  # the sync covers the removal of the old directory and the new one, but not the rename
        files.power_cut()
        assert files.content("x/a") in (b"new", b"newer")


def test_a_recreated_directory_is_lost_with_its_name() -> None:
    found = set()
    for seed in range(40):
        files = faulty(seed)
        files.make_directory("x")
        synced(files, "x/a", b"old")
        files.sync_directory("x")
        files.remove_tree("x")
        files.make_directory("x")
        file = files.open("x/a", create=True)
        file.write(0, [b"new"])
        files.sync([file])
        files.sync_directory("x")
        files.power_cut()
        found.add(files.content("x/a") if files.exists("x/a") else b"")
    assert found == {b"old", b"new", b""}


def test_a_moved_file_is_in_one_of_the_two_directories() -> None:
    places = set()
    for seed in range(40):
        files = faulty(seed)
        for folder in ("x", "y"):
            files.make_directory(folder)
            files.sync_directory("")
        synced(files, "x/a", b"moved")
        files.sync_directory("x")
        files.rename("x/a", "y/a")
        if seed % 2:
            files.sync_directory("y")
        files.power_cut()
        assert files.exists("x/a") != files.exists("y/a")
        assert files.exists("y/a") or not seed % 2
        places.add(files.exists("y/a"))
    assert places == {True, False}


def test_a_wiped_disk_is_empty() -> None:
    files = faulty()
    synced(files, "a", b"gone")
    file = files.open("a")
    files.wipe()
    assert not files.exists("a")
    with pytest.raises(Crash):
        file.read(0, 1)
    files.power_cut()
    assert files.paths() == []
