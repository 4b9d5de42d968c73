"""Files and folders of this user alone: made without a right for others, and never opened through a planted link.

In a folder that others may write to, such as the one for temporary files, a name that is about to be made can be there
already: as a symbolic link to a file that the victim may write, a hard link, a pipe, or another user's folder.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tinymq.errors import UnsafePath

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_private(path: Path, flags: int) -> int:
    """Open the regular file `path` as os.open does, close-on-exec, and with FILE_MODE if it is made.

    Raises UnsafePath when it is a symbolic link, no regular file, or, to be written, a file that has other names, too;
    OSError.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafePath(f"{path} is a symbolic link") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe that nobody reads, a socket; a folder
            raise UnsafePath(f"{path} is no regular file") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath(f"{path} is no regular file")
        if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise UnsafePath(f"{path} has {status.st_nlink} names: what is written to it changes another file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: Path) -> str:
    """The text of `path`. Raises UnsafePath, OSError, UnicodeDecodeError."""
    with os.fdopen(open_private(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def make_private_folder(path: Path) -> None:
    """Make `path` with FOLDER_MODE, and its parents as usual; one that is there must be this user's, and stays as it
    is. Raises UnsafePath, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        check_own_folder(path)


def check_own_folder(path: Path) -> None:
    """Raises UnsafePath unless `path` is a folder of this user's, or root's; so must a symbolic link to it be."""
    trusted = (os.geteuid(), 0)
    if path.lstat().st_uid not in trusted or path.stat().st_uid not in trusted:
        raise UnsafePath(f"{path} belongs to another user", hint="choose another folder, or remove that one")
    if not path.is_dir():
        raise UnsafePath(f"{path} is no folder", hint="choose another one")


def open_to_others(path: Path) -> str:
    """The mode of a folder that others may enter, such as "755"; "": it is private."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"{mode:o}" if mode & _OTHERS else ""
