"""Private files and directories of this user: created without rights for others, never opened through a planted link.

In a directory that others may write to, such as the one for temporary files, an attacker can create a name before this
user does: a symbolic link to a file that the user may write, a hard link, a pipe, or a directory of another user.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tinymq.base.errors import UnsafePath

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_private(path: Path, flags: int) -> int:
    """Open the regular file `path` as os.open does, close-on-exec, and with FILE_MODE if it is created.

    Raises UnsafePath if `path` is a symbolic link or not a regular file, or if it is opened for writing and has several
    hard links. Raises OSError.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafePath(f"{path} is a symbolic link") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe without a reader, a socket; a directory
            raise UnsafePath(f"{path} is not a regular file") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath(f"{path} is not a regular file")
        if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise UnsafePath(f"{path} has {status.st_nlink} hard links: writing to it changes another file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: Path) -> str:
    """The text of `path`. Raises UnsafePath, OSError, UnicodeDecodeError."""
    with os.fdopen(open_private(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def make_private_directory(path: Path) -> None:
    """Create `path` with DIRECTORY_MODE, and its parents as usual. An existing directory must belong to this
    user, and stays unchanged. Raises UnsafePath, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        check_own_directory(path)


def check_own_directory(path: Path) -> None:
    """Raises UnsafePath unless `path` is a directory that belongs to this user or to root. If `path` is a symbolic link
    to the directory, the link must belong to one of them, too."""
    trusted = (os.geteuid(), 0)
    if path.lstat().st_uid not in trusted or path.stat().st_uid not in trusted:
        raise UnsafePath(f"{path} belongs to another user", hint="choose another directory, or remove that one")
    if not path.is_dir():
        raise UnsafePath(f"{path} is not a directory", hint="choose another one")


def open_to_others(path: Path) -> str:
    """Return the mode of a directory if others may enter it, such as "755"; "" if the directory is private."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"{mode:o}" if mode & _OTHERS else ""
