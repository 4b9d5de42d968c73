"""A disk that refuses: the simulated one raises what real files raise for the same answer of the system."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tinymq.base.errors import DiskFull, OutOfDescriptors, StorageError
from tinymq.log.files.files import File, Files, RealFiles
from tinymq.simulation.disk_errors import Operation
from tinymq.simulation.faulty_files import FaultyFiles

Use = Callable[[Files, File], Any]
USES: dict[Operation, tuple[str, Use]] = {  # (function of `os` that a real file calls, use of the files)
    "open": ("open", lambda files, file: files.open("d/a")),
    "create": ("open", lambda files, file: files.open("d/new", create=True)),
    "list": ("listdir", lambda files, file: files.list("d")),
    "make": ("mkdir", lambda files, file: files.make_directory("e")),
    "read": ("pread", lambda files, file: file.read(0, 4)),
    "write": ("pwritev", lambda files, file: file.write(0, [b"more"])),
    "truncate": ("ftruncate", lambda files, file: file.truncate(1)),
    "rename": ("replace", lambda files, file: files.rename("d/a", "d/b")),
    "remove": ("unlink", lambda files, file: files.remove("d/a")),
}
RAISED = {errno.EIO: StorageError, errno.ENOSPC: DiskFull, errno.EDQUOT: DiskFull, errno.EMFILE: OutOfDescriptors}


def test_each_operation_has_its_use() -> None:
    assert {*USES} == {*get_args(Operation)}


def refused(files: Files, use: Use, fail: Callable[[], None], mend: Callable[[], None]) -> tuple[object, ...]:
    """Return the error of an operation that fails, and what is there afterwards; then the operation succeeds."""
    files.make_directory("d")
    file = files.open("d/a", create=True)
    file.write(0, [b"kept"])
    fail()
    with pytest.raises(StorageError) as raised:
        use(files, file)
    mend()
    left = files.open("d/a").read(0, 10), files.list("d"), files.list("")
    use(files, file)
    return type(raised.value), raised.value.detail, left


@pytest.mark.parametrize("error", RAISED, ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", USES)
def test_a_refusal_is_the_same_error_and_changes_nothing(
    operation: Operation, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, use = USES[operation]

    def refuse(*args: object, **options: object) -> None:
        raise OSError(error, os.strerror(error))

    real, faulty = RealFiles(tmp_path), FaultyFiles(random.Random(1))
    with monkeypatch.context() as patch:
        expected = refused(real, use, lambda: patch.setattr(os, function, refuse), patch.undo)
    fail = lambda: faulty.errors.fail(operation, "*", error)  # noqa: E731
    assert refused(faulty, use, fail, faulty.errors.mend) == expected
    assert expected[0] is RAISED[error]
    assert faulty.errors.counts == {operation: 1}


def test_only_named_paths_are_refused_and_a_restart_mends_nothing() -> None:
    files = FaultyFiles(random.Random(1))
    files.errors.fail("create", "groups/*", errno.ENOSPC)
    files.open("marks", create=True).close()
    files.make_directory("groups")
    for restart in (files.kill, files.power_cut):
        with pytest.raises(DiskFull):
            files.open("groups/a", create=True)
        restart()
