"""Files for this user only: a planted name is refused, and new files are not readable by others."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tinymq.base.errors import UnsafePath
from tinymq.base.private_files import (
    check_own_directory,
    make_private_directory,
    open_private,
    open_to_others,
    read_private,
)
from tinymq.log.files.files import RealFiles

PRECIOUS = "what a planted link leads to"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(PRECIOUS)
    return path


@pytest.fixture(autouse=True)
def _umask() -> object:
    """The usual umask: a private file is private by its own mode."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "a symbolic link": lambda path, victim: path.symlink_to(victim),
    "a dangling link": lambda path, victim: path.symlink_to(victim.with_name("new")),
    "a hard link": lambda path, victim: os.link(victim, path),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a folder": lambda path, victim: path.mkdir(),
}


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC])
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_files_are_not_written(plant: str, flags: int, tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "name"
    PLANTS[plant](path, victim)
    if plant == "a hard link":
        flags &= ~os.O_TRUNC  # which comes before a file can be looked at: nothing of ours truncates on opening
    with pytest.raises(UnsafePath) as raised:
        open_private(path, flags | os.O_CREAT)
    assert str(path) in raised.value.message
    assert raised.value.hint
    assert victim.read_text() == PRECIOUS
    assert not victim.with_name("new").exists()


def test_a_read_file_is_not_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "name").symlink_to(victim)
    with pytest.raises(UnsafePath):
        read_private(tmp_path / "name")
    assert read_private(victim) == PRECIOUS
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")


def test_new_files_are_private_and_existing_ones_stay(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    make_private_directory(made)
    os.close(open_private(made / "file", os.O_RDWR | os.O_CREAT))
    assert (mode(made), mode(made / "file")) == ("700", "600")
    assert open_to_others(made) == ""
    made.chmod(0o755)
    make_private_directory(made)
    assert open_to_others(made) == "755"


def test_a_folder_of_another_user_is_refused(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "ours").symlink_to(theirs)
    check_own_directory(tmp_path / "ours")
    with pytest.raises(UnsafePath, match="is not a directory"):
        check_own_directory(victim)
    if os.geteuid() == 0:
        os.chown(theirs, 4711, 4711)
    else:  # it then belongs to another user
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    for name in ("theirs", "ours"):
        with pytest.raises(UnsafePath, match="another user"):
            make_private_directory(tmp_path / name)


def test_a_brokers_data_folder_is_private_whatever_the_umask(tmp_path: Path) -> None:
    files = RealFiles(tmp_path / "var" / "data")
    files.make_directory("groups/topic/0")
    files.make_directory("groups/topic/1")
    files.open("groups/topic/0/1.log", create=True).close()
    modes = {str(path.relative_to(tmp_path)): mode(path) for path in sorted(tmp_path.rglob("*"))}
    assert modes == {
        "var": "755",
        "var/data": "700",
        "var/data/groups": "700",
        "var/data/groups/topic": "700",
        "var/data/groups/topic/0": "700",
        "var/data/groups/topic/1": "700",
        "var/data/groups/topic/0/1.log": "600",
    }
